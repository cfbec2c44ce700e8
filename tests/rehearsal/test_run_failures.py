from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH
from pollux_slurm.rehearsal.all_findings import all_findings
from pollux_slurm.rehearsal.findings import Level
from pollux_slurm.rehearsal.result import as_text, exit_code, must_change
from pollux_slurm.rehearsal.run_failures import caught_errors, failures, never_trained
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun, outcome_of
from tests.rehearsal.builders import (
    CHECKPOINT,
    FIRST_STEP,
    MIDDLE,
    START,
    error,
    loop,
    micro_batch,
    rehearsal_runs,
    script_run,
    snapshot,
)


def failed(*events: list[dict[str, Any]]) -> ScriptRun:
    return script_run(*events, outcome=RunOutcome.FAILED, exit_code=1)


@pytest.mark.parametrize(
    ("code", "kinds", "got_sigterm", "outcome"),
    [
        (143, {"stop"}, False, RunOutcome.STOPPED),
        (137, {"stop", "killed"}, False, RunOutcome.STOPPED),
        (137, {"stop"}, True, RunOutcome.STOPPED),
        (0, {"stop"}, False, RunOutcome.STOPPED),
        (0, {"stop", "finished"}, False, RunOutcome.FINISHED),
        (0, set(), False, RunOutcome.FINISHED),
        (143, set(), True, RunOutcome.OUT_OF_TIME),
        (137, set(), True, RunOutcome.OUT_OF_TIME),
        (137, set(), False, RunOutcome.FAILED),
        (1, {"stop"}, True, RunOutcome.FAILED),
    ],
)
def test_that_theoutcome_of_follows_from_exit_code_events_and_sigterm(
    code: int, kinds: set[str], got_sigterm: bool, outcome: RunOutcome
) -> None:
    assert outcome_of(code, kinds, got_sigterm=got_sigterm) is outcome


def test_that_an_error_after_a_move_is_a_finding_with_its_line_and_cure() -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], [], stop=MIDDLE)
    (finding,) = failures([[before, failed([error("NameError", "name 'loss' is not defined")])]])
    assert finding.level is Level.CHANGE
    assert finding.text == (
        "After a move in mid-epoch (2 → 1 processes) the script failed at train.py:41: NameError: name "
        "'loss' is not defined."
    )
    assert "The script's own variables are reset after a move" in finding.cure
    assert finding.details.startswith("Traceback")


@pytest.mark.parametrize(
    "raised",
    [
        error("ValueError", "too late", has_stepped=True),
        error("TrainingError", "the replicas' weights differ: write ..."),
    ],
)
def test_that_the_cure_for_reset_variables_is_given_only_where_they_explain_the_error(
    raised: dict[str, Any],
) -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], stop=MIDDLE)
    (finding,) = failures([[before, failed([raised])]])
    assert finding.cure == ""


def test_that_an_error_without_a_move_is_not_explained_by_moves() -> None:
    (finding,) = failures([[failed([error("KeyError", "'data'")])]])
    assert finding.text == "Without any move the script failed at train.py:41: KeyError: 'data'."
    assert finding.cure == ""


def test_that_of_several_ranks_errors_the_cause_is_reported() -> None:
    lost = error("RuntimeError", "Connection closed by peer [127.0.0.1]", time=1.0)
    (finding,) = failures([[failed([lost], [error("ValueError", "the cause", time=2.0)])]])
    assert "ValueError: the cause" in finding.text


def test_that_a_line_that_fails_after_several_moves_is_one_finding() -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], stop=MIDDLE)
    after = failed([error("NameError", "name 'loss' is not defined")])
    other = failed([error("KeyError", "'data'")])
    found = list(failures([[before, after], [before, after], [before, other]]))
    assert [finding.text.partition("41: ")[2] for finding in found] == [
        "NameError: name 'loss' is not defined.",
        "KeyError: 'data'.",
    ]


def test_that_a_script_without_a_step_or_without_the_library_must_change() -> None:
    (finding,) = never_trained(script_run([]))
    assert finding.kind == "no_session"
    (finding,) = never_trained(script_run([START, loop(), micro_batch(0, 10)]))
    assert finding.kind == "never_stepped"
    assert not list(never_trained(script_run([START, FIRST_STEP, loop(), micro_batch(0, 10)])))


STEPPED = [START, FIRST_STEP, loop(), micro_batch(0, 10), snapshot("epoch")]


