"""Training under the real torchrun: checkpoint on SIGTERM, another size, and restarts of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch import scripts
from tests.waiting import wait_until

# Half a minute each. tests/launch/test_launchers_on_slurm.py has torchrun on Slurm.
pytestmark = [pytest.mark.torch, pytest.mark.full]

TRAIN = """
import json, os, sys
from tests.torch import scripts
if os.environ["RANK"] == "1" and not os.path.exists("failed") and sys.argv[2:] == ["fail"]:
    open("failed", "w").close()
    sys.exit(7)
result = scripts.train(None, *json.loads(sys.argv[1]))
if os.environ["RANK"] == "0":
    with open("result.json", "w") as file:
        json.dump({key: result[key] for key in ("steps", "run_number", "num_steps")}, file)
"""


def start(
    folder: Path, *launcher: str, pause_after: int | None = None, last: str = ""
) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(TRAIN)
    arguments = json.dumps([2, 16, None, "sgd", None, None, 0, 0.0, pause_after])
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "POLLUX"))}
    bin_dir = Path(sys.executable).parent
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [*launcher, "train.py", arguments, *last.split()],
            env={
                **plain,
                "CUDA_VISIBLE_DEVICES": "",
                "PYTHONPATH": str(Path(__file__).parents[3]),
                "PATH": f"{bin_dir}:{plain['PATH']}",
                "POLLUX_CHECKPOINT_DIR": str(folder / "job"),
            },
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


def pollux_run(processes: int) -> list[str]:
    return [sys.executable, "-m", "pollux_slurm", "run", f"--nproc-per-node={processes}", "--", "torchrun"]


def assert_each_sample_once(folder: Path) -> None:
    seen: dict[str, list[int]] = {}
    for step, indices in json.loads((folder / "result.json").read_text())["steps"].items():
        seen.setdefault(step.partition("/")[0], []).extend(indices)
    expected = list(range(scripts.NUM_EXAMPLES))
    assert {epoch: sorted(indices) for epoch, indices in seen.items()} == {"0": expected, "1": expected}


def stop_after_step_4(run: subprocess.Popen[str], log: Path) -> int:
    try:
        wait_until(lambda: "step 4" in log.read_text(), timeout_s=240, what="the fourth step")
        run.send_signal(signal.SIGTERM)
        return run.wait(timeout=240)
    finally:
        run.kill()
        run.wait()


def test_that_training_under_torchrun_saves_on_sigterm_and_goes_on_at_another_size(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = start(tmp_path, *pollux_run(2), pause_after=4)
    assert stop_after_step_4(first, log) == 143, log.read_text()
    assert "the job is stopped by SIGTERM, in epoch 0 at example" in log.read_text()
    second = start(tmp_path, *pollux_run(1))
    assert second.wait(timeout=240) == 0, log.read_text()
    assert "goes on from the checkpoint of its run 1, with 1 replicas" in log.read_text()
    assert_each_sample_once(tmp_path)


def test_that_a_restart_by_torchrun_is_another_run_of_the_job(tmp_path: Path) -> None:
    run = start(tmp_path, *pollux_run(2), "--max-restarts=1", last="fail")
    assert run.wait(timeout=240) == 0, (tmp_path / "log").read_text()
    assert (tmp_path / "failed").exists()
    assert_each_sample_once(tmp_path)


def test_that_torchrun_without_pollux_run_trains_with_the_variables_of_the_job(tmp_path: Path) -> None:
    log = tmp_path / "log"
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--standalone"]
    first = start(tmp_path, *torchrun, "--nproc-per-node=2", pause_after=4)
    assert stop_after_step_4(first, log) == 1, log.read_text()  # torchrun's own code
    second = start(tmp_path, *torchrun, "--nproc-per-node=1")
    assert second.wait(timeout=240) == 0, log.read_text()
    assert_each_sample_once(tmp_path)
