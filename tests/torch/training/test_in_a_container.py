"""Training behind a wrapper with namespaces of its own: checkpoint on SIGTERM, and every sample once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.node.stand_in_container import needs_namespaces, write_container
from tests.torch import scripts
from tests.waiting import wait_until

pytestmark = [pytest.mark.torch, needs_namespaces]

# The arguments of `scripts.train` are in JSON. Data are loaded by a worker process.
TRAIN = """
import json, os, sys
from tests.torch import scripts
result = scripts.train(None, *json.loads(sys.argv[1]))
if os.environ["RANK"] == "0":
    with open("result.json", "w") as file: json.dump(result["steps"], file)
"""


def start(folder: Path, replicas: int, pause_after: int | None) -> subprocess.Popen[str]:
    write_container(folder)
    arguments = json.dumps([2, 16, None, "sgd", None, None, 1, 0.0, pause_after])
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "POLLUX"))}
    root = str(Path(__file__).parents[3])
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "pollux_slurm", "run", f"--nproc-per-node={replicas}"),
                *("--checkpoint-dir", "job", "--wrap-with", "./container"),
                *("--", sys.executable, "-c", TRAIN, arguments),
            ],
            env={**plain, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": root},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.full
def test_that_training_in_a_container_saves_on_sigterm_and_goes_on_at_another_size(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = start(tmp_path, 2, 4)
    try:
        wait_until(lambda: "step 4" in log.read_text(), timeout_s=240, what="the fourth step")
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=240) == 143, log.read_text()
    finally:
        first.kill()
        first.wait()
    assert "the job is stopped by SIGTERM, in epoch 0 at example" in log.read_text()
    second = start(tmp_path, 1, None)
    assert second.wait(timeout=240) == 0, log.read_text()
    assert "goes on from the checkpoint of its run 1, with 1 replicas" in log.read_text()
    seen: dict[str, list[int]] = {}
    for step, indices in json.loads((tmp_path / "result.json").read_text()).items():
        seen.setdefault(step.partition("/")[0], []).extend(indices)
    assert {epoch: sorted(indices) for epoch, indices in seen.items()} == {
        str(epoch): list(range(scripts.NUM_EXAMPLES)) for epoch in range(2)
    }
