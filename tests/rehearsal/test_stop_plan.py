from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.rehearsal_protocol import RunPlan, Stop, StopMethod, StopMoment, read_run_plan
from pollux_slurm.rehearsal.rehearse import process_counts
from pollux_slurm.rehearsal.runs.script_run import ScriptRun
from pollux_slurm.rehearsal.runs.stop_plan import (
    plan_lack_of_memory,
    plan_regroups,
    plan_stops,
    sizes_of_regroups,
    training_loops,
)
from tests.rehearsal.builders import loop, loop_end, loop_left, micro_batch, script_run

STEPPED = {"kind": "first_step", "age_s": 1.0}
EPOCH_0 = [
    STEPPED,
    loop(),
    micro_batch(0, 10),
    micro_batch(10, 10),
    loop_end(),
    {"kind": "epoch_end", "epoch": 0},
]
EPOCH_1 = [
    loop(epoch=1),
    micro_batch(0, 10, epoch=1),
    micro_batch(10, 10, epoch=1),
    loop_end(epoch=1, steps=4),
    {"kind": "epoch_end", "epoch": 1},
]


def in_short(stops: list[Stop]) -> list[tuple[str, str, int, int]]:
    return [(stop.moment.value, stop.method.value, stop.epoch, stop.position) for stop in stops]


def test_that_two_whole_epochs_give_every_kind_of_move_in_the_order_of_training() -> None:
    first_run = script_run([*EPOCH_0, *EPOCH_1])
    assert in_short(plan_stops(first_run)) == [
        ("step", "request", 0, 10),
        ("after_loop", "sigterm", 0, 0),
        ("epoch_end", "request", 0, 0),
        ("step", "sigterm", 1, 10),
        ("step", "sigterm", 1, 0),
    ]
    assert [stop.moment.value for stop in plan_stops(first_run, is_short=True)] == [
        "step",
        "epoch_end",
        "step",
        "step",
    ]


def test_that_an_epoch_that_did_not_end_gives_moves_within_its_observed_part() -> None:
    first_run = script_run([STEPPED, loop(length=1000), micro_batch(0, 30), micro_batch(30, 30)])
    assert in_short(plan_stops(first_run)) == [
        ("step", "request", 0, 20),
        ("step", "sigterm", 0, 40),
        ("step", "sigterm", 0, 60),
    ]


def test_that_a_loop_that_the_script_leaves_is_whole_but_has_no_stop_after_it() -> None:
    events = [STEPPED]
    for epoch in (0, 1):
        steps = 2 * epoch + 2
        events += [loop(1000, epoch=epoch), micro_batch(0, 10, epoch=epoch), micro_batch(10, 10, epoch=epoch)]
        events += [loop_left(epoch=epoch, steps=steps), micro_batch(0, 5, epoch=epoch, loop=1)]
        # Nothing was trained in this one.
        events += [loop_end(epoch=epoch, number=1, steps=steps), {"kind": "epoch_end", "epoch": epoch}]
    assert in_short(plan_stops(script_run(events))) == [
        ("step", "request", 0, 10),
        ("epoch_end", "request", 0, 0),
        ("step", "sigterm", 1, 10),
        ("step", "sigterm", 1, 0),
    ]


def test_that_the_first_validation_has_the_most_processes() -> None:
    whole, short = (
        plan_stops(script_run([*EPOCH_0, *EPOCH_1]), is_short=is_short) for is_short in (False, True)
    )
    for counts, runs in (((1, 2), [2, 1, 2, 1, 2]), ((1, 2, 3), [1, 2, 3, 1, 2]), ((2,), [2] * 5)):
        assert [count for count, _ in zip(process_counts(counts, whole), whole, strict=False)] == runs
    assert [count for count, _ in zip(process_counts((1, 2, 3), short), short, strict=False)] == [2, 3, 1, 2]


@pytest.mark.parametrize(
    ("counts", "runs"), [((1, 2, 3), [1, 1, 3, 1, 2]), ((1, 2), [1, 1, 2, 1, 2]), ((2,), [2] * 5)]
)
def test_that_the_first_restart_has_as_many_processes_as_the_run_without_moves(
    counts: tuple[int, ...], runs: list[int]
) -> None:
    stops = plan_stops(script_run([*EPOCH_0, *EPOCH_1]))
    chosen = zip(process_counts(counts, stops, repeats_first=True), stops, strict=False)
    assert [count for count, _ in chosen] == runs


def test_that_memory_runs_out_once_in_a_run_that_trains_in_the_observed_epochs() -> None:
    def planned(*events: dict[str, Any]) -> tuple[int, int, int] | None:
        plan = plan_lack_of_memory(script_run([STEPPED, *events]))
        return None if plan is None else (plan[0], plan[1].epoch, plan[1].position)

    assert planned(*EPOCH_0, *EPOCH_1) == (4, 1, 15)
    assert planned(*EPOCH_0) == (1, 0, 15)
    assert planned(loop(length=1000), micro_batch(0, 30), micro_batch(30, 30)) == (2, 0, 50)
    assert planned() is None


def regroups_in_short(first_run: ScriptRun) -> list[tuple[str, int, int, int, tuple[int, ...]]]:
    return [
        (stop.moment.value, stop.epoch, stop.position, stop.num_processes, stop.leaves)
        for stop in plan_regroups(first_run, fewer=1, more=3)
    ]


def test_that_processes_join_and_leave_in_turn_in_mid_epoch_and_at_its_end() -> None:
    assert regroups_in_short(script_run([*EPOCH_0, *EPOCH_1])) == [
        ("step", 0, 6, 3, ()),
        ("step", 0, 13, 1, (0, 1)),
        ("epoch_end", 0, 0, 3, ()),
        ("step", 1, 10, 1, (0, 1)),
    ]
    unfinished = script_run([STEPPED, loop(length=1000), micro_batch(0, 30), micro_batch(30, 30)])
    assert regroups_in_short(unfinished) == [("step", 0, 20, 3, ()), ("step", 0, 40, 1, (0, 1))]
    assert regroups_in_short(script_run([])) == []


def test_that_regroups_are_between_the_two_largest_numbers_of_processes() -> None:
    assert sizes_of_regroups((1, 2, 3)) == (2, 3)
    assert sizes_of_regroups((4, 1)) == (1, 4)
    assert sizes_of_regroups((2, 2)) is None


def test_that_loops_without_steps_are_no_training() -> None:
    evaluated = [loop(), micro_batch(0, 20), loop_end(steps=0)]
    assert training_loops(script_run([STEPPED, *evaluated])) == []
    assert training_loops(script_run([*evaluated, micro_batch(0, 5, epoch=1)])) == []
    assert plan_stops(script_run(evaluated)) == []


def test_that_a_run_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    stop = Stop(
        moment=StopMoment.STEP, method=StopMethod.SIGTERM, epoch=3, loader="loader-0", loop=1, position=7
    )
    regroup = replace(stop, method=StopMethod.REGROUP, num_processes=2, leaves=(0, 1))
    for plan in (
        RunPlan(folder=tmp_path, varies_batch=True, stop=stop),
        RunPlan(folder=tmp_path, varies_batch=False, stop=None, regroups=(stop, regroup)),
        RunPlan(
            folder=tmp_path,
            varies_batch=False,
            stop=None,
            out_of_memory=stop,
            repeats=tmp_path,
            reverses=True,
        ),
    ):
        plan.write(tmp_path / "plan.json")
        assert read_run_plan({"POLLUX_REHEARSAL": str(tmp_path / "plan.json")}) == plan
    assert read_run_plan({}) is None
