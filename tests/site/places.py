"""What was seen of each job's GPUs and holds, and what is wrong with it. Pure.

Times are seconds since the run began.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from pollux_slurm.model import Allocation, SlurmAnswer, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import Reallocation

# A hold that no move explains ends with the next round.
HELD_S = 30.0
# How long what Slurm called never runnable is not to be tried.
NOT_TRIED_FOR = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A time in which a job is without GPUs that it had. `after` is None where the run ended before it."""

    job_id: str
    since_s: float
    until_s: float
    before: Allocation
    after: Allocation | None = None
    reasons: tuple[str, ...] = ()

    @property
    def lasted_s(self) -> float:
        return self.until_s - self.since_s


@dataclass(slots=True)
class Places:
    """The stops of the jobs, and the holds that no move explains, over repeated looks."""

    stops: list[Stop] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    _had: dict[str, Allocation] = field(default_factory=dict)
    _without: dict[str, Stop] = field(default_factory=dict)
    _held_since_s: dict[str, float] = field(default_factory=dict)

    def look(
        self, at_s: float, jobs: Iterable[SlurmJob], adaptive: Collection[str], moving: Collection[str]
    ) -> None:
        """Note what Slurm shows; `moving` are jobs with an open move, which may hold them."""
        holds = {}
        for job in jobs:
            if job.held and not job.state.is_over and job.job_id not in moving:
                holds[job.job_id] = since_s = self._held_since_s.get(job.job_id, at_s)
                if at_s - since_s > HELD_S:
                    self.held.add(job.job_id)
            if job.job_id in adaptive:
                self._note(at_s, job)
        self._held_since_s = holds

    def _note(self, at_s: float, job: SlurmJob) -> None:
        stop = self._without.pop(job.job_id, None)
        if job.state.is_over:  # its own end
            self._had.pop(job.job_id, None)
        elif job.allocation:
            self._had[job.job_id] = job.allocation
            if stop is not None:
                self.stops.append(replace(stop, until_s=at_s, after=job.allocation))
        elif job.job_id in self._had:
            stop = stop or Stop(job_id=job.job_id, since_s=at_s, until_s=at_s, before=self._had[job.job_id])
            reasons = stop.reasons if job.reason in stop.reasons else (*stop.reasons, job.reason)
            self._without[job.job_id] = replace(stop, until_s=at_s, reasons=reasons)

    def end(self) -> None:
        """End the run: what is without GPUs now is a stop that has lasted until the last look."""
        self.stops += self._without.values()
        self._without.clear()


def tried_again(moves: Sequence[Reallocation]) -> list[str]:
    """Return the moves, oldest first, to what Slurm had called never runnable within ten minutes before.

    That is the same shape, or more GPUs on the same nodes, of the same job.
    """
    found = []
    for number, move in enumerate(moves):
        refused = move.refusal
        if refused is None or refused.answer is not SlurmAnswer.NEVER:
            continue
        for later in moves[number + 1 :]:
            planned_at = later.entered_at(Step.PLANNED)
            if later.slurm_job_id != move.slurm_job_id or planned_at is None:
                continue
            if not refused.at <= planned_at < refused.at + NOT_TRIED_FOR:
                continue
            tried = [later.target, *([later.refusal.allocation] if later.refusal is not None else [])]
            found += [
                f"job {move.slurm_job_id}: {shape} in move {later.id}, {refused.allocation} was refused "
                f"{(planned_at - refused.at).total_seconds():.0f} s before ({refused.reason})"
                for shape in dict.fromkeys(tried)
                if _is_within(refused.allocation, shape)
            ]
    return found


def _is_within(refused: Allocation, shape: Allocation) -> bool:
    has = shape.as_dict()
    return has.keys() == refused.as_dict().keys() and all(
        gpus <= has[node] for node, gpus in refused.gpus_by_node
    )
