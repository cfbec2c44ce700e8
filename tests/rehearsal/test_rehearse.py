"""`pollux rehearse` as a user runs it: on scripts with a fault each, and on scripts without."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.rehearsal_protocol import RUN_PLAN_VARIABLE, RunPlan
from tests.waiting import wait_until

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parent / "scripts"
MOVED_SCRIPTS = Path(__file__).parent / "moved_scripts"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
START = "from pollux_slurm.cli.app import main; main()"
TIMEOUT_S = 900.0


def run(
    directory: Path, *arguments: str, processes: str = "1,2", time: str = "1h"
) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX_", "SLURM_"))}
    return subprocess.run(
        [sys.executable, "-c", START, "rehearse", f"--time={time}", f"--processes={processes}", *arguments],
        env={**env, "TMPDIR": str(directory)},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def rehearse(directory: Path, script: Path, *arguments: str, processes: str = "1,2") -> dict[str, Any]:
    """Return the result of a rehearsal; its exit code is that of what it found."""
    command = ("--json", "--", sys.executable, str(script), *arguments)
    done = run(directory, *command, processes=processes)
    assert done.returncode in (0, 1), done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == int(result["must_change"])
    return result


def of_level(result: dict[str, Any], level: str) -> list[dict[str, Any]]:
    return [finding for finding in result["findings"] if finding["level"] == level]


@pytest.mark.full
def test_that_variables_of_a_scripts_own_and_a_state_in_no_checkpoint_are_found(tmp_path: Path) -> None:
    done = run(tmp_path, "--", sys.executable, str(SCRIPTS / "own_variables.py"))
    assert done.returncode == 1, done.stderr
    said = " ".join(done.stdout.split())
    assert (
        "After a move between an epoch's last step and its end (1 → 2 processes) the script failed at "
        "own_variables.py:24: ZeroDivisionError: division by zero."
    ) in said
    assert "The script's own variables are reset after a move" in said
    assert "`average` (AveragedModel) is not in the checkpoint" in said
    assert re.search(r"`n` \([1-9][0-9]* before a move in mid-epoch, 0 after it\)", said)
    assert done.stdout.endswith("Something must change.\n")
    # A line for each run.
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "1 process, first run, without a move",
        "1 process, from the beginning, to be moved in mid-epoch",
        "1 process, after the move in mid-epoch",
        "2 processes, after the move between an epoch's last step and its end",
    ]
    (folder,) = tmp_path.glob("pollux-rehearsal-*")
    assert str(folder) in done.stdout
    assert "ZeroDivisionError" in (folder / "fixed-batch" / "run-2" / "output.log").read_text()
    assert not list(folder.glob("*/job")), "checkpoints are left"


@pytest.mark.parametrize(
    ("script", "kind", "words"),
    [
        ("never_steps.py", {"never_stepped", "failed"}, "step"),
        pytest.param("counted.py", {"failed"}, "iter", marks=pytest.mark.full),
    ],
)
def test_that_a_script_with_a_fault_at_any_size_has_a_finding(
    tmp_path: Path, script: str, kind: set[str], words: str
) -> None:
    findings = of_level(rehearse(tmp_path, SCRIPTS / script), "change")
    assert findings
    assert {finding["kind"] for finding in findings} <= kind
    assert words in findings[0]["text"]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("inner_forward.py", marks=pytest.mark.full),
        pytest.param("second_optimizer.py", marks=pytest.mark.full),
        pytest.param("double_wrap.py", marks=pytest.mark.full),
    ],
)
def test_that_a_script_whose_replicas_drift_apart_is_found(tmp_path: Path, script: str) -> None:
    findings = of_level(rehearse(tmp_path, SCRIPTS / script, processes="2"), "change")
    assert {finding["kind"] for finding in findings} <= {"failed", "replicas_differ"}
    assert findings


@pytest.mark.full
def test_that_sums_of_a_validation_that_are_never_combined_are_found(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPTS / "own_sums.py", processes="2")
    (finding,) = of_level(result, "look")
    assert finding["kind"] == "unshared_sums"
    assert "After the loop over `held_out`" in finding["text"]
    assert "`count` (60 of 120 samples in process 0)" in finding["text"]
    assert not result["must_change"], result["findings"]


@pytest.mark.full
def test_that_averages_over_micro_batches_are_found_and_those_over_steps_are_not(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPTS / "average_over_micro_batches.py")
    (finding,) = of_level(result, "change")
    assert finding["text"].startswith("An average of the weights (`average` and `shadow`) is also updated")


def events_of(script: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a script once in `folder`, as a rehearsal does, without a move. Return its events."""
    plan = folder / "plan.json"
    RunPlan(folder=folder, varies_batch=False, stop=None).write(plan)
    subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, RUN_PLAN_VARIABLE: str(plan)},
        cwd=folder,
        timeout=TIMEOUT_S,
        check=True,
    )
    return [json.loads(line) for line in (folder / "events-0-0.jsonl").read_text().splitlines()]


