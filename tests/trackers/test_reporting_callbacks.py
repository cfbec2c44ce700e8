"""The frameworks' own reporting over a move: one run each, with our figures among its values."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.agent.launch.tracker_runs import tracker_variables
from tests.torch.ranks import start
from tests.trackers import lightning_loggers, reporting
from tests.trackers.wandb_files import offline_runs

pytestmark = [pytest.mark.torch, pytest.mark.full]


def test_that_a_trainers_reports_stay_in_one_run_by_the_variables_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, place = tmp_path / "job", tmp_path / "place"
    checkpoints.mkdir()
    place.mkdir()
    for restart, (replicas, stop_after) in enumerate([(1, 3), (2, None)]):
        env = {
            "POLLUX_CHECKPOINT_DIR": str(checkpoints),
            **reporting.environment(place),
            **tracker_variables(checkpoints, {}),
        }
        arguments = (str(tmp_path / "output"), stop_after)
        run = start(tmp_path, replicas, reporting.train, *arguments, env=env, restart_count=restart)
        if stop_after is None:
            run.succeed()
        else:
            assert run.wait() == [143] * replicas, run.output()

    gpus = [1.0] * 3 + [2.0] * 7
    runs = offline_runs(place)
    assert {one.run_id for one in runs} == {(checkpoints / "trackers/wandb-run-id").read_text().strip()}
    rows = [row for one in runs for row in one.rows if "train/loss" in row]
    assert [row["train/global_step"] for row in rows] == list(range(1, 11))
    assert [row["train/pollux/num_gpus"] for row in rows] == gpus
    (line,) = runs[1].summary["pollux/moves"]
    assert line.startswith("step 4: moved from 1 GPU on 1 node to 2 GPUs on 1 node, ")

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file://{place}/mlruns")
    (found,) = client.search_runs(["0"])
    history = client.get_metric_history(found.info.run_id, "pollux/num_gpus")
    assert [(one.step, one.value) for one in history] == list(enumerate(gpus, start=1))
    assert found.data.tags["pollux.move.001"] == line

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(checkpoints / "trackers/tensorboard"))
    events.Reload()
    tag = "train/pollux/num_gpus"
    assert [(one.step, one.value) for one in events.Scalars(tag)] == list(enumerate(gpus, start=1))


def test_that_lightnings_loggers_stay_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, place = tmp_path / "job", tmp_path / "place"
    checkpoints.mkdir()
    place.mkdir()
    for restart, (replicas, stop_after) in enumerate([(1, 3), (2, None)]):
        env = {
            "POLLUX_CHECKPOINT_DIR": str(checkpoints),
            **reporting.environment(place),
            **tracker_variables(checkpoints, {}),
        }
        run = start(
            tmp_path,
            replicas,
            lightning_loggers.train,
            str(place),
            stop_after,
            env=env,
            restart_count=restart,
        )
        if stop_after is None:
            run.succeed()
        else:
            assert run.wait() == [143] * replicas, run.output()

    gpus = [1.0] * 3 + [2.0] * 7
    runs = offline_runs(place)
    assert {one.run_id for one in runs} == {(checkpoints / "trackers/wandb-run-id").read_text().strip()}
    rows = [row for one in runs for row in one.rows if "train_step" in row]
    assert [row["trainer/global_step"] for row in rows] == list(range(10))
    assert [row["pollux/num_gpus"] for row in rows] == gpus
    (line,) = runs[1].summary["pollux/moves"]
    assert line.startswith("step 4: moved from 1 GPU on 1 node to 2 GPUs on 1 node, ")

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"file://{place}/mlruns")
    (experiment,) = client.search_experiments(filter_string="name = 'moves'")
    (found,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(found.info.run_id, "pollux/num_gpus")
    assert [(one.step, one.value) for one in history] == list(enumerate(gpus))
    assert found.data.tags["pollux.move.001"] == line

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (version,) = (place / "tensorboard").iterdir()
    events = EventAccumulator(str(version))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("pollux/num_gpus")] == list(enumerate(gpus))
