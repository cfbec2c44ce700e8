"""Trainer's progress over stops: early stopping, evaluations between epochs, the end, errors."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from pollux_slurm.huggingface import PolluxTrainer
from pollux_slurm.model import BatchChoice
from tests.huggingface.test_accelerator import reset
from tests.huggingface.trainer_scripts import Stop, Texts, make_arguments, make_model
from tests.torch.single_replica import joined, propose

pytestmark = pytest.mark.torch


class Events(TrainerCallback):
    """Counts evaluations, and sends SIGTERM to this process within one of them."""

    def __init__(self, stop_in: int | None = None) -> None:
        self.num_evaluations = self.num_predictions = 0
        self.stop_in = stop_in

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.num_predictions += 1
        if self.num_predictions == 2 and self.stop_in == self.num_evaluations:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.num_evaluations += 1
        self.num_predictions = 0


def make(output: Path, *callbacks: Any, max_batch_size: int | None = None, **options: Any) -> Any:
    eval_dataset = options.pop("eval_dataset", Texts(22))
    return PolluxTrainer(
        make_model(),
        make_arguments(str(output), **options),
        train_dataset=Texts(),
        eval_dataset=eval_dataset,
        callbacks=list(callbacks),
        max_batch_size=max_batch_size,
    )


def result(trainer: Any) -> tuple[list[float], dict[str, torch.Tensor]]:
    losses = [
        value
        for entry in trainer.state.log_history
        for name, value in entry.items()
        if name.endswith("loss") or name == "learning_rate"
    ]
    return losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}


def assert_equal(first: Any, second: Any) -> None:
    assert first[0] == pytest.approx(second[0], rel=1e-4)
    for name, weight in first[1].items():
        torch.testing.assert_close(second[1][name], weight, rtol=1e-4, atol=1e-5)


def unmoved(output: Path, **options: Any) -> Any:
    reset()
    with joined():
        trainer = make(output, **options)
        trainer.train()
        return result(trainer)


def test_that_sigterm_in_an_evaluation_between_epochs_is_answered_there(tmp_path: Path) -> None:
    options = {"eval_strategy": "epoch", "logging_strategy": "epoch"}
    reference = unmoved(tmp_path, **options)
    reset()
    events = Events(stop_in=0)
    with joined(tmp_path / "job"):
        trainer = make(tmp_path, events, **options)
        with pytest.raises(SystemExit) as stopped:
            trainer.train()
    assert stopped.value.code == 143
    assert (events.num_evaluations, events.num_predictions) == (0, 2)
    reset()
    with joined(tmp_path / "job"):
        events = Events()
        trainer = make(tmp_path, events, **options)
        trainer.train()
        # That evaluation ran again, from its beginning.
        assert events.num_evaluations == 2
        assert_equal(result(trainer), reference)
        assert trainer.state.epoch == 2


WITHIN = {"eval_strategy": "steps", "eval_steps": 2}
SEVERAL = {"first": Texts(22), "second": Texts(10)}
# Each of its parts is in one of the other cases.
TWIN = pytest.mark.full


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        # Evaluations after steps 2, 4, 6, 8 and 10; an epoch has 5 steps. The repeated one is stopped, too.
        pytest.param(WITHIN, [0, 0, 1, 2], id="steps"),
        pytest.param(WITHIN | {"max_steps": 4}, [1, 0], id="last step"),
        pytest.param(WITHIN | {"eval_steps": 5}, [0, 0], id="end of epoch", marks=TWIN),
        pytest.param(WITHIN | {"eval_dataset": SEVERAL}, [1, 3], id="several", marks=TWIN),
        pytest.param(
            {"eval_strategy": "epoch", "eval_dataset": SEVERAL}, [1, 1], id="several at end of epoch"
        ),
        pytest.param(WITHIN | {"eval_on_start": True}, [0, 1, 1], id="at start"),
        pytest.param(
            WITHIN
            | {"eval_steps": 1, "lr_scheduler_type": "reduce_lr_on_plateau"}
            | {"lr_scheduler_kwargs": {"patience": 0, "threshold": 10.0, "factor": 0.5}},
            [0, 1, 1],
            id="plateau",
        ),
        # No LRScheduler of torch's. It doubles the learning rate as long as the loss falls.
        pytest.param(
            WITHIN
            | {"lr_scheduler_type": "greedy"}
            | {"lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "max_lr": 10.0}},
            [1],
            id="greedy",
            marks=TWIN,
        ),
    ],
)
def test_that_an_evaluation_that_was_stopped_is_made_again_and_counts_once(
    tmp_path: Path, options: dict[str, Any], stops: list[int]
) -> None:
    reference = unmoved(tmp_path, **options)
    steps = 0
    for stop_in in stops:
        reset()
        events = Events(stop_in)
        with joined(tmp_path / "job") as session:
            trainer = make(tmp_path, events, **options)
            with pytest.raises(SystemExit) as stopped:
                trainer.train()
            assert session.num_steps >= steps
            steps = session.num_steps
        assert stopped.value.code == 143
        # The evaluation has not gone on.
        assert (events.num_evaluations, events.num_predictions) == (stop_in, 2)
    reset()
    with joined(tmp_path / "job"):
        trainer = make(tmp_path, **options)
        trainer.train()
        assert_equal(result(trainer), reference)


class Halving:
    """An LR scheduler with torch's methods that is none of torch's."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.num_steps, self.first = optimizer, 0, optimizer.param_groups[0]["lr"]

    def step(self) -> None:
        self.num_steps += 1
        self.optimizer.param_groups[0]["lr"] = self.first / 2**self.num_steps

    def get_last_lr(self) -> list[float]:
        return [self.optimizer.param_groups[0]["lr"]]

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps, self.first = state["num_steps"], state["first"]