def test_that_what_the_log_says_of_split_batches_is_an_event_once(tmp_path: Path) -> None:
    events = events_of(MOVED_SCRIPTS / "split.py", tmp_path)
    texts = [event["text"] for event in events if event["kind"] == "depends_on_shape"]
    assert len(texts) == 2
    assert texts[0].startswith("'model-1' (Linear) is trained through again")
    assert texts[1].startswith("the forward of 'model-0' (Sequential) writes the buffers")
    layers = {name for event in events if event["kind"] == "snapshot" for name in event["layers"]}
    assert "Linear" in layers
    assert "Dropout" not in layers, "it drops nothing"


@pytest.mark.full
def test_that_a_loop_that_a_script_leaves_has_an_event_with_its_steps(tmp_path: Path) -> None:
    events = events_of(SCRIPTS / "leaves_its_loop.py", tmp_path)
    ends = [event for event in events if event["kind"] in ("loop_end", "loop_left")]
    # Each step before the one at the position where it leaves, and that one.
    assert [(event["kind"], event["epoch"], event["steps"]) for event in ends] == [
        ("loop_left", -1, 0),
        ("loop_left", 0, 7),
        ("loop_left", 1, 14),
    ]


@pytest.mark.full
def test_that_epochs_that_a_script_counts_itself_are_found(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPTS / "own_epochs.py")
    (finding,) = of_level(result, "change")
    assert finding["kind"] == "own_epochs"
    assert "in mid-epoch" in [move["where"] for move in result["moves"]]


@pytest.mark.full
def test_that_noise_of_a_scripts_own_is_not_called_augmentation(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPTS / "noise.py")
    (finding,) = [finding for finding in result["findings"] if finding["kind"] == "weights"]
    assert finding["level"] == "note"
    assert "Possible reasons: random numbers that the script draws while it trains." in finding["text"]


@pytest.mark.full
def test_that_a_schedule_that_the_library_was_not_given_is_found(tmp_path: Path) -> None:
    findings = of_level(rehearse(tmp_path, SCRIPTS / "own_schedule.py"), "change")
    assert any("schedule" in finding["text"] for finding in findings), findings


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (
            ["random_training.py", "own_rate"],
            "rates",
            "The learning rate (model-0, optimizer 0, group 0) was",
        ),
        (
            ["random_training.py", "own_weight"],
            "weights",
            "After a stop and a restart with as many processes",
        ),
        (["summed_loss.py"], "weights", "After a move in mid-epoch (1 → 2 processes) the weights of model-0"),
    ],
)
def test_that_a_script_that_moves_change_is_convicted(
    tmp_path: Path, arguments: list[str], kind: str, words: str
) -> None:
    script, *fault = arguments
    (finding,) = of_level(rehearse(tmp_path, MOVED_SCRIPTS / script, *fault), "change")
    assert finding["kind"] == kind
    assert finding["text"].startswith(words)


@pytest.mark.full
def test_that_batchnorm_dropout_augmentation_in_workers_and_a_schedule_are_accepted(tmp_path: Path) -> None:
    result = rehearse(tmp_path, MOVED_SCRIPTS / "random_training.py")
    assert not result["must_change"], result["findings"]
    (finding,) = [finding for finding in result["findings"] if finding["kind"] == "weights"]
    assert finding["level"] == "note"
    assert "BatchNorm1d, Dropout and random numbers that the loader's workers draw" in finding["text"]


@pytest.mark.full
def test_that_too_short_a_time_has_an_exit_code_of_its_own_and_the_time_that_is_enough(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "--", sys.executable, str(SCRIPTS / "correct.py"), "--epochs=50", time="1s")
    assert done.returncode == 3, done.stderr
    assert "The time was too short: no move was made in mid-epoch" in done.stdout
    assert re.search(r"Rehearse with --time [0-9]+m\.\n$", done.stdout)


