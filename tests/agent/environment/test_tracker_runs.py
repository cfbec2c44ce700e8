"""The variables by which W&B and MLflow find a job's run again."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pollux_slurm.agent.environment.rank_environments import rank_environments
from pollux_slurm.agent.environment.tracker_runs import (
    keep_mlflow_run,
    record_mlflow_run,
    tracker_variables,
    without_tracker_variables,
)
from tests.agent.environment.test_layout import UNEVEN


def test_that_every_start_in_one_directory_has_the_same_run_and_another_directory_another(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    first = tracker_variables(one, {})
    assert first["WANDB_RESUME"] == "allow"
    assert tracker_variables(one, {}) == first
    assert tracker_variables(other, {})["WANDB_RUN_ID"] != first["WANDB_RUN_ID"]
    assert "MLFLOW_RUN_ID" not in first
    keep_mlflow_run(one, "0123abc")
    assert tracker_variables(one, {}) == first | {
        "MLFLOW_RUN_ID": "0123abc",
        "TENSORBOARD_LOGGING_DIR": str(one / "trackers/tensorboard"),
        "POLLUX_TRACKER_VARIABLES": "WANDB_RUN_ID,MLFLOW_RUN_ID,WANDB_RESUME,TENSORBOARD_LOGGING_DIR",
    }


def test_that_what_the_user_has_set_stays(tmp_path: Path) -> None:
    keep_mlflow_run(tmp_path, "0123abc")
    own = {"WANDB_RUN_ID": "mine", "MLFLOW_RUN_ID": "mine-too", "TENSORBOARD_LOGGING_DIR": "runs"}
    assert tracker_variables(tmp_path, own | {"WANDB_RESUME": "never"}) == {}
    assert not (tmp_path / "trackers/wandb-run-id").exists()


def test_that_a_wandb_run_with_an_id_of_the_users_is_resumed_too(tmp_path: Path) -> None:
    assert tracker_variables(tmp_path, {"WANDB_RUN_ID": "mine"})["WANDB_RESUME"] == "allow"


def test_that_without_a_directory_or_a_right_to_write_there_no_id_is_set(tmp_path: Path) -> None:
    assert tracker_variables(None, {}) == {}
    (tmp_path / "trackers").write_text("a file where the folder should be")
    keep_mlflow_run(tmp_path, "0123abc")
    assert not {"WANDB_RUN_ID", "MLFLOW_RUN_ID"} & set(tracker_variables(tmp_path, {}))


@pytest.mark.parametrize("content", ["", "two words", "../x", "é", "a" * 200])
def test_that_a_damaged_id_is_replaced(tmp_path: Path, content: str) -> None:
    (tmp_path / "trackers").mkdir()
    (tmp_path / "trackers/wandb-run-id").write_text(content, encoding="utf-8")
    assert len(tracker_variables(tmp_path, {})["WANDB_RUN_ID"]) == 16


def test_that_only_rank_0_gets_them(tmp_path: Path) -> None:
    environ = {"POLLUX_CHECKPOINT_DIR": str(tmp_path)}
    first, second = (rank_environments(UNEVEN, node, environ) for node in (0, 1))
    assert ["WANDB_RUN_ID" in env for env in first + second] == [True, False, False, False, False]


def test_that_a_run_that_its_user_has_named_stays() -> None:
    assert without_tracker_variables({"WANDB_RUN_ID": "mine"}) == {"WANDB_RUN_ID": "mine"}


def active(run_id: str, **tags: str) -> SimpleNamespace:
    run = SimpleNamespace(info=SimpleNamespace(run_id=run_id), data=SimpleNamespace(tags=tags))
    return SimpleNamespace(active_run=lambda: run)


def test_that_the_active_mlflow_run_is_recorded_the_outer_one_of_nested_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    record_mlflow_run(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: None))
    record_mlflow_run(tmp_path)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace())
    record_mlflow_run(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setitem(sys.modules, "mlflow", active("a1"))
    record_mlflow_run(None)
    record_mlflow_run(tmp_path)
    assert tracker_variables(tmp_path, {})["MLFLOW_RUN_ID"] == "a1"
    monkeypatch.setitem(sys.modules, "mlflow", active("inner", **{"mlflow.parentRunId": "outer"}))
    record_mlflow_run(tmp_path)
    assert tracker_variables(tmp_path, {})["MLFLOW_RUN_ID"] == "outer"
