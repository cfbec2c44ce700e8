"""One run over all moves: a loop at 1, 3 and 2 replicas, stopped once and killed once, in each tool."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.environment.tracker_runs import tracker_variables
from tests.torch.ranks import start
from tests.trackers import scripts
from tests.trackers.wandb_files import offline_runs

pytestmark = pytest.mark.torch

NUM_STEPS = 15
# Stopped with a checkpoint at step 3, killed without one at step 7: steps 4 to 7 are made twice.
GPUS = [1] * 3 + [3] * 4 + [2] * 8
MOVES = [
    r"step 4: moved from 1 GPU on 1 node to 3 GPUs on 1 node, \d+\.\d s after the step before it",
    r"step 4: moved from 1 GPU on 1 node to 2 GPUs on 1 node, \d+\.\d s after the step before it",
]


def train_with_moves(directory: Path, tool: str, environ: Mapping[str, str] | None = None) -> str:
    """Train, and return where the tool has written."""
    folder = scripts.folder_of(directory, tool)
    checkpoints = directory / "job"
    checkpoints.mkdir()
    runs = [(1, 3, None), (3, None, 4), (2, None, None)]
    for restart, (replicas, stop_after, kill_after) in enumerate(runs):
        env = {
            "POLLUX_CHECKPOINT_DIR": str(checkpoints),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            **(environ or {}),
            **tracker_variables(checkpoints, {}),
        }
        arguments = (tool, folder, 3, stop_after, kill_after)
        run = start(directory, replicas, scripts.train, *arguments, env=env, restart_count=restart)
        if stop_after is not None:
            assert run.wait() == [143] * replicas, run.output()
        elif kill_after is not None:
            assert run.wait() == [-signal.SIGKILL] * replicas, run.output()
        else:
            results = run.succeed()
            assert [result["is_logging"] for result in results] == [True, False], run.output()
            assert results[0]["steps"] == NUM_STEPS
    return folder


# A run in each tool takes the same way; test_wandb_online.py has the rest of this one.
@pytest.mark.full
def test_that_wandb_has_one_run_with_each_step_once(tmp_path: Path) -> None:
    runs = offline_runs(Path(train_with_moves(tmp_path, "wandb")))
    assert len(runs) == 3
    # `wandb sync` uploads directories of one id in the order of their start, to one run.
    assert {run.run_id for run in runs} == {(tmp_path / "job/trackers/wandb-run-id").read_text().strip()}
    rows = [row for run in runs for row in run.rows]
    steps = [row for row in rows if "loss" in row]
    assert [row["pollux/step"] for row in steps] == list(range(1, NUM_STEPS + 1))
    assert [row["pollux/num_gpus"] for row in steps] == GPUS
    assert [row["pollux/step"] for row in rows if "finished_epochs" in row] == [5, 10, 15]
    assert [row["pollux/step"] for row in rows if "pollux/move_s" in row] == [4, 8]
    (line,) = runs[1].summary["pollux/moves"]
    assert re.fullmatch(MOVES[0], line)
    (line,) = runs[2].summary["pollux/moves"]
    assert re.fullmatch(MOVES[1], line)


# As above; TensorBoard's is below, and test_mlflow_run.py has by what MLflow's run is found again.
@pytest.mark.full
# MLflow's own query, under SQLAlchemy 2.1.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.parametrize("tool", ["sqlite:///", "file://"])
def test_that_mlflow_has_one_run_with_each_step_once(
    tmp_path: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train_with_moves(tmp_path, tool)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tool + folder)
    (experiment,) = client.search_experiments(filter_string="name = 'moves'")
    (run,) = client.search_runs([experiment.experiment_id])

    def series(name: str) -> list[tuple[int, float]]:
        return [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, name)]

    assert [step for step, _ in series("loss")] == list(range(1, NUM_STEPS + 1))
    assert [gpus for _, gpus in series("pollux/num_gpus")] == GPUS
    assert series("finished_epochs") == [(5, 1.0), (10, 2.0), (15, 3.0)]
    assert [step for step, _ in series("pollux/move_s")] == [4, 8]
    assert re.fullmatch(MOVES[1], run.data.tags["pollux.move.001"])
    assert run.info.status == "FINISHED"


def test_that_tensorboard_has_one_series_with_the_steps_of_the_final_model(tmp_path: Path) -> None:
    folder = train_with_moves(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()

    def series(name: str) -> list[tuple[int, float]]:
        return [(one.step, one.value) for one in events.Scalars(name)]

    assert [step for step, _ in series("loss")] == list(range(1, NUM_STEPS + 1))
    # What the killed run has logged is purged.
    assert [gpus for _, gpus in series("pollux/num_gpus")] == [1] * 3 + [2] * 12
    assert series("finished_epochs") == [(5, 1.0), (10, 2.0), (15, 3.0)]
    # TensorBoard purges scalars only.
    texts: list[Any] = events.Tensors("pollux/moves/text_summary")
    assert [text.step for text in texts] == [4, 4]
    for expected, text in zip(MOVES, texts, strict=True):
        assert re.fullmatch(expected, text.tensor_proto.string_val[0].decode())