@pytest.mark.full
def test_that_a_correct_script_passes_with_a_fixed_and_a_varying_batch(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPTS / "correct.py", "--epochs=50", processes="1,2,3")
    assert not result["must_change"], result["findings"]
    assert [finding["kind"] for finding in result["findings"]] == ["requeue_only"]
    assert all(move["ok"] for move in result["moves"])
    assert [(move["where"], move["by"], move["processes"]) for move in result["moves"]] == [
        ("in mid-epoch", "request", [1, 1]),
        ("between an epoch's last step and its end", "sigterm", [1, 3]),
        ("at an epoch's end", "request", [3, 1]),
        ("in mid-epoch", "sigterm", [1, 2]),
        ("in mid-epoch", "out_of_memory", [2, 2]),
        ("in mid-epoch", "request", [2, 3]),
        ("at an epoch's end", "request", [3, 1]),
        ("in mid-epoch", "sigterm", [1, 2]),
    ]
    assert [move["batch_varies"] for move in result["moves"]] == [False] * 5 + [True] * 3
    assert (result["not_made"], result["time_needed"]) == ([], None)
    assert set(result["move_times"]) == {"save_s", "end_s", "import_s", "restore_s", "first_step_s"}


@pytest.mark.full
@pytest.mark.parametrize(("example", "regroups"), [("digits", 4), ("charlm", 4), ("trackers", 0)])
def test_that_the_examples_pass(tmp_path: Path, example: str, regroups: int) -> None:
    result = rehearse(tmp_path, EXAMPLES / example / "train.py")
    assert not result["must_change"], result["findings"]
    assert all(move["ok"] for move in result["moves"])
    assert len(result["moves"]) == 8 + regroups
    assert not result["not_made"]
    assert sum(move["by"] == "regroup" for move in result["moves"]) == regroups


STUBBORN = """
import signal, subprocess, sys, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], process_group=0)
else:
    print("begun", flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_that_an_interrupt_leaves_no_process_and_no_checkpoint(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "train.py"
    script.write_text(STUBBORN)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", START, "rehearse", "--", sys.executable, str(script)]
    rehearsal = subprocess.Popen(
        command,
        env=env,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # Under nohup the tests ignore SIGHUP, and what they start would, too.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        wait_until(lambda: has_begun(tmp_path), timeout_s=300, what="the script to run")
        rehearsal.send_signal(number)
        _, said = rehearsal.communicate(timeout=300)
        # They are gone before the command is.
        assert not running(str(script))
    finally:
        rehearsal.kill()
        end(running(str(script)))
    assert rehearsal.returncode == 128 + number
    assert said.endswith(f"pollux: interrupted by {number.name}\n")
    assert not list(tmp_path.glob("pollux-rehearsal-*/*/job"))


def test_that_the_processes_end_with_a_rehearsal_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time\nprint('begun', flush=True)\ntime.sleep(3600)\n")
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", START, "rehearse", "--", sys.executable, str(script)]
    rehearsal = subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: has_begun(tmp_path), timeout_s=300, what="the script to run")
        rehearsal.kill()
        rehearsal.wait()
        wait_until(lambda: not running(str(script)), timeout_s=300, what="the script's processes to end")
    finally:
        end(running(str(script)))


def has_begun(directory: Path) -> bool:
    return any("begun" in log.read_text() for log in directory.glob("pollux-rehearsal-*/*/*/output.log"))


def end(processes: list[str]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)


def running(argument: str) -> list[str]:
    """Return the processes with `argument` on their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "no command to rehearse"),
        (("--", "no-such-command"), "no-such-command: command not found"),
        (
            ("--", str(Path(sys.executable).with_name("pollux")), "run"),
            "give the command that follows `pollux run --`",
        ),
        (("--processes=0", "--", "true"), "--processes 0: write numbers from 1 to 64"),
        ((f"--processes={'9' * 5000}", "--", "true"), "write numbers from 1 to 64"),
        (("--time=3", "--", "true"), "'3' is not a duration"),
    ],
)
def test_that_an_invalid_command_is_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_that_a_script_without_the_library_must_change(tmp_path: Path) -> None:
    done = run(tmp_path, "--", sys.executable, "-c", "print('trained')")
    assert done.returncode == 1
    assert "without a call of pollux_slurm.torch.init_process_group()" in " ".join(done.stdout.split())
