"""The cost of one reallocation, and its parts. Pure.

By requeue:

    training stands still                                             first step of the new run
    |-- checkpoint --|---------- hold ----------|                     |
                     |   |----- Slurm -----|----------- launch -------|
          CHECKPOINTED   REQUEUED    RELEASED   RUNNING               |
    |------------------------------- total --------------------------|

It begins at the confirmation of the checkpoint less `checkpoint_blocked_s`, the time for which training was
blocked by it. Without a confirmation, as the owner allows, it begins at the requeue; the work since the last
checkpoint is lost as well, and not counted here.

It ends when the first step of the next run was reported, or at the journal's CONFIRMED, whichever is earlier.
The daemon writes CONFIRMED when it reads that report, which is late if the daemon was down.

In place:

    training goes on                     stands still      goes on
    |------------- warm-up --------------|-- standstill --|
    REGROUP_REQUESTED                                      REGROUPED

The job measures the standstill. During the warm-up, the GPUs that the job gains are idle: their processes
start, import and load.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.model import ReallocationStep
from pollux_slurm.store.contract.interface import Reallocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReallocationCosts:
    """Seconds, each None where one of its ends is unknown, and for reallocations of the other way.

    `hold_s` and `slurm_s` overlap between the requeue and the release: the parts do not add up to `total_s`,
    the restart delay. The last two are of a reallocation in place; `warm_up_s` is None where it gains no GPU.
    """

    checkpoint_s: float | None
    hold_s: float | None
    slurm_s: float | None
    launch_s: float | None
    total_s: float | None
    standstill_s: float | None = None
    warm_up_s: float | None = None


def reallocation_costs(reallocation: Reallocation) -> ReallocationCosts:
    """Return the cost of `reallocation` and its parts."""
    checkpointed = reallocation.entered_at(ReallocationStep.CHECKPOINTED)
    requeued = reallocation.entered_at(ReallocationStep.REQUEUED)
    released = reallocation.entered_at(ReallocationStep.RELEASED)
    running = reallocation.entered_at(ReallocationStep.RUNNING)
    first_step_at = first_step_time(
        first_step_at=reallocation.first_step_at,
        confirmed_at=reallocation.entered_at(ReallocationStep.CONFIRMED),
    )
    if reallocation.is_pause:
        first_step_at = None  # when its job starts again is another reallocation's matter
    return ReallocationCosts(
        checkpoint_s=reallocation.checkpoint_blocked_s,
        hold_s=_between(checkpointed, released),
        slurm_s=_between(requeued, running),
        launch_s=_between(running, first_step_at),
        total_s=restart_delay_s(
            checkpointed_at=checkpointed,
            blocked_s=reallocation.checkpoint_blocked_s,
            requeued_at=requeued,
            first_step_at=first_step_at,
        ),
        standstill_s=reallocation.standstill_s,
        warm_up_s=warm_up_s(
            requested_at=reallocation.entered_at(ReallocationStep.REGROUP_REQUESTED),
            regrouped_at=reallocation.entered_at(ReallocationStep.REGROUPED),
            standstill_s=reallocation.standstill_s,
        )
        if gains_gpus(reallocation)
        else None,
    )


def gains_gpus(reallocation: Reallocation) -> bool:
    """Return whether there is a node on which the job is to have more GPUs than before."""
    had = reallocation.source.as_dict()
    return any(gpus > had.get(node, 0) for node, gpus in reallocation.target.gpus_by_node)


def warm_up_s(
    *, requested_at: datetime | None, regrouped_at: datetime | None, standstill_s: float | None
) -> float | None:
    """Return (regrouped − requested) − standstill in seconds, never negative; None where one is unknown."""
    took_s = _between(requested_at, regrouped_at)
    return None if took_s is None or standstill_s is None else max(took_s - standstill_s, 0.0)


def first_step_time(*, first_step_at: datetime | None, confirmed_at: datetime | None) -> datetime | None:
    """Return when the new run made its first step, as far as known."""
    known = [at for at in (first_step_at, confirmed_at) if at is not None]
    return min(known, default=None)


def restart_delay_s(
    *,
    checkpointed_at: datetime | None,
    blocked_s: float | None,
    requeued_at: datetime | None,
    first_step_at: datetime | None,
) -> float | None:
    """Return the restart delay: (first step) − (checkpoint confirmed − blocked_s), in seconds.

    None when the reallocation stopped no training, or the first step is unknown. Never negative, although the
    clocks of two hosts may differ.
    """
    if requeued_at is None or first_step_at is None:
        return None
    if checkpointed_at is None or blocked_s is None:
        return _between(requeued_at, first_step_at)
    return max((first_step_at - checkpointed_at).total_seconds() + blocked_s, 0.0)


def _between(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None:
        return None
    return max((end - start).total_seconds(), 0.0)
