"""Training scripts for transformers' Trainer that the tests run as ranks, with a record of what they saw."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import pollux_slurm.torch as pt
from pollux_slurm.huggingface import PolluxTrainer
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.scripts import Seen

NUM_EXAMPLES, VOCABULARY, LENGTH = 70, 80, 12


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Token sequences of 2 to 12 tokens, padded; the first token is the example's index."""

    def __init__(self, length: int = NUM_EXAMPLES) -> None:
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(VOCABULARY, (length, LENGTH), generator=generator)
        self.tokens[:, 0] = torch.arange(length)
        self.lengths = torch.randint(2, LENGTH + 1, (length,), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].clone()
        labels[self.lengths[index] :] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


def make_model(**options: Any) -> GPT2LMHeadModel:
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    return GPT2LMHeadModel(config)


def make_arguments(output: str, **options: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        # Adam would make weights whose gradient is zero, but for rounding, differ.
        "optim": "sgd",
        "learning_rate": 0.3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(output, **(defaults | options))


class Stop(TrainerCallback):
    """Sends SIGTERM to this process after so many steps of it, or batches of evaluations."""

    def __init__(self, after: int | None, *, in_evaluation: bool = False) -> None:
        self.left, self.in_evaluation = after, in_evaluation

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.in_evaluation:
            self._count()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.in_evaluation:
            self._count()

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGTERM)


class RecordingTrainer(PolluxTrainer):
    """Records which examples each step used."""

    seen: Seen

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loader = self.steps.loader
        if model.training and not loader.is_padding:
            session = current_session()
            key = (session.progress_state.epoch or 0, session.progress_state.num_steps)
            self.seen.add(*key, inputs["input_ids"][:, 0].tolist(), 0.0)
        return super().compute_loss(model, inputs, *args, **kwargs)


def metrics_of(prediction: Any) -> dict[str, float]:
    """Return a metric that shows which examples were evaluated, in which order."""
    labels = prediction.label_ids[:, 0]
    return {"count": float(len(labels)), "order": float((labels * range(1, len(labels) + 1)).sum())}


def train(
    directory: str | None, output: str, stop_after: int | None = None, **options: Any
) -> dict[str, Any]:
    """Train as a script does that knows nothing of moves."""
    patience, in_evaluation = options.pop("patience", None), options.pop("stops_in_evaluation", False)
    pt.init_process_group(checkpoint_dir=directory, checkpoint_interval_s=None)
    callbacks: list[Any] = [Stop(stop_after, in_evaluation=in_evaluation)]
    if patience is not None:
        callbacks.append(EarlyStoppingCallback(patience))
    trainer = RecordingTrainer(
        make_model(),
        make_arguments(output, **options),
        train_dataset=Texts(),
        eval_dataset=Texts(22),
        compute_metrics=metrics_of,
        callbacks=callbacks,
    )
    trainer.seen = Seen()
    result = trainer.train()
    trainer.seen.sync()
    evaluated = trainer.evaluate()
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "log": [
            {key: value for key, value in entry.items() if _is_reproducible(key)}
            for entry in trainer.state.log_history
        ],
        "global_step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "train_loss": result.training_loss,
        "runtime": result.metrics["train_runtime"],
        "flos": trainer.state.total_flos,
        "tokens": trainer.state.num_input_tokens_seen,
        "best": trainer.state.best_metric,
        "steps": trainer.seen.steps,
        "evaluated": {key: value for key, value in evaluated.items() if _is_reproducible(key)},
        "predicted": torch.as_tensor(trainer.predict(Texts(10)).predictions).shape,
        "world": [trainer.args.world_size, trainer.args.process_index],
    }


def _is_reproducible(key: str) -> bool:
    return not any(word in key for word in ("runtime", "per_second", "preparation"))


def train_plainly(output: str, trainer_class: type[Trainer] = Trainer, **options: Any) -> dict[str, Any]:
    """Train with a Trainer in this process, in the dataset's order."""
    dataset = options.pop("dataset", None)
    model = options.pop("model", None)
    trainer = trainer_class(
        make_model() if model is None else model,
        make_arguments(output, train_sampling_strategy="sequential", **options),
        train_dataset=Texts(64) if dataset is None else dataset,
        eval_dataset=Texts(22),
    )
    result = trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry or "eval_loss" in entry]
    return {
        "weights": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        "losses": [entry.get("loss", entry.get("eval_loss")) for entry in log],
        "norms": [entry["grad_norm"] for entry in log if "grad_norm" in entry],
        "rates": [entry["learning_rate"] for entry in log if "loss" in entry],
        "epochs": [entry["epoch"] for entry in log],
        "global_step": trainer.state.global_step,
        "train_loss": result.training_loss,
        "flos": trainer.state.total_flos,
    }
