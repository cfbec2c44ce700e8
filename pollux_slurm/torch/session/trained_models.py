"""The models that step with the loaders' batches, as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Optimizer

from pollux_slurm.torch.coordination.replica_comparison import is_time_to_compare
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel


class TrainedModels:
    """The wrapped models of a training, in the order in which the script has made them."""

    def __init__(self) -> None:
        self._models: list[WrappedModel] = []
        self._num_batches = 0

    def __iter__(self) -> Iterator[WrappedModel]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def add(self, model: WrappedModel) -> None:
        """Add a model."""
        self._models.append(model)

    @property
    def first(self) -> WrappedModel | None:
        """The first one, whose gradient noise decides the batch size; None without any."""
        return self._models[0] if self._models else None

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained, of all of them."""
        trained = (p for model in self._models for p in model.module.parameters() if p.requires_grad)
        return sum(p.numel() for p in trained)

    @property
    def precision(self) -> str | None:
        """The type of numbers that the first one computes with, as PyTorch names it."""
        return None if self.first is None else self.first.precision

    @property
    def has_open_step(self) -> bool:
        """True between an optimizer's step and the boundary after it."""
        return any(model.has_stepped for model in self._models)

    @property
    def has_gradients(self) -> bool:
        """True where gradients of a wrapped model were computed and not used."""
        return any(model.reducer.is_pending for model in self._models)

    def is_wrapped(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer was given to one of them."""
        return any(one is optimizer for model in self._models for one in model.optimizers)

    def needs_pairs(self) -> bool:
        """Return, as a step is planned, whether a replica must not get a single example."""
        return any(model.needs_pairs for model in self._models)

    def finish_restore(self) -> None:
        """Finish restoring them: the script has made them, and training begins."""
        for model in self._models:
            model.finish_restore()

    def refuse(self, reason: str | None) -> None:
        """Refuse backward passes for a reason; None allows them."""
        for model in self._models:
            model.reducer.refusal = reason

    def plan(self, plan: MicroBatchPlan | None) -> None:
        """Set the micro-batch to come; None: no loop is under way."""
        for model in self._models:
            model.shape.begin_micro_batch(plan)
            model.reducer.begin_micro_batch(plan)

    def take_stepped(self) -> list[WrappedModel]:
        """Return those whose optimizer has stepped since the last call."""
        return [model for model in self._models if model.take_stepped()]

    def compare_now_and_then(self) -> None:
        """Compare the replicas' weights after some batches; each checkpoint compares them, too."""
        self._num_batches += 1
        if is_time_to_compare(self._num_batches):
            for model in self._models:
                if model.is_on_all_replicas:
                    model.comparison.compare()
                    model.shape.compare_replicas()

    def leave_run(self) -> None:
        """Let go of the replicas' process group, between two steps."""
        for model in self._models:
            model.leave_run()

    def begin_run(self) -> None:
        """Go on with other replicas: all count alike what decides when they communicate."""
        self._num_batches = 0
        for model in self._models:
            model.begin_run()
