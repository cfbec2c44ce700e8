"""Which kinds of moves a rehearsal has not made, and the time that it needs to make them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH, StopMoment
from pollux_slurm.rehearsal.rehearse import (
    FIRST_RUN_SHARE,
    RehearsalRuns,
    asks_for_regroups,
    autoscales,
)
from pollux_slurm.rehearsal.run_failures import is_regroup
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun
from pollux_slurm.rehearsal.runs.stop_plan import (
    FIRST_RUN_EPOCHS,
    plan_regroups,
    plan_stops,
    sizes_of_regroups,
    training_loops,
)

# What the estimate leaves out: a busier machine, a longer validation.
_MARGIN = 1.3
# Where an epoch's length is not known, it is taken to be so many times as long as its observed part.
_UNKNOWN_EPOCH = 4.0
_MINUTE_S, _HOUR_S = 60.0, 3600.0


def kinds_not_made(rehearsed: RehearsalRuns) -> list[str]:
    """Return the kinds of moves that this script may meet, and that were not made."""
    made = set(_kinds_made(rehearsed))
    return [kind for kind in _kinds_expected(rehearsed) if kind not in made]


def is_time_too_short(rehearsed: RehearsalRuns) -> bool:
    """Return whether something was not rehearsed for lack of time."""
    is_missing = rehearsed.skipped > 0 or bool(kinds_not_made(rehearsed))
    return rehearsed.is_out_of_time and is_missing


def time_needed(rehearsed: RehearsalRuns) -> str:
    """Return the value of `--time` that is enough, by what the runs took."""
    first_run = rehearsed.fixed_batch_runs[0]
    if first_run.outcome is RunOutcome.OUT_OF_TIME:
        needed_s = _needed_by_first_run(rehearsed)
    else:
        walls = list({run.log: run.wall_s for run in rehearsed.all_runs}.values())
        needed_s = sum(walls) + rehearsed.skipped * sum(walls) / len(walls)
    needed_s = _MARGIN * max(needed_s, rehearsed.time_s)
    if needed_s < 2 * _HOUR_S:
        return f"{math.ceil(needed_s / _MINUTE_S)}m"
    return f"{math.ceil(needed_s / _HOUR_S)}h"


def _needed_by_first_run(rehearsed: RehearsalRuns) -> float:
    """Return the seconds for all runs, by a first run that was not observed to its end."""
    first_run = rehearsed.fixed_batch_runs[0]
    step, loops = first_run.first("first_step"), training_loops(first_run)
    start_s = first_run.wall_s if step is None else step["age_s"]
    trained_s = max(first_run.wall_s - start_s, 0.0)
    lengths = [event["length"] for event in first_run.of("loop")]
    num_epochs = sum(loop.is_whole for loop in loops)
    if not num_epochs and loops and lengths[0]:
        num_epochs = loops[0].end / lengths[0]
    epoch_s = trained_s / num_epochs if num_epochs else _UNKNOWN_EPOCH * max(trained_s, start_s)
    chains = 1 + autoscales(first_run) + asks_for_regroups(first_run)
    first_s = (start_s + FIRST_RUN_EPOCHS * epoch_s) / FIRST_RUN_SHARE
    all_s = (1 + 5 * chains) * start_s + (1 + chains) * FIRST_RUN_EPOCHS * epoch_s
    return max(first_s, all_s)


_IN_EPOCH = "in mid-epoch"
_AFTER_LOOP = "between an epoch's last step and its end"
_AT_END = "at an epoch's end"
_OTHER_NUMBER = "to another number of processes"
_VARYING = "with a varying batch"
_IN_PLACE = "in place"
_MEMORY = "after an OutOfMemoryError"


def _kinds_expected(rehearsed: RehearsalRuns) -> Iterator[str]:
    first_run = rehearsed.fixed_batch_runs[0]
    loops = training_loops(first_run)
    if not loops:
        if rehearsed.is_out_of_time:
            yield from (_IN_EPOCH, _AFTER_LOOP, _AT_END, _OTHER_NUMBER)
        return
    first = loops[0]
    yield _IN_EPOCH
    has_end = first.is_whole or first.epoch != NO_EPOCH or bool(next(first_run.of("loop"))["length"])
    if has_end and not first.is_left:
        yield _AFTER_LOOP
    moments = {stop.moment for stop in plan_stops(first_run)}
    if first.epoch != NO_EPOCH and (not first.is_whole or StopMoment.EPOCH_END in moments):
        yield _AT_END
    yield _OTHER_NUMBER
    if autoscales(first_run):
        yield _VARYING
    sizes = sizes_of_regroups(rehearsed.processes)
    is_refused = any(any(run.of("regroup_refused")) for run in rehearsed.in_place_runs)
    is_planned = sizes is None or bool(plan_regroups(first_run, fewer=sizes[0], more=sizes[1]))
    if asks_for_regroups(first_run) and is_planned and not is_refused:
        yield _IN_PLACE
    largest = max((event["size"] for event in first_run.of("micro_batch")), default=0)
    if largest * first_run.num_processes >= 2 * max(rehearsed.processes):
        yield _MEMORY


def _kinds_made(rehearsed: RehearsalRuns) -> Iterator[str]:
    places = {
        StopMoment.STEP: _IN_EPOCH,
        StopMoment.AFTER_LOOP: _AFTER_LOOP,
        StopMoment.EPOCH_END: _AT_END,
    }
    for before, after in _pairs(rehearsed):
        if before.stop is not None and before.outcome is RunOutcome.STOPPED:
            yield places[before.stop.moment]
        if before.varies_batch:
            yield _VARYING
        if is_regroup(before.stop):
            yield _IN_PLACE
        if before.num_processes != after.num_processes:
            yield _OTHER_NUMBER
    if any(
        any(run.of("out_of_memory", rank=rank))
        for run in rehearsed.all_runs
        for rank in range(run.num_processes)
    ):
        yield _MEMORY


def _pairs(rehearsed: RehearsalRuns) -> Iterator[tuple[ScriptRun, ScriptRun]]:
    chains = (rehearsed.fixed_batch_runs[1:], rehearsed.varying_batch_runs, rehearsed.in_place_runs)
    for runs in chains:
        yield from ((before, after) for before, after in itertools.pairwise(runs) if _trained(after))


def _trained(run: ScriptRun) -> bool:
    """Return whether a run came so far that a move before it can be judged."""
    return run.outcome is not RunOutcome.OUT_OF_TIME or run.first("first_step") is not None
