"""Decide where to stop and to regroup a script, from the epochs and loops of its first run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH, Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.runs.script_run import ScriptRun

FIRST_RUN_EPOCHS = 2
FIRST_RUN_STOP = Stop(moment=StopMoment.STEP, method=StopMethod.SIGTERM, epoch=FIRST_RUN_EPOCHS - 1)
"""The stop of the first run: at the first step after the epochs that are observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """A loop in which the model made steps. `end` is the last position, in examples.

    `is_whole` if it was observed until it ended, or until the script left it (`is_left`).
    """

    epoch: int
    loader: str
    loop: int
    end: int
    num_steps: int
    is_whole: bool
    is_left: bool = False


def training_loops(first_run: ScriptRun) -> list[TrainingLoop]:
    """Return the loops with steps, in order; the last one may be incomplete."""
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
    """Return the stops of the runs, in the order in which training reaches them.

    The last one ends the run after the last move. `is_short` omits the kinds of moves that do not depend on
    the batch size.
    """
    loops = training_loops(first_run)
    if not loops:
        return []
    first = loops[0]
    if not first.is_whole:
        thirds = (first.end // 3, 2 * first.end // 3, first.end)
        means = (StopMethod.REQUEST, StopMethod.SIGTERM, StopMethod.SIGTERM)
        return [_within(first, position, how) for position, how in zip(thirds, means, strict=True)]
    later = _loop_of_later_epoch(loops)
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
    if _has_ended(first_run, first):
        stops.append(Stop(moment=StopMoment.EPOCH_END, method=StopMethod.REQUEST, epoch=first.epoch))
    if later is not None:
        stops.append(_within(later, later.end // 2, StopMethod.SIGTERM))
    last = first if later is None else later
    # The first step of the next epoch, if there is one: the script may end before.
    epoch = last.loop if last.epoch == NO_EPOCH else last.epoch
    stops.append(Stop(moment=StopMoment.STEP, method=StopMethod.SIGTERM, epoch=epoch))
    return stops


def plan_lack_of_memory(first_run: ScriptRun) -> tuple[int, Stop] | None:
    """Return which run of those with `plan_stops` is to run out of memory, and where.

    Steps with smaller micro-batches follow. None where there is no training loop.
    """
    loops = training_loops(first_run)
    if not loops:
        return None
    first, later = loops[0], _loop_of_later_epoch(loops)
    last = len(plan_stops(first_run)) - 1
    if not first.is_whole:
        return last, _within(first, 5 * first.end // 6, StopMethod.OUT_OF_MEMORY)
    if later is None:
        return 1, _within(first, 3 * first.end // 4, StopMethod.OUT_OF_MEMORY)
    return last, _within(later, 3 * later.end // 4, StopMethod.OUT_OF_MEMORY)


def sizes_of_regroups(counts: Sequence[int]) -> tuple[int, int] | None:
    """Return between which numbers of processes the script is regrouped; None where there is only one."""
    sizes = sorted(set(counts))
    return (sizes[-2], sizes[-1]) if len(sizes) > 1 else None


def plan_regroups(first_run: ScriptRun, *, fewer: int, more: int) -> list[Stop]:
    """Return the regroups of a run that begins with `fewer` processes, in the order of training.

    Processes join, then rank 0 and others leave, then processes join again, as far as there are moments.
    """
    loops = training_loops(first_run)
    if not loops:
        return []
    first, later = loops[0], _loop_of_later_epoch(loops)
    moments = [_within(first, part * first.end // 3, StopMethod.REGROUP) for part in (1, 2)]
    if first.is_whole and _has_ended(first_run, first):
        moments.append(
            Stop(moment=StopMoment.EPOCH_END, method=StopMethod.REGROUP, epoch=first.epoch),
        )
    if first.is_whole and later is not None:
        moments.append(_within(later, later.end // 2, StopMethod.REGROUP))
    return [
        replace(moment, num_processes=more)
        if number % 2 == 0
        else replace(moment, num_processes=fewer, leaves=tuple(range(more - fewer)))
        for number, moment in enumerate(moments)
    ]


def _has_ended(first_run: ScriptRun, loop: TrainingLoop) -> bool:
    """Return whether the epoch of a loop was observed to its end."""
    return loop.epoch != NO_EPOCH and any(event["epoch"] == loop.epoch for event in first_run.of("epoch_end"))


def _loop_of_later_epoch(loops: Sequence[TrainingLoop]) -> TrainingLoop | None:
    return next((loop for loop in loops[1:] if loop.is_whole and _is_of_later_epoch(loop, loops[0])), None)


def _is_of_later_epoch(loop: TrainingLoop, first: TrainingLoop) -> bool:
    """Tell whether a loop is of a later epoch; outside of epochs, each loop over a loader counts as one."""
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
