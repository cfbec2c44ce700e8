from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.findings import (
    IN_PLACE,
    NEWCOMERS,
    REQUEUE_ONLY,
    WORLD_SIZE,
    Finding,
    Level,
)
from pollux_slurm.rehearsal.in_place import (
    joins_that_waited,
    regroup_never_came,
    regroups_refused,
    stale_variables,
)
from pollux_slurm.rehearsal.lost_state import wrong_samples
from pollux_slurm.rehearsal.result import as_json, as_text, must_change
from pollux_slurm.rehearsal.run_failures import failed_leavers, failures
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun
from tests.rehearsal.builders import (
    FIRST_STEP,
    START,
    error,
    loop,
    loop_end,
    micro_batch,
    rehearsal_runs,
    script_run,
    snapshot,
)

JOIN = Stop(moment=StopMoment.STEP, method=StopMethod.REGROUP, epoch=0, num_processes=2)
LEAVE = Stop(moment=StopMoment.EPOCH_END, method=StopMethod.REGROUP, epoch=0, num_processes=1, leaves=(0,))
ASKS = {**START, "in_place": True}
STEPPED = [FIRST_STEP, loop(), micro_batch(0, 10), micro_batch(10, 10), loop_end()]


ROOT = Path(__file__).resolve().parents[2]


def regrouped(*events: list[dict[str, Any]], by: Stop) -> ScriptRun:
    """Return a run that went on with other processes."""
    return replace(script_run(*events, stop=by), outcome=RunOutcome.REGROUPED)


def of_variables(runs: list[tuple[int, dict[str, str]]]) -> list[ScriptRun]:
    """Return a run of so many processes for each, whose processes have these variables."""
    return [script_run(*[[snapshot("epoch", variables=values)]] * number) for number, values in runs]


def test_that_samples_count_once_over_a_regroup() -> None:
    before = regrouped([loop(), micro_batch(0, 10)], by=JOIN)
    after = script_run([micro_batch(10, 5), loop_end()], [micro_batch(15, 5)])
    assert list(wrong_samples([[before, after]])) == []
    late = script_run([micro_batch(12, 4), loop_end()], [micro_batch(16, 4)])
    (finding,) = wrong_samples([[before, late]], moves="moves in place")
    assert finding.text == "Over the moves in place 2 samples of epoch 0 were missed."


def test_that_a_script_that_does_not_ask_is_told_how() -> None:
    (finding,) = regroups_refused(rehearsal_runs(script_run([START, *STEPPED])))
    assert (finding.level, finding.kind) == (Level.NOTE, "requeue_only")
    assert "init_process_group(in_place=True)" in finding.text


def test_that_a_framework_that_cannot_be_moved_in_place_is_not_told_to_ask() -> None:
    forbids = {"kind": "cannot_regroup", "reason": "Lightning owns its process group"}
    (finding,) = regroups_refused(rehearsal_runs(script_run([START, forbids, *STEPPED])))
    assert finding.text.endswith("starts it anew: Lightning owns its process group.")
    assert finding.level is Level.NOTE


def test_that_a_refused_regroup_has_the_reason() -> None:
    refused = {"kind": "regroup_refused", "reason": "it keeps world_size = 1 in a variable"}
    rehearsed = rehearsal_runs(
        script_run([ASKS, *STEPPED]), in_place=[script_run([refused])], processes=(1, 2)
    )
    (finding,) = regroups_refused(rehearsed)
    assert finding.level is Level.LOOK
    assert finding.text.endswith("so it moves by a requeue: it keeps world_size = 1 in a variable.")


def test_that_runs_of_one_size_only_are_no_rehearsal_of_regroups() -> None:
    first_run = script_run([ASKS, *STEPPED])
    (finding,) = regroups_refused(rehearsal_runs(first_run, processes=(2, 2)))
    assert finding.kind == "no_regroup"
    assert not list(regroups_refused(rehearsal_runs(first_run, processes=(1, 2))))


def test_that_a_join_that_waited_for_the_end_of_the_epoch_has_the_reason() -> None:
    waits = {"kind": "regroup_waits", "reason": "a loop of this epoch took no step"}
    (finding,) = joins_that_waited([regrouped([waits], by=JOIN), script_run([])])
    assert finding.text.endswith("waited for the end of the epoch: a loop of this epoch took no step.")
    assert not list(joins_that_waited([regrouped([], by=JOIN), script_run([])]))


@pytest.mark.parametrize(
    ("events", "outcome", "words"),
    [
        (["regroup_asked"], RunOutcome.OUT_OF_TIME, "were not ready before the time was up"),
        (["regroup_asked", "newcomers_ready"], RunOutcome.FINISHED, "ended before processes that waited"),
    ],
)
def test_that_processes_that_never_joined_are_a_finding(
    events: list[str], outcome: RunOutcome, words: str
) -> None:
    run = script_run([{"kind": kind} for kind in events], outcome=outcome)
    (finding,) = regroup_never_came(rehearsal_runs(script_run([ASKS]), in_place=[run]))
    assert words in finding.text


@pytest.mark.parametrize("kind", ["regroup_refused", "regroup_failed", "another"])
def test_that_what_is_known_of_a_regroup_is_not_told_twice(kind: str) -> None:
    asked = [] if kind == "another" else [{"kind": "regroup_asked"}]
    run = script_run([*asked, {"kind": kind}])
    assert not list(regroup_never_came(rehearsal_runs(script_run([ASKS]), in_place=[run])))


