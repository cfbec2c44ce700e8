"""Shares with memory: users who used fewer GPUs than others of late get more, until all have used as much.

The usage of a user is the GPU seconds that they had. They count half after each half-life h:

    U ← U·2^(−t/h) + GPUs·t

A quarter of all GPUs is divided equally between the n users who have jobs. The rest is divided in inverse
proportion to a power of their usage, relative to the mean Ū of these users:

    share = 1/4 + 3/4·n·q/Σq, with q = (Ū/max(U, Ū/4))^2

So nobody gets less than a quarter of an equal share, whatever they used. A user (or account, `between`) without
a name has an equal share. Legend: n users with jobs, U their usage in GPU seconds, Ū its mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from pollux_slurm.model import Problem
from pollux_slurm.policy.participation.user_shares import group_of

# What is divided equally; the exponent of what is not; the least usage that counts, relative to the mean.
_EQUAL, _POWER, _LEAST = 0.25, 2.0, 0.25


def shares_by_usage(usage: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each user, relative to an equal one, by what each has used.

    >>> shares_by_usage({"ada": 150.0, "bob": 50.0})
    {'ada': 0.4, 'bob': 1.6}
    """
    mean = math.fsum(usage.values()) / max(len(usage), 1)
    if mean <= 0:
        return dict.fromkeys(usage, 1.0)
    parts = {name: (mean / max(used, _LEAST * mean)) ** _POWER for name, used in usage.items()}
    rest = (1 - _EQUAL) * len(parts) / math.fsum(parts.values())
    return {name: _EQUAL + rest * part for name, part in parts.items()}


class ShareMemory:
    """The usage of each user up to `at_s`, on any clock in seconds. `usage` is in GPU seconds."""

    def __init__(self, half_life_s: float, usage: Mapping[str, float] | None = None, *, at_s: float = 0.0):
        self._half_life_s, self._at_s = half_life_s, at_s
        self._usage: defaultdict[str, float] = defaultdict(float, usage or {})
        self._gpus: Counter[str] = Counter()

    def with_shares(self, problem: Problem, now_s: float) -> Problem:
        """Return the problem with the share of each job's user. GPUs of the last problem count up to now."""
        between = problem.objective.between
        names = [group_of(job, between) for job in problem.jobs]
        self._advance(now_s)
        self._gpus.clear()
        for name, job in zip(names, problem.jobs, strict=True):
            if name is not None:
                self._gpus[name] += job.current.num_gpus
        sharing = {name for name, job in zip(names, problem.jobs, strict=True) if name and not job.rigid}
        shares = shares_by_usage(self.usage_of(sharing))
        notes = {name: self._note(name, share, sharing) for name, share in shares.items()}
        return dataclasses.replace(
            problem,
            jobs=tuple(
                dataclasses.replace(job, share=shares[name], share_note=notes[name])
                if name in shares
                else job
                for name, job in zip(names, problem.jobs, strict=True)
            ),
        )

    def usage_of(self, names: Collection[str]) -> dict[str, float]:
        """Return the usage of these users."""
        return {name: self._usage[name] for name in names}

    def _advance(self, now_s: float) -> None:
        elapsed_s = max(now_s - self._at_s, 0.0)
        self._at_s = max(now_s, self._at_s)
        kept = 2 ** (-elapsed_s / self._half_life_s)
        for name in self._usage.keys() | self._gpus.keys():
            self._usage[name] = self._usage[name] * kept + self._gpus[name] * elapsed_s

    def _note(self, name: str, share: float, sharing: Collection[str]) -> str | None:
        """Return why a share is what it is, None for an equal one."""
        if f"{share:.2f}" == "1.00":
            return None
        used, total = self._usage[name], math.fsum(self._usage[other] for other in sharing)
        return (
            f"{name}'s share is {share:.2g} of an equal one: of late, {name} used {used / 3600:.3g} of the "
            f"{total / 3600:.3g} GPU hours of those who have jobs"
        )
