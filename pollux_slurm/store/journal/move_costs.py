"""What one reallocation cost the job, and where the time went. Pure.

    training stands still                                             first step of the new run
    |-- checkpoint --|---------- hold ----------|                     |
                     |   |----- Slurm -----|----------- launch -------|
          CHECKPOINTED   REQUEUED    RELEASED   RUNNING               |
    |------------------------------- total --------------------------|

The start is the confirmation of the checkpoint less `checkpoint_blocked_s`, the time that training stood
still for it. A job that was requeued without a confirmation (its owner allows it) stood still from the
requeue; what it had done since its last checkpoint is lost as well, and not counted here. The end is the
first step of the run that followed, when its report came, or the journal's CONFIRMED, which the daemon
writes when it sees that report: whichever is earlier, so that a daemon that was down for an hour does not
make a restart look an hour long.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.model import ReallocationStep
from pollux_slurm.store.contract.interface import Reallocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReallocationCosts:
    """Seconds, each None while (or because) an end of it is not known.

    `hold_s` and `slurm_s` overlap between the requeue and the release: the parts do not add up to `total_s`.
    """

    checkpoint_s: float | None
    hold_s: float | None
    slurm_s: float | None
    launch_s: float | None
    total_s: float | None


def reallocation_costs(reallocation: Reallocation) -> ReallocationCosts:
    """Split the time that `reallocation` took from a running job."""
    checkpointed = reallocation.entered_at(ReallocationStep.CHECKPOINTED)
    requeued = reallocation.entered_at(ReallocationStep.REQUEUED)
    released = reallocation.entered_at(ReallocationStep.RELEASED)
    running = reallocation.entered_at(ReallocationStep.RUNNING)
    stepped = first_step_time(
        first_step_at=reallocation.first_step_at,
        confirmed_at=reallocation.entered_at(ReallocationStep.CONFIRMED),
    )
    if reallocation.is_pause:
        stepped = None  # its job waits for as long as others are worth more
    return ReallocationCosts(
        checkpoint_s=reallocation.checkpoint_blocked_s,
        hold_s=_between(checkpointed, released),
        slurm_s=_between(requeued, running),
        launch_s=_between(running, stepped),
        total_s=restart_delay_s(
            checkpointed_at=checkpointed,
            blocked_s=reallocation.checkpoint_blocked_s,
            requeued_at=requeued,
            stepped_at=stepped,
        ),
    )


def first_step_time(*, first_step_at: datetime | None, confirmed_at: datetime | None) -> datetime | None:
    """Return when the new run made its first step, as well as is known."""
    known = [at for at in (first_step_at, confirmed_at) if at is not None]
    return min(known, default=None)


def restart_delay_s(
    *,
    checkpointed_at: datetime | None,
    blocked_s: float | None,
    requeued_at: datetime | None,
    stepped_at: datetime | None,
) -> float | None:
    """Return how long training stood still: (first step) − (checkpoint confirmed − blocked_s), in seconds.

    None when the reallocation stopped no training or the first step is not known. Never negative: clocks of
    two hosts may differ.
    """
    if requeued_at is None or stepped_at is None:
        return None
    if checkpointed_at is None or blocked_s is None:
        return _between(requeued_at, stepped_at)
    return max((stepped_at - checkpointed_at).total_seconds() + blocked_s, 0.0)


def _between(start: datetime | None, end: datetime | None) -> float | None:
    if start is None or end is None:
        return None
    return max((end - start).total_seconds(), 0.0)
