"""Refuse optimizers that step a wrapped model's parameters but were not given to `AdaptiveDataParallel`."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel


class UnwrappedOptimizerCheck:
    """Refuses such an optimizer at its first step. Each optimizer of the process is checked once."""

    def __init__(self) -> None:
        self._models: list[WrappedModel] = []
        self._passed: WeakSet[Optimizer] = WeakSet()
        self._handle = register_optimizer_step_pre_hook(self._look)

    def add(self, model: WrappedModel) -> None:
        """Add a wrapped model, whose parameters only its own optimizers may step."""
        self._models.append(model)
        self._passed = WeakSet()

    def remove(self) -> None:
        """Let every optimizer step."""
        self._handle.remove()

    def _look(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in self._passed:
            return
        if any(model.num_stepping for model in self._models):
            # A given optimizer steps with the help of another.
            return
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model in self._models:
            if optimizer not in model.optimizers and not stepped.isdisjoint(model.parameter_ids()):
                raise UsageError(
                    f"{type(optimizer).__name__}.step: the optimizer has parameters of a wrapped model and "
                    "was not given to AdaptiveDataParallel. It would step in every micro-batch, by different "
                    "gradients on each replica, and be in no checkpoint. Give all optimizers, each with its "
                    "own part of the parameters: AdaptiveDataParallel(model, [first, second]). Where one is "
                    "around another (SAM), give the inner one"
                )
        self._passed.add(optimizer)
