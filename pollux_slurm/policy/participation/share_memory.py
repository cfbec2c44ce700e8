"""Shares with memory: users who recently used fewer GPUs than others get more, until all have used as much.

The usage of a user is the GPU seconds that they had. They count half after each half-life h:

    U ← U·2^(−t/h) + GPUs·t

A quarter of all GPUs is divided equally between the n users who have jobs, and the rest by how far each is
below or above their mean usage Ū:

    share = 1/4 + 3/4·n·q/Σq, with q = max(4 − 3·U/Ū, 0)

So q is 4 for a user who used nothing, 1 for one who used the mean, and 0 from 4/3 of it on. Nobody gets less
than a quarter of an equal share. The factor 3 keeps usage near the mean although GPUs are whole: that of two
users on 16 GPUs, within 3 %. Jobs without a user have no memory.
Legend: n users (or accounts) with jobs, U their usage in GPU seconds, Ū its mean.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from pollux_slurm.model import Problem
from pollux_slurm.policy.participation.user_shares import group_of

# The part of GPUs that is divided equally; how much the share falls with usage.
_EQUAL, _GAIN = 0.25, 3.0


def shares_by_usage(usage: Mapping[str, float]) -> dict[str, float]:
    """Return the share of each user, relative to an equal one, by what each has used.

    >>> shares_by_usage({"ada": 120.0, "bob": 80.0})
    {'ada': 0.55, 'bob': 1.45}
    """
    mean = math.fsum(usage.values()) / max(len(usage), 1)
    if mean <= 0:
        return dict.fromkeys(usage, 1.0)
    parts = {name: max(1 + _GAIN * (1 - used / mean), 0.0) for name, used in usage.items()}
    rest = (1 - _EQUAL) * len(parts) / math.fsum(parts.values())
    return {name: _EQUAL + rest * part for name, part in parts.items()}


class ShareMemory:
    """The usage of each user up to `at_s`, on any clock in seconds."""

    def __init__(self, half_life_s: float, *, at_s: float = 0.0) -> None:
        self._half_life_s, self._at_s = half_life_s, at_s
        self._usage: defaultdict[str, float] = defaultdict(float)
        self._gpus: Counter[str] = Counter()

    def add(self, name: str, gpu_s: float, *, since_s: float, until_s: float) -> None:
        """Add GPU seconds that were used evenly from `since_s` to `until_s`, before now."""
        # ∫ 2^(−(now − t)/h) dt over [since, until], over its length
        first, last = ((self._at_s - one) / self._half_life_s for one in (since_s, until_s))
        length = (first - last) * math.log(2)
        mean = (2**-last - 2**-first) / length if length > 1e-9 else 2**-last
        self._usage[name] += gpu_s * mean

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
            f"{name}'s share is {share:.2g} of an equal one: {name} recently used {used / 3600:.3g} of the "
            f"{total / 3600:.3g} GPU hours of those who have jobs"
        )
