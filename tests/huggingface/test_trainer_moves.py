"""Trainer's loop, moved to other numbers of replicas: the same steps, logs, weights and evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import pollux_slurm.torch as pt
from pollux_slurm.huggingface import PolluxTrainer
from tests.huggingface import trainer_scripts as scripts
from tests.torch.ranks import run_ranks, start

pytestmark = pytest.mark.torch


def _train(
    directory: str | None, output: str, stop_after: int | None, options: dict[str, Any]
) -> dict[str, Any]:
    return scripts.train(directory, output, stop_after, **options)


def assert_same(result: dict[str, Any], reference: dict[str, Any]) -> None:
    assert {key: sorted(value) for key, value in result["steps"].items()} == {
        key: sorted(value) for key, value in reference["steps"].items()
    }
    assert len(result["log"]) == len(reference["log"])
    for entry, expected in zip(result["log"], reference["log"], strict=True):
        assert entry == pytest.approx(expected, rel=1e-4), expected
    for key in ("global_step", "epoch", "train_loss", "flos", "tokens", "best", "predicted"):
        assert result[key] == pytest.approx(reference[key], rel=1e-4), key
    assert result["evaluated"] == pytest.approx(reference["evaluated"], rel=1e-4)
    for name, weight in reference["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=1e-4, atol=1e-5)


def test_that_moves_in_mid_epoch_under_accumulation_change_nothing(tmp_path: Path) -> None:
    # 70 texts of 1 to 11 tokens in batches of 16, at most 4 a micro-batch; evaluations in mid-epoch.
    options = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "loss",
        "include_num_input_tokens_seen": "non_padding",
        "logging_steps": 3,
        "patience": 50,
    }
    reference = run_ranks(tmp_path, 1, _train, None, str(tmp_path), None, options)[0]
    assert reference["global_step"] == 10
    assert sorted(
        index for key, used in reference["steps"].items() if key[0] == "1" for index in used
    ) == list(range(70))
    directory = tmp_path / "job"
    # SIGTERM in an evaluation stops the replicas there, or before the next step.
    stops = [(1, 3, False), (3, 3, True), (2, 1, True)]
    for restart, (replicas, stop_after, in_evaluation) in enumerate(stops):
        run = start(
            tmp_path,
            replicas,
            _train,
            str(directory),
            str(tmp_path),
            stop_after,
            options | {"stops_in_evaluation": in_evaluation},
            restart_count=restart,
        )
        assert run.wait() == [143] * replicas, run.output()
    results = run_ranks(tmp_path, 2, _train, str(directory), str(tmp_path), None, options, restart_count=3)
    for rank, result in enumerate(results):
        assert result["world"] == [2, rank]
        assert_same(result, reference)
    assert results[0]["runtime"] > 0


def test_that_replicas_without_an_example_change_nothing(tmp_path: Path) -> None:
    # Batches of 2 on 3 replicas: one always has padding. The evaluation's last batches, too.
    options = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1, "num_train_epochs": 1}
    options |= {"include_num_input_tokens_seen": "all", "eval_strategy": "epoch", "logging_steps": 7}
    options |= {"metric_for_best_model": "loss"}
    reference, *results = (
        run_ranks(tmp_path, replicas, _train, None, str(tmp_path), None, options)[0] for replicas in (1, 3)
    )
    assert reference["global_step"] == 35
    assert_same(results[0], reference)


class Fail(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            raise ZeroDivisionError("the user's own")


class StopsAlone(TrainerCallback):
    """Stops rank 1 after its first epoch, as early stopping on a replica's own share may."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = torch.distributed.get_rank() == 1


def train_with(callback: type[TrainerCallback], directory: str, output: str) -> None:
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    PolluxTrainer(
        scripts.make_model(),
        scripts.make_arguments(output),
        train_dataset=scripts.Texts(),
        callbacks=[callback()],
    ).train()


def test_that_an_error_ends_the_processes_with_its_exit_code(tmp_path: Path) -> None:
    run = start(tmp_path, 2, train_with, Fail, str(tmp_path / "job"), str(tmp_path))
    assert run.wait() == [1, 1]
    assert "the user's own" in run.output()


def test_that_a_replica_that_stops_alone_ends_the_training_with_the_cure(tmp_path: Path) -> None:
    run = start(tmp_path, 2, train_with, StopsAlone, str(tmp_path / "job"), str(tmp_path))
    assert run.wait() == [1, 1], run.output()
    assert "rank 1 has left the epochs by its own decision" in run.output()
