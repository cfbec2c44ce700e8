"""What transformers' Trainer knows of its training, within the job's checkpoints."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from pollux_slurm.json_texts import parse_json
from pollux_slurm.torch.api.state import State
from pollux_slurm.torch.checkpoint.default_names import OWN
from pollux_slurm.torch.session.current_session import current_session

# Of TrainerState; the others follow from the arguments, or differ between processes.
_KEPT = (
    "epoch",
    "global_step",
    "num_input_tokens_seen",
    "total_flos",
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
)


class TrainerProgress(State):
    """TrainerState, the callbacks' states, and the sums of losses that were not logged yet.

    `batches` counts global batches of the initial size: in the training, and in its present epoch.
    `is_stopped` is True once a callback or `max_steps` has ended the training. `evaluation_after_step` has
    what Trainer was about to do where a restart comes to an evaluation between two steps.
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(f"{OWN}trainer")
        self._trainer = trainer
        self.batches = self.batches_in_epoch = 0
        self.is_stopped = False
        self._sums = {"loss": 0.0, "total": 0.0, "logged": 0}
        self._earlier_s, self._began_s = 0.0, time.monotonic()
        self.evaluation_after_step: dict[str, bool] | None = None
        self._at_evaluation: dict[str, Any] | None = None

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Keep the progress of the evaluation's beginning in the checkpoints until it has ended.

        A restart evaluates again, so none of several datasets may have been logged or counted by a callback.
        """
        self.sync()
        self._at_evaluation = self.state_dict()
        try:
            yield
        finally:
            self._at_evaluation = self.evaluation_after_step = None

    @property
    def runtime_s(self) -> float:
        """How long earlier runs of the job have trained."""
        return self._earlier_s

    def begin(self) -> None:
        """Give the sums of the losses back to Trainer, which has just set them to zero."""
        trainer, self._began_s = self._trainer, time.monotonic()
        # Attributes of Trainer's loop, read in 5.3 and 5.23.
        trainer._tr_loss += self._sums["loss"]
        trainer._total_loss_scalar = self._sums["total"]
        trainer._globalstep_last_logged = self._sums["logged"]
        trainer._initial_global_step = 0

    def sync(self) -> None:
        """Replace each replica's part of the loss by the mean of all, and add up their operations."""
        trainer = self._trainer
        if hasattr(trainer, "_tr_loss"):
            trainer._tr_loss.copy_(trainer.accelerator.reduce(trainer._tr_loss, "mean"))
            trainer.store_flos()
            self._sums = {
                "loss": trainer._tr_loss.item(),
                "total": trainer._total_loss_scalar,
                "logged": trainer._globalstep_last_logged,
            }

    def state_dict(self) -> dict[str, Any]:
        if self._at_evaluation is not None:
            return self._at_evaluation
        state = self._trainer.state
        return {
            # As text, as Trainer itself writes it: its log has whatever the metrics return.
            "state": json.dumps({name: getattr(state, name) for name in _KEPT}),
            "callbacks": json.dumps([[type(one).__name__, one.state()["attributes"]] for one in self._own()]),
            "sums": self._sums,
            "batches": self.batches,
            "batches_in_epoch": self.batches_in_epoch,
            "is_stopped": self.is_stopped,
            "evaluation_after_step": self.evaluation_after_step,
            "runtime_s": self._earlier_s + time.monotonic() - self._began_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in parse_json(state["state"]).items():
            setattr(self._trainer.state, name, value)
        saved = parse_json(state["callbacks"])
        for callback in self._own():
            mine = next((one for one in saved if one[0] == type(callback).__name__), None)
            if mine is not None:
                saved.remove(mine)
                for name, value in mine[1].items():
                    setattr(callback, name, value)
        self._sums = dict(state["sums"])
        self.batches, self.batches_in_epoch = state["batches"], state["batches_in_epoch"]
        self.is_stopped, self._earlier_s = state["is_stopped"], state["runtime_s"]
        self.evaluation_after_step = state["evaluation_after_step"]

    def _own(self) -> list[Any]:
        """Return the callbacks that have a state."""
        return [one for one in self._trainer.callback_handler.callbacks if isinstance(one, ExportableState)]


class ProgressKeeper(TrainerCallback):
    """The first of the callbacks: it keeps the progress, and ends the loops over the training loader."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.progress.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        progress, steps = self._trainer.progress, self._trainer.steps
        progress.batches += steps.loader.schedule_steps
        progress.batches_in_epoch += steps.loader.schedule_steps
        whole = self._trainer.batches_in_epoch
        # Trainer counts steps of this process's part of the epoch.
        state.epoch = (current_session().progress_state.epoch or 0) + progress.batches_in_epoch / whole
        if steps.loader.limits.max_batch_size is not None and progress.batches >= state.max_steps:
            # With batches that grow, fewer steps are as many examples.
            control.should_training_stop = True
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        is_stopping = control.should_training_stop or control.should_epoch_stop
        self._trainer.steps.end(is_left=is_stopping and not self._trainer.has_whole_epoch)
