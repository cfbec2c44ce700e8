"""How a script's process ends: by an error after SIGTERM, by a stop that it swallows, by other signals.

All scenarios are forks of one process that has imported torch, and end as scripts do.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.torch

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch
import torch._dynamo
import pollux_slurm.goodput
import pollux_slurm.torch as pt
from torch.utils.data import TensorDataset

torch.set_num_threads(1)
home, outcomes = Path(sys.argv[1]), {}
SCENARIOS = (
    "stopped", "own_error", "failing_state", "full_disk", "out_of_memory", "bare_except", "caught_error",
    "own_handler", "chained_handler", "earlier_handler", "handler_after", "usr1", "own_usr1", "left_by_break",
)
for name in SCENARIOS:
    pid = os.fork()
    if pid == 0:
        log = os.open(home / f"{name}.log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1), os.dup2(log, 2)
        break
    outcomes[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    print(json.dumps(outcomes))
    os._exit(0)


def mine(number, frame):
    print("my own handler", flush=True)
    if name == "chained_handler":
        ours(number, frame)
    elif name != "own_usr1":
        sys.exit(0)


class Mine(pt.State):
    def __init__(self): super().__init__("mine")
    def state_dict(self):
        if stopped:
            raise ValueError("my state cannot be saved")
        return {}
    def load_state_dict(self, state): pass


stopped = False
if name == "earlier_handler":
    signal.signal(signal.SIGTERM, mine)
pt.init_process_group(checkpoint_dir=home / name, checkpoint_interval_s=None)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
parallel = pt.AdaptiveDataParallel(model, optimizer)
loader = pt.AdaptiveDataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
if name == "failing_state":
    mine_too = Mine()
if name in ("own_handler", "chained_handler"):
    ours = signal.signal(signal.SIGTERM, mine)
if name == "own_usr1":
    signal.signal(signal.SIGUSR1, mine)


def train():
    global stopped
    num_steps = 0
    for epoch in pt.remaining_epochs_until(2):
        for (inputs,) in loader:
            optimizer.zero_grad()
            parallel(inputs).mean().backward()
            num_steps += 1
            at = 8 if name == "left_by_break" else 3
            if num_steps == at and name != "handler_after":
                stopped = True
                if name == "full_disk":
                    # A file is where the folder was.
                    (home / name / "checkpoints").rmdir()
                    (home / name / "checkpoints").write_text("")
                os.kill(os.getpid(), signal.SIGUSR1 if "usr1" in name else signal.SIGTERM)
                if name in ("own_error", "caught_error"):
                    raise ValueError("my own error")
                if name == "out_of_memory":
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            optimizer.step()
            if num_steps == 8 and name == "left_by_break":
                return


if name in ("bare_except", "caught_error"):
    try:
        train()
    except:
        print("caught")
    print("final model saved")
else:
    train()
if name == "handler_after":
    signal.signal(signal.SIGTERM, mine)
    os.kill(os.getpid(), signal.SIGTERM)
print("the end of the script")
"""


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, int]]:
    """The exit code of each scenario, its log, and how many checkpoints it has written."""
    home = tmp_path_factory.mktemp("ends")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(home)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {
        name: (code, (home / f"{name}.log").read_text(), len(list((home / name).glob("checkpoints/*.pt"))))
        for name, code in outcomes.items()
    }


def test_that_a_stop_writes_a_checkpoint_and_ends_with_its_code(
    ends: dict[str, tuple[int, str, int]],
) -> None:
    code, log, num_checkpoints = ends["stopped"]
    assert (code, num_checkpoints) == (143, 1)
    assert "stopped by SIGTERM" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("own_error", "ValueError: my own error"),
        ("failing_state", "ValueError: my state cannot be saved"),
        ("full_disk", "CheckpointError: the last checkpoint of this run was not written"),
    ],
)
def test_that_an_error_after_sigterm_is_shown_and_counts_more_than_the_stop(
    ends: dict[str, tuple[int, str, int]], scenario: str, error: str
) -> None:
    code, log, _ = ends[scenario]
    assert error in log
    assert code == 1


def test_that_a_lack_of_memory_after_sigterm_is_shown_and_ends_as_stopped(
    ends: dict[str, tuple[int, str, int]],
) -> None:
    """Code 1 would start the processes again, with smaller batches."""
    code, log, _ = ends["out_of_memory"]
    assert "OutOfMemoryError" in log
    assert code == 143


@pytest.mark.parametrize(("scenario", "num_checkpoints"), [("bare_except", 1), ("caught_error", 0)])
def test_that_a_script_that_swallows_its_stop_does_not_end_with_0(
    ends: dict[str, tuple[int, str, int]], scenario: str, num_checkpoints: int
) -> None:
    code, log, found = ends[scenario]
    assert "final model saved" in log
    assert (code, found) == (143, num_checkpoints)


def test_that_a_handler_set_after_ours_takes_no_checkpoint_away(
    ends: dict[str, tuple[int, str, int]],
) -> None:
    code, log, num_checkpoints = ends["own_handler"]
    assert (code, num_checkpoints) == (143, 1)
    assert "the script's own handler of SIGTERM (<string>, line " in log
    assert log.count("my own handler") == 1


def test_that_a_handler_that_calls_ours_does_its_work_without_a_line(
    ends: dict[str, tuple[int, str, int]],
) -> None:
    code, log, num_checkpoints = ends["chained_handler"]
    assert (code, num_checkpoints) == (143, 1)
    assert log.count("my own handler") == 1
    assert "handler of SIGTERM" not in log


def test_that_a_handler_set_before_training_is_no_fault(ends: dict[str, tuple[int, str, int]]) -> None:
    code, log, num_checkpoints = ends["earlier_handler"]
    assert (code, num_checkpoints) == (143, 1)
    assert "handler" not in log


def test_that_a_handler_set_after_training_is_the_scripts(ends: dict[str, tuple[int, str, int]]) -> None:
    code, log, _ = ends["handler_after"]
    assert code == 0
    assert "my own handler" in log


def test_that_a_signal_that_nobody_handles_stops_as_sigterm_does(
    ends: dict[str, tuple[int, str, int]],
) -> None:
    code, log, num_checkpoints = ends["usr1"]
    assert (code, num_checkpoints) == (143, 1)
    assert "stopped by SIGUSR1" in log


def test_that_a_signal_that_the_script_handles_is_its_own(ends: dict[str, tuple[int, str, int]]) -> None:
    code, log, _ = ends["own_usr1"]
    assert code == 0
    assert log.startswith("my own handler\n")


def test_that_a_training_left_by_its_script_keeps_its_own_code(ends: dict[str, tuple[int, str, int]]) -> None:
    code, log, num_checkpoints = ends["left_by_break"]
    assert (code, num_checkpoints) == (0, 1)
    assert "the end of the script" in log
