"""Where a script is stopped, from what a first run without a stop has shown of its epochs."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH, Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.script_run import ScriptRun

FIRST_RUN_EPOCHS = 2
FIRST_RUN_STOP = Stop(moment=StopMoment.STEP, method=StopMethod.SIGTERM, epoch=FIRST_RUN_EPOCHS - 1)
"""Stops the first run at the first step behind the epochs that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """A loop in which the model made steps. `end` is the position that it reached, in examples.

    `is_whole` where it was seen to its end, or (`is_left`) until the script left it.
    """

    epoch: int
    loader: str
    loop: int
    end: int
    num_steps: int
    is_whole: bool
    is_left: bool = False


def training_loops(first_run: ScriptRun) -> list[TrainingLoop]:
    """Return the loops with steps, in their order; the last may have been cut off."""
    if first_run.first("first_step") is None:
        return []
    ends: dict[tuple[int, str, int], int] = {}
    for event in first_run.of("micro_batch"):
        key = (event["epoch"], event["loader"], event["loop"])
        ends[key] = max(ends.get(key, 0), event["start"] + event["size"])
    steps, left, before = {}, set(), 0
    for event in first_run.of("loop_end", "loop_left"):
        key = (event["epoch"], event["loader"], event["loop"])
        steps[key] = event["steps"] - before
        before = event["steps"]
        if event["kind"] == "loop_left":
            left.add(key)
    loops = []
    for (epoch, loader, loop), end in ends.items():
        num_steps = steps.get((epoch, loader, loop))
        if num_steps is None or num_steps > 0:
            loops.append(
                TrainingLoop(
                    epoch=epoch,
                    loader=loader,
                    loop=loop,
                    end=end,
                    num_steps=num_steps or 0,
                    is_whole=num_steps is not None,
                    is_left=(epoch, loader, loop) in left,
                )
            )
    return loops


def plan_stops(first_run: ScriptRun, *, is_short: bool = False) -> list[Stop]:
    """Return the stops of the moves, in the order in which training comes to them.

    The last one is that of a run after the last move. `is_short` leaves out the kinds of moves that do not
    depend on the batch size.
    """
    loops = training_loops(first_run)
    if not loops:
        return []
    first = loops[0]
    if not first.is_whole:
        thirds = (first.end // 3, 2 * first.end // 3, first.end)
        means = (StopMethod.REQUEST, StopMethod.SIGTERM, StopMethod.SIGTERM)
        return [_within(first, position, how) for position, how in zip(thirds, means, strict=True)]
    has_ended = first.epoch != NO_EPOCH and any(
        event["epoch"] == first.epoch for event in first_run.of("epoch_end")
    )
    later = next((loop for loop in loops[1:] if loop.is_whole and _is_of_later_epoch(loop, first)), None)
    stops = [_within(first, first.end // 2, StopMethod.REQUEST)]
    if not (is_short or first.is_left):
        stops.append(
            Stop(
                moment=StopMoment.AFTER_LOOP,
                method=StopMethod.SIGTERM,
                epoch=first.epoch,
                loader=first.loader,
                loop=first.loop,
            )
        )
    if has_ended:
        stops.append(Stop(moment=StopMoment.EPOCH_END, method=StopMethod.REQUEST, epoch=first.epoch))
    if later is not None:
        stops.append(_within(later, later.end // 2, StopMethod.SIGTERM))
    last = first if later is None else later
    # The first step of the next epoch, if there is one: the script may end before.
    epoch = last.loop if last.epoch == NO_EPOCH else last.epoch
    stops.append(Stop(moment=StopMoment.STEP, method=StopMethod.SIGTERM, epoch=epoch))
    return stops


def _is_of_later_epoch(loop: TrainingLoop, first: TrainingLoop) -> bool:
    """Outside of epochs, each loop over the same loader is taken for one."""
    if loop.epoch == first.epoch == NO_EPOCH:
        return loop.loader == first.loader
    return loop.epoch != first.epoch


def _within(loop: TrainingLoop, position: int, method: StopMethod) -> Stop:
    return Stop(
        moment=StopMoment.STEP,
        method=method,
        epoch=loop.epoch,
        loader=loop.loader,
        loop=loop.loop,
        position=position,
    )
