from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.completeness import is_time_too_short, kinds_not_made, time_needed
from pollux_slurm.rehearsal.findings import Finding, Level
from pollux_slurm.rehearsal.rehearse import RehearsalRuns
from pollux_slurm.rehearsal.result import as_json, as_text, exit_code
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun
from tests.rehearsal.builders import (
    EPOCH_END,
    FIRST_STEP,
    MIDDLE,
    START,
    loop,
    loop_end,
    micro_batch,
    rehearsal_runs,
    script_run,
)

AFTER_LOOP = Stop(moment=StopMoment.AFTER_LOOP, method=StopMethod.SIGTERM, epoch=0)
EPOCH: list[dict[str, Any]] = [
    *(START, FIRST_STEP, loop(), micro_batch(0, 10), micro_batch(10, 10), loop_end()),
    {"kind": "epoch_end", "epoch": 0},
]
OUT_OF_MEMORY = {"kind": "out_of_memory"}


def stopped(stop: Stop, *, processes: int = 1) -> ScriptRun:
    return script_run([FIRST_STEP], *[[]] * (processes - 1), stop=stop)


def out_of_memory() -> ScriptRun:
    stop = replace(MIDDLE, method=StopMethod.OUT_OF_MEMORY)
    return replace(script_run([FIRST_STEP, OUT_OF_MEMORY], stop=stop), outcome=RunOutcome.OUT_OF_MEMORY)


ALL = [stopped(MIDDLE), stopped(AFTER_LOOP), stopped(EPOCH_END, processes=2), out_of_memory()]


def rehearsed(*moved: ScriptRun, events: list[dict[str, Any]] = EPOCH, **more: Any) -> RehearsalRuns:
    return rehearsal_runs(script_run(events), *moved, script_run([FIRST_STEP]), **more)


def test_that_nothing_is_missing_after_every_kind_of_move() -> None:
    runs = rehearsed(*ALL)
    assert kinds_not_made(runs) == []
    assert not is_time_too_short(runs)
    assert as_text(runs, []).endswith("\nNothing must change.")
    assert exit_code(runs, []) == 0


@pytest.mark.parametrize(
    ("left_out", "kind"),
    [
        (1, "between an epoch's last step and its end"),
        (2, "at an epoch's end or to another number of processes"),
        (3, "after an OutOfMemoryError"),
    ],
)
def test_that_the_verdict_names_the_kind_of_move_that_was_not_made(left_out: int, kind: str) -> None:
    runs = rehearsed(*[run for number, run in enumerate(ALL) if number != left_out])
    assert as_text(runs, []).endswith(f"\nNothing must change in the moves that were made. None was {kind}.")


def test_that_what_the_script_asks_for_is_expected() -> None:
    asks = [{**START, "in_place": True}, {"kind": "autoscale", "max_batch_size": 40}, *EPOCH[1:]]
    runs = rehearsed(*ALL, events=asks, processes=(1, 2))
    assert kinds_not_made(runs) == ["with a varying batch", "in place"]
    varying = [script_run([FIRST_STEP], stop=MIDDLE, varies_batch=True) for _ in range(2)]
    joined = [replace(stopped(MIDDLE), stop=replace(MIDDLE, method=StopMethod.REGROUP)), stopped(EPOCH_END)]
    made = replace(runs, varying_batch_runs=tuple(varying), in_place_runs=tuple(joined))
    assert kinds_not_made(made) == []
    refused = replace(runs, in_place_runs=(script_run([{"kind": "regroup_refused", "reason": "a"}]),))
    assert kinds_not_made(refused) == ["with a varying batch"]


def test_that_an_endless_stream_without_epochs_has_no_end_to_be_moved_at() -> None:
    endless = [START, FIRST_STEP, loop(length=None, epoch=-1), micro_batch(0, 10, epoch=-1)]
    runs = rehearsed(ALL[0], stopped(MIDDLE, processes=2), ALL[3], events=endless)
    assert kinds_not_made(runs) == []


def test_that_one_example_for_each_process_cannot_run_out_of_memory() -> None:
    single = [{**event, "size": 1} if event["kind"] == "micro_batch" else event for event in EPOCH]
    assert kinds_not_made(rehearsed(*ALL[:3], events=single)) == []


def test_that_too_short_a_time_is_no_verdict_and_names_the_time_that_is_enough() -> None:
    runs = rehearsed(*ALL[:2], skipped=2)
    assert is_time_too_short(runs)
    assert exit_code(runs, []) == 3
    # 4 runs of a second took less than the 5 minutes that were not enough.
    assert time_needed(runs) == "7m"
    assert as_text(runs, []).endswith(
        "\nThe time was too short: no move was made at an epoch's end or to another number of processes or "
        "after an OutOfMemoryError. Rehearse with --time 7m."
    )
    assert as_json(runs, [])["time_needed"] == "7m"
    fault = Finding(level=Level.CHANGE, kind="weights", text="They differ.")
    assert exit_code(runs, [fault]) == 1


def test_that_the_time_follows_from_how_far_the_first_run_came() -> None:
    # A start of 62 s, and no step in 90 s: the script takes as long to start each time.
    first = replace(script_run([], outcome=RunOutcome.OUT_OF_TIME), wall_s=90.0)
    assert time_needed(rehearsal_runs(first)) == "59m"
    # A fiftieth of an epoch in 20 s, after a start of 10 s: two epochs are 2,010 s, and 0.3 of the time.
    begun = [START, {**FIRST_STEP, "age_s": 10.0}, loop(length=1000), micro_batch(0, 20)]
    first = replace(script_run(begun, outcome=RunOutcome.OUT_OF_TIME), wall_s=30.0)
    assert time_needed(rehearsal_runs(first)) == "3h"
