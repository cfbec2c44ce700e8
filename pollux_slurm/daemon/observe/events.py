"""When a round is due before its interval: something happened that it may answer with a move.

What a look at Slurm or at the store shows is compared with the `Sight` of the last round. Many things that
happen at once are one round, and rounds come no closer than `daemon.watch_s`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pollux_slurm.config import DaemonConfig
from pollux_slurm.errors import PolluxError
from pollux_slurm.model import ClusterSnapshot, JobState
from pollux_slurm.store.contract.interface import JobRegistration, Reallocation, TrainingRun

_log = logging.getLogger(__name__)

# The store is asked so often whether a run has told of itself: by one small statement.
_STORE_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a round can answer. Jobs are adaptive ones that are served, by Slurm's number.

    `waiting` are those that Slurm may start at any time, `running` those that it has started; `free` the idle
    GPUs by node, less those that moves under way will take and with those that they will leave; `can_grow`
    tells whether a running job may have more GPUs than it holds.
    """

    jobs: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    free: tuple[tuple[str, int], ...] = ()
    can_grow: bool = False
    training_runs: frozenset[TrainingRun] = frozenset()

    @classmethod
    def of(
        cls,
        snapshot: ClusterSnapshot,
        served: Iterable[JobRegistration],
        moves: Iterable[Reallocation],
        training_runs: frozenset[TrainingRun] = frozenset(),
    ) -> Sight:
        """Return what a look at Slurm shows of the jobs that are `served`, with the `moves` under way."""
        by_id = {job.job_id: job for job in snapshot.jobs}
        targets = {move.slurm_job_id: move.target for move in moves}
        free = Counter(
            {node.name: node.num_gpus - node.used_gpus for node in snapshot.nodes if node.available}
        )
        for job_id, target in targets.items():
            held = by_id[job_id].allocation.as_dict() if job_id in by_id else {}
            for node in free:
                free[node] += held.get(node, 0) - target.as_dict().get(node, 0)
        jobs, waiting, running, can_grow = set(), set(), set(), False
        for registration in served:
            job = by_id[registration.slurm_job_id]
            if job.state.is_over:
                continue
            jobs.add(job.job_id)
            if job.job_id in targets or job.unschedulable_reason is not None:
                continue
            if job.state is JobState.RUNNING:
                running.add(job.job_id)
            most = registration.terms.max_gpus
            can_grow |= job.state is JobState.RUNNING and (most is None or job.allocation.num_gpus < most)
            starts_later = job.begins_at is not None and job.begins_at > snapshot.read_at
            if job.state is JobState.PENDING and not job.held and not starts_later:
                waiting.add(job.job_id)
        return cls(
            jobs=frozenset(jobs),
            waiting=frozenset(waiting),
            running=frozenset(running),
            free=tuple(sorted((node, gpus) for node, gpus in free.items() if gpus > 0)),
            can_grow=can_grow,
            training_runs=training_runs,
        )

    @property
    def is_open(self) -> bool:
        """Whether a round might give a job more: one waits, or GPUs are idle that one could use."""
        return bool(self.waiting) or (self.can_grow and bool(self.free))

    def news_of_slurm(self, before: Sight) -> str | None:
        """Return what Slurm shows now and did not show `before`, None for nothing that a round answers."""
        for jobs, what in (
            (self.jobs - before.jobs, "came"),
            (before.jobs - self.jobs, "ended"),
            (self.waiting - before.waiting, "waits"),
            # Its reports are taken once it was seen to run.
            (self.running & before.waiting, "started"),
        ):
            if jobs:
                return f"job {min(jobs, key=int)} {what}"
        were_free = dict(before.free)
        more = [(gpus - were_free.get(node, 0), node) for node, gpus in self.free]
        gpus, node = max(more, default=(0, ""))
        return f"{gpus} GPUs are free on {node}" if gpus > 0 and self.is_open else None

    def news_of_store(self, training_runs: frozenset[TrainingRun]) -> str | None:
        """Return what a run has told of since, None for nothing or where there is nothing to give."""
        reached = training_runs - self.training_runs
        return f"job {min(reached).slurm_job_id} reported" if reached and self.is_open else None


class Watch:
    """Tells when the next round is due. `monotonic` is in seconds.

    `look` reads Slurm in bulk, `glance` asks the store. Where GPUs are idle or jobs wait, rounds go on at the
    short pace for an interval after the last thing that happened: the restart of a young job costs more than
    it gains, and a little later less.
    """

    def __init__(
        self,
        *,
        look: Callable[[], Sight],
        glance: Callable[[], frozenset[TrainingRun]],
        monotonic: Callable[[], float],
    ) -> None:
        self._look, self._glance, self._monotonic = look, glance, monotonic
        self._last = Sight()
        self._lively_until = float("-inf")
        self._not_before = self._next_look = self._next_glance = float("-inf")
        self._every_s = 0.0

    def begin(self, sight: Sight, config: DaemonConfig) -> None:
        """Begin to watch after a round that saw `sight`."""
        now = self._monotonic()
        if sight.news_of_slurm(self._last) or sight.training_runs - self._last.training_runs:
            self._lively_until = now + config.interval_s
        self._last, self._every_s = sight, config.watch_s
        self._not_before = self._next_look = self._next_glance = now + config.watch_s

    def is_due(self) -> bool:
        """Whether a round is due now. Looks where it is time to; what cannot be read is no news."""
        now = self._monotonic()
        if now < self._not_before:
            return False
        if now < self._lively_until and self._last.is_open:
            return True
        try:
            news = self._news(now)
        except PolluxError as error:
            _log.info("cannot look for what has happened for now: %s", error)
            return False
        if news is not None:
            _log.info("the next round comes at once: %s", news)
        return news is not None

    def _news(self, now: float) -> str | None:
        if now >= self._next_glance:
            self._next_glance = now + _STORE_EVERY_S
            if (news := self._last.news_of_store(self._glance())) is not None:
                return news
        if now >= self._next_look:
            self._next_look = now + self._every_s
            return self._look().news_of_slurm(self._last)
        return None
