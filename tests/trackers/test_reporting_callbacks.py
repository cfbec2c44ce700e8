"""The frameworks' own reporting over a move: one run each, with our figures among its values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.tracker_runs import tracker_variables
from tests.torch.ranks import start
from tests.trackers import lightning_loggers, reporting
from tests.trackers.wandb_files import OfflineRun, offline_runs

pytestmark = [pytest.mark.torch, pytest.mark.full]

GPUS = [1.0] * 3 + [2.0] * 7
MOVE = "step 4: moved from 1 GPU on 1 node to 2 GPUs on 1 node, "


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where W&B and MLflow write."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def train_with_a_move(place: Path, train: Callable[[str, int | None], None]) -> tuple[Path, list[OfflineRun]]:
    """Train 10 steps, with a move after 3; return the checkpoint directory, and W&B's runs."""
    checkpoints = place.parent / "job"
    checkpoints.mkdir()
    for restart, (replicas, stop_after) in enumerate([(1, 3), (2, None)]):
        env = {
            "POLLUX_CHECKPOINT_DIR": str(checkpoints),
            **reporting.environment(place),
            **tracker_variables(checkpoints, {}),
        }
        run = start(place.parent, replicas, train, str(place), stop_after, env=env, restart_count=restart)
        if stop_after is None:
            run.succeed()
        else:
            assert run.wait() == [143] * replicas, run.output()
    runs = offline_runs(place)
    assert {one.run_id for one in runs} == {(checkpoints / "trackers/wandb-run-id").read_text().strip()}
    (line,) = runs[1].summary["pollux/moves"]
    assert line.startswith(MOVE)
    return checkpoints, runs


def assert_one_mlflow_run(place: Path, experiment: str, steps: range) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file://{place}/mlruns")
    (found,) = client.search_experiments(filter_string=f"name = '{experiment}'")
    (run,) = client.search_runs([found.experiment_id])
    history = client.get_metric_history(run.info.run_id, "pollux/num_gpus")
    assert [(one.step, one.value) for one in history] == list(zip(steps, GPUS, strict=True))
    assert run.data.tags["pollux.move.001"].startswith(MOVE)


def assert_one_tensorboard_series(folder: Path, tag: str, steps: range) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars(tag)] == list(zip(steps, GPUS, strict=True))


def test_that_a_trainers_reports_stay_in_one_run_by_the_variables_alone(place: Path) -> None:
    checkpoints, runs = train_with_a_move(place, reporting.train)
    rows = [row for one in runs for row in one.rows if "train/loss" in row]
    steps = range(1, 11)
    assert [row["train/global_step"] for row in rows] == [*steps]
    assert [row["train/pollux/num_gpus"] for row in rows] == GPUS
    assert_one_mlflow_run(place, "Default", steps)
    assert_one_tensorboard_series(checkpoints / "trackers/tensorboard", "train/pollux/num_gpus", steps)


def test_that_lightnings_loggers_stay_in_one_run(place: Path) -> None:
    _, runs = train_with_a_move(place, lightning_loggers.train)
    rows = [row for one in runs for row in one.rows if "train_step" in row]
    assert [row["trainer/global_step"] for row in rows] == [*range(10)]
    assert [row["pollux/num_gpus"] for row in rows] == GPUS
    assert_one_mlflow_run(place, "moves", range(10))
    (version,) = (place / "tensorboard").iterdir()
    assert_one_tensorboard_series(version, "pollux/num_gpus", range(10))
