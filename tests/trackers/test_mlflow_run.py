"""The MLflow run that the job's next start goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.agent.environment.tracker_runs import tracker_variables
from pollux_slurm.torch.session.current_session import current_session, set_session
from pollux_slurm.trackers import Tracker
from tests.torch.single_replica import Numbers, Trainee

pytestmark = pytest.mark.torch


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/mlruns")
    import mlflow

    yield mlflow
    while mlflow.active_run() is not None:
        mlflow.end_run()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Path]:
    """A job of one replica, started with this checkpoint directory."""
    directory = tmp_path / "job"
    directory.mkdir()
    pt.init_process_group(checkpoint_interval_s=None, environ={"POLLUX_CHECKPOINT_DIR": str(directory)})
    session = current_session()
    yield directory
    set_session(None)
    session.close()


def recorded(directory: Path) -> str | None:
    return tracker_variables(directory, {}).get("MLFLOW_RUN_ID")


def test_that_the_run_that_is_active_at_the_first_step_is_recorded(mlflow: Any, job: Path) -> None:
    trainee, run = Trainee(), mlflow.start_run()
    records = []
    for inputs, _ in pt.AdaptiveDataLoader(Numbers(8), batch_size=4):
        records.append(recorded(job))
        trainee.step(inputs)
    assert records == [None, run.info.run_id]


def test_that_a_trackers_run_is_recorded_before_the_first_step_and_of_nested_ones_the_outer(
    mlflow: Any, job: Path
) -> None:
    outer = mlflow.start_run()
    Tracker(lambda: mlflow.start_run(nested=True))
    assert recorded(job) == outer.info.run_id
