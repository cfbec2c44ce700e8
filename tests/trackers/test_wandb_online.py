"""What W&B's client uploads of a job that was moved, to a stand-in for its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trackers.test_moves import GPUS, NUM_STEPS, train_with_moves
from tests.trackers.wandb_files import offline_runs
from tests.trackers.wandb_server import WandbServer, wandb_server

pytestmark = [pytest.mark.torch, pytest.mark.full]


def assert_one_run(server: WandbServer, directory: Path) -> None:
    ((run_id, rows),) = server.rows.items()
    assert run_id == (directory / "job/trackers/wandb-run-id").read_text().strip()
    steps = [row for row in rows if "loss" in row]
    assert [row["pollux/step"] for row in steps] == list(range(1, NUM_STEPS + 1))
    assert [row["pollux/num_gpus"] for row in steps] == GPUS
    # W&B's own step counts rows.
    assert [row["_step"] for row in rows] == list(range(len(rows)))


def test_that_offline_folders_are_uploaded_to_one_run(tmp_path: Path) -> None:
    folder = Path(train_with_moves(tmp_path, "wandb"))
    assert len(offline_runs(folder)) == 3
    with wandb_server() as server:
        subprocess.run(
            [sys.executable, "-m", "wandb", "sync", "--yes", *(folder / "wandb").glob("offline-run-*")],
            env={**os.environ, **server.environment()},
            cwd=tmp_path,
            check=True,
            timeout=300,
            capture_output=True,
        )
        assert_one_run(server, tmp_path)


def test_that_a_run_online_is_resumed_at_each_start(tmp_path: Path) -> None:
    with wandb_server() as server:
        train_with_moves(tmp_path, "wandb", server.environment() | {"WANDB_MODE": "online"})
        assert_one_run(server, tmp_path)