def test_that_a_rehearsal_without_a_move_does_not_pass() -> None:
    kinds = {finding.kind: finding.level for finding in all_findings(rehearsal_runs(script_run(STEPPED)))}
    assert kinds["no_move"] is Level.CHANGE


@pytest.mark.parametrize("events", [[], STEPPED])
def test_that_a_rehearsal_whose_time_was_up_does_not_blame_the_script(events: list[dict[str, Any]]) -> None:
    runs = rehearsal_runs(script_run(events, outcome=RunOutcome.OUT_OF_TIME))
    findings = all_findings(runs)
    assert {finding.kind: finding.level for finding in findings}["no_move"] is Level.LOOK
    assert "Use --time" in {finding.kind: finding.cure for finding in findings}["no_move"]
    assert not must_change(findings)
    assert exit_code(runs, findings) == 3


def raised(*events: dict[str, Any], outcome: RunOutcome = RunOutcome.FAILED) -> ScriptRun:
    return script_run([{"kind": "out_of_memory"}, *events], outcome=outcome, exit_code=1)


def test_that_a_script_that_does_not_survive_a_lack_of_memory_has_the_cure() -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], stop=MIDDLE)
    (finding,) = failures([[before, raised(error("OutOfMemoryError", "out of memory"))]])
    assert (finding.level, finding.kind) == (Level.CHANGE, "out_of_memory")
    assert "memory_guard()" in finding.cure
    started = replace(raised(), outcome=RunOutcome.OUT_OF_MEMORY)
    refused = failed([error("TrainingError", "leave gradient accumulation to the loader")])
    (finding,) = failures([[before, started, refused]])
    assert finding.text.startswith(
        "After an OutOfMemoryError, with smaller micro-batches, the script failed at train.py:41: Training"
    )


def test_that_a_script_that_catches_a_lack_of_memory_is_told_how() -> None:
    caught = raised(outcome=RunOutcome.FINISHED)
    (finding,) = caught_errors([caught])
    assert (finding.level, finding.kind) == (Level.LOOK, "out_of_memory_caught")
    assert not list(caught_errors([raised(), replace(raised(), outcome=RunOutcome.OUT_OF_MEMORY)]))


def test_that_layers_whose_result_depends_on_the_micro_batch_are_noted() -> None:
    events = [START, snapshot("epoch", layers=("BatchNorm2d", "Dropout", "Linear"))]
    found = {finding.kind: finding for finding in all_findings(rehearsal_runs(script_run(events)))}
    assert found["batch_statistics"].level is Level.NOTE
    assert found["batch_statistics"].text.startswith(
        "BatchNorm2d: each process normalizes by its own micro-batch"
    )
    assert found["randomness"].level is Level.NOTE


def test_that_the_result_names_command_finding_cure_and_folder() -> None:
    runs = rehearsal_runs(script_run([START]))
    assert [line.strip() for line in as_text(runs, all_findings(runs)).split("\n")] == [
        "",
        "Rehearsed python train.py in 12 s.",
        "",
        "MUST CHANGE: No wrapped optimizer made a step in a loop over an AdaptiveDataLoader.",
        "Cure: Train the model that AdaptiveDataParallel returns, with the optimizer that was passed to it,",
        "in a loop over an AdaptiveDataLoader, without another wrapper around it.",
        "See docs/user.md, “What changes in your script”.",
        "",
        "The script's output: /tmp/rehearsal",
        "Something must change.",
    ]


def test_that_each_place_in_the_guide_that_findings_name_is_there() -> None:
    from pollux_slurm.rehearsal import findings

    root = Path(__file__).resolve().parents[2]
    places = [findings.VARIABLES, findings.LOCAL, findings.CHANGES, findings.STATES, findings.DATA]
    places += [findings.AVERAGES, findings.MEMORY]
    for place in places:
        file, _, heading = place.partition(", ")
        assert f"## {heading.strip('“”')}\n" in (root / file).read_text(encoding="utf-8"), place


@pytest.mark.parametrize(("epoch", "is_said"), [(0, True), (NO_EPOCH, False)])
def test_that_an_epoch_that_is_too_long_is_said_where_the_script_has_epochs(
    epoch: int, is_said: bool
) -> None:
    first = [START, FIRST_STEP, loop(epoch=epoch), micro_batch(0, 10, epoch=epoch)]
    runs = [script_run(first), script_run(first, stop=MIDDLE), script_run(first)]
    kinds = [finding.kind for finding in all_findings(rehearsal_runs(*runs))]
    assert ("long_epoch" in kinds) is is_said