def test_that_a_scheduler_that_is_none_of_torchs_goes_on_after_a_move(tmp_path: Path) -> None:
    for stop_after in (2, None):
        reset()
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
        with joined(tmp_path / "job"):
            trainer = PolluxTrainer(
                model,
                make_arguments(str(tmp_path), num_train_epochs=1),
                train_dataset=Texts(),
                callbacks=[Stop(stop_after)],
                optimizers=(optimizer, Halving(optimizer)),
            )
            with contextlib.nullcontext() if stop_after is None else pytest.raises(SystemExit):
                trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == pytest.approx([0.4, 0.2, 0.1, 0.05, 0.025])


def test_that_early_stopping_counts_on_and_the_best_model_is_loaded_after_moves(tmp_path: Path) -> None:
    options = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        # The loss falls, so that the first step is the best one.
        "greater_is_better": True,
        "num_train_epochs": 3,
    }
    reset()
    with joined():
        plain = make(tmp_path / "unmoved", EarlyStoppingCallback(6), **options)
        plain.train()
        steps, best = plain.state.global_step, plain.state.best_global_step
    # It ends in mid-epoch. The moves are in its patience.
    assert (best, steps) == (1, 7)
    for stop_after in (2, 2):
        reset()
        with joined(tmp_path / "job"):
            trainer = make(tmp_path / "moved", EarlyStoppingCallback(6), Stop(stop_after), **options)
            with pytest.raises(SystemExit):
                trainer.train()
    for _ in range(2):
        # Once to the end, once more after it.
        reset()
        with joined(tmp_path / "job"):
            trainer = make(tmp_path / "moved", EarlyStoppingCallback(6), **options)
            trainer.train()
            assert (trainer.state.global_step, trainer.state.best_global_step) == (steps, best)
            assert_equal(result(trainer), result(plain))


@pytest.mark.parametrize("options", [{"max_steps": 7}, {"num_train_epochs": 2}], ids=["max_steps", "epochs"])
def test_that_a_restart_after_the_end_trains_nothing(tmp_path: Path, options: dict[str, Any]) -> None:
    runs = []
    for _ in range(2):
        reset()
        with joined(tmp_path / "job") as session:
            trainer = make(tmp_path, **options)
            output = trainer.train()
            runs.append(
                [
                    output.global_step,
                    output.training_loss,
                    session.progress_state.num_steps,
                    trainer.state.epoch,
                    session.progress_state.finished_epochs,
                ]
            )
            assert result(trainer)[0]
    assert runs[0] == runs[1]
    assert runs[0][0] == runs[0][2] == options.get("max_steps", 10)
    assert runs[0][3] == pytest.approx(options.get("max_steps", 10) / 5)
    # The last epoch is left by max_steps=7, after two of its five steps.
    assert runs[0][4] == (1 if "max_steps" in options else 2)


def test_that_max_steps_counts_batches_of_the_initial_size_where_the_batch_grows(tmp_path: Path) -> None:
    class Grow(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            choice = BatchChoice(global_batch_size=32, atomic_batch_size=4, accumulation_steps=7)
            propose(session, trainer.steps.loader, choice)

    with joined() as session:
        options = {"max_steps": 10, "lr_scheduler_type": "linear", "learning_rate": 0.1, "warmup_steps": 0}
        trainer = make(tmp_path, Grow(), max_batch_size=32, **options)
        trainer.train()
        # 16, 32, 22 examples; then 32, 32, 6: ten batches of 16, with a short one in each epoch.
        assert trainer.state.global_step == 6
        assert trainer.state.epoch == 2
        assert trainer.lr_scheduler.last_epoch == 10
        assert trainer.optimizer.param_groups[0]["lr"] == 0


def test_that_an_error_in_training_ends_it_and_leaves_sigterm_to_the_script(tmp_path: Path) -> None:
    class Fail(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise ZeroDivisionError("the user's own")

    before = signal.getsignal(signal.SIGTERM)
    with joined(tmp_path / "job"):
        with pytest.raises(ZeroDivisionError, match="own"):
            make(tmp_path, Fail()).train()
        assert signal.getsignal(signal.SIGTERM) is before


def test_that_a_job_that_was_killed_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    """Scripts commonly pass Trainer's own last checkpoint, if there is one."""

    class Killed(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise KeyboardInterrupt

    reset()
    options = {"save_strategy": "steps", "save_steps": 2}
    with joined(tmp_path / "job"), pytest.raises(KeyboardInterrupt):
        make(tmp_path / "exports", Killed(), **options).train()
    assert list((tmp_path / "exports").glob("checkpoint-2"))
    reset()
    with joined(tmp_path / "job"):
        trainer = make(tmp_path / "exports", **options)
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == trainer.state.max_steps
