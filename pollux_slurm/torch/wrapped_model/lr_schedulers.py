"""The LR schedulers of one wrapped model: how often each is stepped, and which a restart restores.

A script may make one before the training, or in an epoch (a warm-up), which a restart in a later epoch does
not make again. A checkpoint has those made before the training and in the epoch under way: the state of each,
its calls between loops by epoch, and the epoch that made it (−1: before them). Where a checkpoint lacks these
epochs, a scheduler that the script does not make before the training counts as one of the epoch under way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.optim import Optimizer

from pollux_slurm.errors import CheckpointError
from pollux_slurm.torch.gradients.reducer import GradientReducer
from pollux_slurm.torch.wrapped_model.patching import patch_class
from pollux_slurm.torch.wrapped_model.shape_check import ShapeCheck

_BEFORE_EPOCHS = -1


@dataclass(slots=True, eq=False)
class _Scheduled:
    """One scheduler; `made_in` is its epoch. Its calls between loops are counted by epoch.

    `in_state` are those that its state has, `called` those that this process has made.
    """

    scheduler: Any
    made_in: int
    in_state: dict[int, int] = field(default_factory=dict)
    called: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Saved:
    """One of a checkpoint; `made_in` is None where it does not say."""

    state: Mapping[str, Any]
    in_state: Mapping[int, int]
    made_in: int | None

    def load_into(self, own: _Scheduled) -> None:
        own.scheduler.load_state_dict(self.state)
        own.in_state = dict(self.in_state)


class LrSchedulers:
    """The schedulers of `optimizers`, whose `step` is patched.

    `steps_per_batch` is how many batches of M0 end with the present global batch.
    """

    def __init__(
        self,
        given: Sequence[Any],
        optimizers: Sequence[Optimizer],
        *,
        reducer: GradientReducer,
        shape: ShapeCheck,
        epoch_key: Callable[[], int],
    ) -> None:
        self._optimizers, self._reducer, self._shape = optimizers, reducer, shape
        self._epoch_key, self.steps_per_batch = epoch_key, 1
        self._all: list[_Scheduled] = []
        for scheduler in given:
            self._watch(scheduler, _BEFORE_EPOCHS)
        # Those of the checkpoint that the script has not made yet.
        self._unmade: list[_Saved] = []
        # Each optimizer's options as they were restored: to make a scheduler sets the learning rate anew.
        self._restored_options: list[list[dict[str, Any]]] = []

    def _watch(self, scheduler: Any, made_in: int) -> _Scheduled:
        own = _Scheduled(scheduler, made_in)
        self._all.append(own)
        patch_class(scheduler, "step", functools.partial(self._step, own))
        return own

    def add(self, scheduler: Any) -> None:
        """Add one that was made later than the wrapper, and restore it."""
        epoch = self._epoch_key()
        own = self._watch(scheduler, epoch)
        saved = next((one for one in self._unmade if one.made_in in (None, _BEFORE_EPOCHS, epoch)), None)
        if saved is None:
            return
        self._unmade.remove(saved)
        saved.load_into(own)
        for optimizer, groups in zip(self._optimizers, self._restored_options, strict=True):
            for group, options in zip(optimizer.param_groups, groups, strict=True):
                group.update(options)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: nothing where there are none."""
        if not self._all:
            return {}
        present = [_Saved(one.scheduler.state_dict(), one.in_state, one.made_in) for one in self._all]
        # Those of earlier epochs are over.
        epochs = (_BEFORE_EPOCHS, self._epoch_key())
        kept = [one for one in [*present, *self._unmade] if one.made_in in epochs]
        if not kept:
            return {}
        return {
            "lr_schedulers": [one.state for one in kept],
            "scheduled": [one.in_state for one in kept],
            "scheduler_epochs": [one.made_in for one in kept],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the schedulers from a model's state, once its optimizers are restored.

        Raises `ValueError` where it has fewer than the script gave.
        """
        states = state.get("lr_schedulers", ())
        epochs = state.get("scheduler_epochs", [None] * len(states))
        saved = [_Saved(*one) for one in zip(states, state.get("scheduled", ()), epochs, strict=True)]
        if len(saved) < len(self._all):
            raise ValueError(f"it has {len(saved)} LR schedulers, not {len(self._all)}")
        for own, one in zip(self._all, saved, strict=False):
            one.load_into(own)
        self._unmade = saved[len(self._all) :]
        self._restored_options = [
            [{key: value for key, value in group.items() if key != "params"} for group in one.param_groups]
            for one in self._optimizers
        ]

    def check_all_made(self, model_name: str) -> None:
        """Take note that an epoch or a loop begins, before which the script has made those of no epoch.

        Raises `CheckpointError` where the checkpoint has more of them.
        """
        epoch = self._epoch_key()
        for one in self._unmade:
            if one.made_in is None and epoch != _BEFORE_EPOCHS:
                one.made_in = epoch
        number = sum(one.made_in == _BEFORE_EPOCHS for one in self._unmade)
        if number:
            raise CheckpointError(
                f"the checkpoint of {model_name!r} has {number} more LR schedulers than this script gave "
                "to it; if the script has changed, begin anew with another checkpoint directory"
            )

    def _step(self, own: _Scheduled, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Step a scheduler, unless the micro-batch only accumulates or the state has the step already.

        A schedule that is stepped within a loop counts batches of M0, so that it ends at the same example
        whatever the batch size was. A call with an argument (an epoch, a metric) is made once. Code between
        loops runs again after a restart, and the checkpoint may have been written after it.
        """
        if self._reducer.is_accumulating:
            return None
        if self._reducer.is_in_loop:
            if self._reducer.is_split and own.made_in >= 0:
                self._shape.step_schedule_of_epoch()
            for _ in range(1 if args or kwargs else self.steps_per_batch):
                original(*args, **kwargs)
            return None
        epoch = self._epoch_key()
        # Finished epochs do not come again; −1 stands for all code outside of the epochs' loop.
        own.in_state, own.called = (
            {key: value for key, value in calls.items() if key in (epoch, _BEFORE_EPOCHS)}
            for calls in (own.in_state, own.called)
        )
        own.called[epoch] = own.called.get(epoch, 0) + 1
        if own.called[epoch] <= own.in_state.get(epoch, 0):
            return None
        own.in_state[epoch] = own.called[epoch]
        return original(*args, **kwargs)