def test_that_a_process_that_failed_before_it_joined_has_its_own_error() -> None:
    asked = {"kind": "regroup_failed", "reason": "a new process has ended with exit code 1"}
    before = script_run([asked], stop=JOIN)
    after = script_run([], [error("FileExistsError", "results")], outcome=RunOutcome.FAILED, exit_code=143)
    (finding,) = failures([[before, after]])
    assert (finding.level, finding.kind) == (Level.CHANGE, "did_not_join")
    assert finding.text == (
        "A process that was to join in mid-epoch (1 → 2 processes) failed, while the others trained on, at "
        "train.py:41: FileExistsError: results."
    )
    assert "is_joining() is true" in finding.cure
    # One that ended without an error.
    (finding,) = failures([[before, script_run([], [], outcome=RunOutcome.FAILED)]])
    assert finding.text == (
        "No process joined in mid-epoch (1 → 2 processes): a new process has ended with exit code 1."
    )


def test_that_an_error_after_a_regroup_names_what_the_processes_keep() -> None:
    before = regrouped([], by=JOIN)
    after = script_run([error("IndexError", "out of range")], [], outcome=RunOutcome.FAILED, exit_code=1)
    (finding,) = failures([[before, after]])
    assert finding.text == (
        "After a move in place, in mid-epoch (1 → 2 processes) the script failed at train.py:41: IndexError: "
        "out of range."
    )
    assert "pollux_slurm.torch.on_regroup" in finding.cure


def test_that_a_process_that_fails_as_it_leaves_is_found() -> None:
    left = [{"kind": "left"}, error("ValueError", "no process group")]
    (finding,) = failed_leavers([regrouped(left, [], by=LEAVE), script_run([])])
    assert finding.level is Level.LOOK
    assert finding.text == (
        "A process that left at an epoch's end (2 → 1 processes) failed at train.py:41: ValueError: no "
        "process group. The others trained on."
    )
    assert not list(failed_leavers([regrouped([{"kind": "left"}], [], by=LEAVE), script_run([])]))


def stale(kept: dict[str, str]) -> list[Finding]:
    """Return what is found of a variable of a process of one, after another has joined."""
    one, two = {"main:share": "1", "main:name": "'a'"}, {"main:share": "0.5", "main:name": "'a'"}
    stopped = of_variables([(1, one), (2, two), (1, one)])
    before = regrouped([snapshot("epoch", variables=one)], by=JOIN)
    joined = [snapshot("epoch", position=10, variables=two)]
    after = script_run([snapshot("epoch", position=10, variables=kept)], joined)
    return list(stale_variables(stopped, [before, after]))


def test_that_a_variable_that_keeps_the_former_number_of_processes_is_found() -> None:
    (finding,) = stale({"main:share": "1", "main:name": "'a'"})
    assert finding.level is Level.LOOK
    assert "after some joined or left: `share` (1 as before, where a start with 2 processes has 0.5" in (
        finding.text
    )
    assert "name" not in finding.text
    assert not stale({"main:share": "0.5", "main:name": "'a'"})


def test_that_a_kept_rank_is_found_where_rank_0_leaves() -> None:
    stopped = [
        script_run(*[[snapshot("epoch", variables={"main:me": str(rank)})] for rank in range(number)])
        for number in (1, 2)
    ]
    before = regrouped([], [], by=LEAVE)
    for kept, number in (("1", 1), ("0", 0)):
        after = script_run([snapshot("epoch", variables={"main:me": kept})])
        assert len(list(stale_variables(stopped, [before, after]))) == number


def test_that_a_variable_that_training_changes_is_not_stale() -> None:
    stopped = of_variables([(1, {"main:epoch": "0"}), (1, {"main:epoch": "1"}), (2, {"main:epoch": "1"})])
    before = regrouped([snapshot("epoch", variables={"main:epoch": "0"})], by=JOIN)
    after = script_run([snapshot("epoch", variables={"main:epoch": "0"})], [])
    assert not list(stale_variables(stopped, [before, after]))


@pytest.mark.parametrize("guide", [IN_PLACE, NEWCOMERS, REQUEUE_ONLY, WORLD_SIZE])
def test_that_a_finding_points_at_a_section_of_the_page_on_moves(guide: str) -> None:
    file, _, heading = guide.partition(", ")
    assert f"\n## {heading.strip('“”')}\n" in (ROOT / file).read_text(encoding="utf-8")


def test_that_the_result_shows_the_regroups_and_their_times() -> None:
    times = {"kind": "begun", "standstill_s": 0.25}
    ready = {"kind": "newcomers_ready", "after_s": 4.0}
    at_once = {"kind": "newcomers_ready", "after_s": 0.0}
    in_place = [
        regrouped([ready], by=JOIN),
        regrouped([times, at_once], [], by=LEAVE),
        script_run([times]),
    ]
    rehearsed = rehearsal_runs(script_run([ASKS, *STEPPED]), in_place=in_place, processes=(1, 2))
    text = as_text(rehearsed, [])
    assert "  ok      moved in mid-epoch, in place, from 1 to 2 processes\n" in text
    assert "  ok      moved at an epoch's end, in place, from 2 to 1 processes, without rank 0\n" in text
    assert "In place, training stands still for 0.2 s here; new processes are ready after 4.0 s" in text
    result = as_json(rehearsed, [])
    assert [(move["by"], move["leaves"]) for move in result["moves"]] == [("regroup", []), ("regroup", [0])]
    assert not must_change([])
