"""What Lightning itself knows of a `fit`, as a part of the job's checkpoints.

Loops' progress, callbacks, the modules' own states, schedules, loggers and logged values. Weights and
optimizers are the wrapped model's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning

from pollux_slurm.errors import CheckpointError
from pollux_slurm.lightning.epoch_sums import add_saved_sums, merged_sums, own_sums
from pollux_slurm.lightning.fit_control import FitControl
from pollux_slurm.lightning.logged_values import merged_metric_states, metric_states, restore_metric_states
from pollux_slurm.lightning.loggers import logger_state, resume_loggers
from pollux_slurm.lightning.private_parts import (
    call_hooks,
    logged_results,
    logged_values,
    steps_of_batches,
)
from pollux_slurm.torch import State
from pollux_slurm.torch.session.current_session import current_session

# What Lightning puts into the dictionary that hooks get, and what is kept elsewhere. `state_dict` is the
# wrapped model's, unless a hook has put others there.
_OWN_KEYS = {"epoch", "global_step", "pytorch-lightning_version", "state_dict", "loops", "callbacks"}


class FitState(State):
    """The state of one `fit`. `saved` is that of the checkpoint, None where the training begins.

    Hooks are called on every replica, as Lightning does for its own checkpoints.
    """

    def __init__(self, name: str, trainer: Any, *, reduce: Callable[..., Any]) -> None:
        super().__init__(name)
        self._trainer, self._reduce = trainer, reduce
        self.control: FitControl | None = None
        # Schedulers that no wrapped model has.
        self.schedulers: Sequence[Any] = ()
        self.saved: dict[str, Any] | None = None
        self._current: dict[str, Any] = {}
        self._sums_to_add: Mapping[str, Any] | None = None

    def state_dict(self) -> Mapping[str, Any]:
        return self._current or self.saved or {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.saved = dict(state) or None

    # -------------------------------------------------------------------------------------------- saving

    def sync(self) -> None:
        """Collect the state on all replicas."""
        trainer, control = self._trainer, self.control
        if control is None or control.is_over:
            return
        session = current_session()
        module = trainer.lightning_module
        results = logged_results(trainer)
        own = own_sums(results)
        if self._sums_to_add is not None and session.rank == 0:
            own = merged_sums([self._sums_to_add, own])
        parts = session.side_channel.gather([own, metric_states(module)])
        self._current = {
            "lightning": lightning.__version__,
            "fit_loop": trainer.fit_loop.state_dict(),
            "is_in_epoch": control.is_in_epoch,
            "is_pending": control.is_pending,
            "batches_done": control.batches_done,
            "should_stop": trainer.should_stop,
            "schedulers": [one.state_dict() for one in self.schedulers],
            "loggers": logger_state(
                trainer.loggers, next_step=self._next_step(), is_rank_0=session.rank == 0
            ),
            "metrics": {name: dict(values) for name, values in logged_values(trainer).items()},
            "sums": merged_sums(sums for sums, _ in parts),
            "torchmetrics": merged_metric_states([states for _, states in parts], module),
            "hooks": self._collect_hooks(),
        }

    def _next_step(self) -> int:
        """Return the step with which the next batch will be logged."""
        assert self.control is not None
        return steps_of_batches(self._trainer) + self.control.is_pending

    def _collect_hooks(self) -> dict[str, Any]:
        """Return what callbacks, module and data module want to keep."""
        trainer, datamodule = self._trainer, self._trainer.datamodule
        weights = trainer.lightning_module.state_dict()
        checkpoint = self._checkpoint(dict(weights))
        checkpoint["callbacks"] = call_hooks("callbacks_state_dict", trainer)
        data = None if datamodule is None else datamodule.state_dict()
        call_hooks("callbacks_on_save_checkpoint", trainer, checkpoint)
        call_hooks("lightning_module_hook", trainer, "on_save_checkpoint", checkpoint)
        own = {key: value for key, value in checkpoint.items() if key not in _OWN_KEYS}
        given = checkpoint["state_dict"]
        if given.keys() != weights.keys() or any(given[name] is not weights[name] for name in weights):
            # Others than the module's, such as the average of `WeightAveraging`.
            own["state_dict"] = given
        return {"callbacks": checkpoint["callbacks"], "datamodule": data or None, "own": own}

    def _checkpoint(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Return what hooks find in a checkpoint of Lightning's."""
        trainer = self._trainer
        return {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "pytorch-lightning_version": lightning.__version__,
            "state_dict": weights,
            "loops": {"fit_loop": trainer.fit_loop.state_dict()},
        }

    # ----------------------------------------------------------------------------------------- restoring

    def restore_loggers(self) -> None:
        """Let the loggers go on, before they are used."""
        if self.saved is not None:
            is_rank_0 = current_session().rank == 0
            resume_loggers(self._trainer.loggers, self.saved["loggers"], is_rank_0=is_rank_0)

    def restore_hooks(self, weights: Mapping[str, Any]) -> None:
        """Give callbacks, module and data module what they had kept; before optimizers are made."""
        if self.saved is None:
            return
        assert self.control is not None
        self.control.resume(self.saved)
        trainer, hooks = self._trainer, self.saved["hooks"]
        checkpoint = {**self._checkpoint(weights), "callbacks": hooks["callbacks"], **hooks["own"]}
        call_hooks("lightning_module_hook", trainer, "on_load_checkpoint", checkpoint)
        if trainer.datamodule is not None and hooks["datamodule"] is not None:
            trainer.datamodule.load_state_dict(hooks["datamodule"])
        call_hooks("callbacks_on_load_checkpoint", trainer, checkpoint)
        call_hooks("callbacks_load_state_dict", trainer, checkpoint)

    def restore_training(self) -> None:
        """Restore schedules and logged values, once optimizers are made."""
        if self.saved is None:
            return
        if len(self.saved["schedulers"]) != len(self.schedulers):
            raise CheckpointError(
                f"the checkpoint has {len(self.saved['schedulers'])} schedulers of epochs, the module makes "
                f"{len(self.schedulers)}; if it has changed, begin anew with another checkpoint directory"
            )
        for scheduler, saved in zip(self.schedulers, self.saved["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        trainer = self._trainer
        for name, values in logged_values(trainer).items():
            values.update(self.saved["metrics"][name])
        if self.saved["is_in_epoch"]:
            self._sums_to_add = self.saved["sums"]
            restore_metric_states(
                self.saved["torchmetrics"], trainer.lightning_module, is_rank_0=current_session().rank == 0
            )

    def add_saved_sums(self) -> None:
        """Add the sums of the epoch's part before the move: once, after the first batch or without one.

        Lightning empties its sums at the first value that a batch of this process logs.
        """
        if self._sums_to_add is None:
            return
        saved, self._sums_to_add = self._sums_to_add, None
        add_saved_sums(
            saved,
            logged_results(self._trainer),
            self._trainer.lightning_module,
            sync=self._reduce,
            is_rank_0=current_session().rank == 0,
        )
