"""The wings that this daemon has put before all others, watched until they are over.

A priority that an operator has set stays with a job whatever its owner changes (22.05). So an owner could
have a wing prioritised, and then make another job of it: change its Comment, account or QOS, so that it is
nobody's wing any more, or its shape. Such a job is cancelled. So is a wing that waits on when its move is
over, or that was requeued: wings never are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from pollux_slurm.errors import SlurmCommandError
from pollux_slurm.model import ClusterSnapshot, JobState, SlurmJob
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment

_log = logging.getLogger(__name__)

# In one check: an owner may have thousands, and other jobs' moves wait.
_MAX_CANCELLED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prioritised:
    anchor_id: str
    user_id: int
    comment: str
    plan: int
    least_memory_mb: int


class PrioritisedWings:
    """What was prioritised, by job id."""

    def __init__(self) -> None:
        self._known: dict[str, _Prioritised] = {}
        self._started: set[str] = set()
        self._has_adopted = False

    @property
    def waiting(self) -> Collection[str]:
        """Those that may still use their priority."""
        return self._known.keys() - self._started

    @property
    def known(self) -> Collection[str]:
        """Those that are not over yet."""
        return self._known.keys()

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._known

    def add(self, anchor_id: str, wing: SlurmJob) -> None:
        """Watch a wing from now on."""
        terms = parse_wing_comment(wing.comment)
        if terms is not None:
            self._known[wing.job_id] = _Prioritised(
                anchor_id=anchor_id,
                user_id=wing.user_id,
                comment=wing.comment,
                plan=terms.plan,
                least_memory_mb=wing.least_memory_mb,
            )

    def adopt(self, jobs: Iterable[SlurmJob]) -> None:
        """Watch the newcomers' wings that wait when this daemon begins: another may have prioritised them."""
        if self._has_adopted:
            return
        self._has_adopted = True
        for job in jobs:
            for wing in job.wings:
                terms = parse_wing_comment(wing.comment)
                if wing.state is JobState.PENDING and terms is not None and terms.plan > 0:
                    self.add(job.job_id, wing)

    def check(
        self, snapshot: ClusterSnapshot, requested: Collection[int], cancel: Callable[[str], None]
    ) -> None:
        """Cancel what was altered, or waits for no open move.

        `requested` are the open moves that ask for wings.
        """
        if not self._known:
            return
        shown = {
            job.job_id: (job, anchor_id)
            for job, anchor_id in _each_alone(snapshot.jobs)
            if job.job_id in self._known
        }
        for number in self._known.keys() - shown.keys():
            self._forget(number)
        left = _MAX_CANCELLED
        for number, (job, anchor_id) in shown.items():
            known = self._known[number]
            if job.state.is_over or job.user_id != known.user_id:
                self._forget(number)
                continue
            because = self._fault(job, anchor_id, known, requested)
            if because is None:
                if job.state is not JobState.PENDING:
                    self._started.add(number)
                continue
            left -= 1
            if left < 0:
                return
            _log.warning("job %s: its wing %s %s: it is cancelled", known.anchor_id, number, because)
            try:
                cancel(number)
            except SlurmCommandError as error:
                _log.warning("wing %s: %s", number, error)

    def _fault(
        self, job: SlurmJob, anchor_id: str | None, known: _Prioritised, requested: Collection[int]
    ) -> str | None:
        is_waiting, has_started = job.state is JobState.PENDING, job.job_id in self._started
        if has_started:
            return "was requeued with its priority" if is_waiting else None
        asks_for_more = job.least_memory_mb > known.least_memory_mb
        if anchor_id != known.anchor_id or job.comment != known.comment or asks_for_more:
            return "was changed after it had got priority"
        if not is_waiting:
            return None
        return None if known.plan in requested else "waits for a move that is over"

    def _forget(self, number: str) -> None:
        self._known.pop(number, None)
        self._started.discard(number)


def _each_alone(jobs: Iterable[SlurmJob]) -> Iterator[tuple[SlurmJob, str | None]]:
    """Yield each job, and each wing with its anchor's number."""
    for job in jobs:
        yield job, None
        for wing in job.wings:
            yield wing, job.job_id
