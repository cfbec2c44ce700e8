"""Name what makes a training depend on the job's shape: on splits of a batch, and on the number of replicas.

While the loader splits a batch into micro-batches, the script's code runs once for each, and the optimizers
step after the last. Two things then differ from whole batches, and nothing else shows it:

- a model that is trained on after its own step in a batch, as a GAN's generator is through the discriminator:
  before the last micro-batch that step is still to come;
- a forward that writes buffers (a codebook, a queue, a power iteration): it writes them once a micro-batch.

A forward that writes buffers by its replica's own examples differs with the number of replicas, too: only
replica 0's are kept. All are said in the log, once, and training goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.coordination.training_faults import TrainingFaults
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan
from pollux_slurm.torch.gradients.gradient_state import GradientState
from pollux_slurm.torch.gradients.half_batches import tensors_in
from pollux_slurm.torch.gradients.repeated_passes import KEEP_WHOLE

_AFTER_STEP = (
    "{model} is trained through again after its own optimizer's step in the same batch, as in a GAN. The "
    "batch is split into micro-batches, and that step is made after the last one: those before it meet the "
    f"weights of before the step. {KEEP_WHOLE}; or train the two in two loops over the loader"
)
_PER_MICRO_BATCH = (
    "the forward of {model} writes {buffers}. The batch is split into micro-batches, so that this happens "
    f"once for each of them, with its examples only, not once a step. {KEEP_WHOLE}; or write them in the "
    "loop, where loader.is_stepping"
)
_PER_REPLICA = (
    "the forward of {model} writes {buffers} by each replica's own examples, and only those of replica 0 are "
    "kept: add up what is written over the replicas (torch.distributed.all_reduce)"
)
_LENGTH = (
    "an LR scheduler that was made within an epoch steps once for each global batch, but there len(loader) "
    "counts micro-batches, into which batches are split: take it before the epochs, where both count the same"
)
_MAX_NAMED = 3
# Relative to the sum of a buffer's absolute values: replicas on different devices round differently.
_TOLERANCE = 1e-3


class ShapeCheck:
    """Watches one wrapped model and the state of its `gradients`. Batch statistics are known to differ."""

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        name: str,
        gradients: GradientState,
        side_channel: SideChannel[Any],
        faults: TrainingFaults,
    ) -> None:
        self._model, self._name = model, f"{name!r} ({type(model).__name__})"
        self._gradients = gradients
        self._side_channel, self._faults = side_channel, faults
        self._plan: MicroBatchPlan | None = None
        # Batches that were split. In the second one a power iteration has weights that have changed.
        self._num_split = 0
        self._has_told = self._has_told_of_replicas = False

    def begin_micro_batch(self, plan: MicroBatchPlan | None) -> None:
        """Set the plan of the coming micro-batch; None outside of an adaptive loader's loop."""
        self._plan = plan

    def before_forward(self) -> Mapping[str, torch.Tensor] | None:
        """Return a copy of the buffers, once: in the second batch that is split."""
        is_second = self._plan is not None and self._plan.index == 1
        if self._num_split > 1 or not is_second or not self._model.training or not torch.is_grad_enabled():
            return None
        self._num_split += 1
        return {name: one.clone() for name, one in self._buffers()} if self._num_split > 1 else None

    def after_forward(self, before: Mapping[str, torch.Tensor] | None, output: Any) -> None:
        """Compare the buffers with those before; after a put-off step watch what the output is used for."""
        if before:
            self._tell(
                _PER_MICRO_BATCH,
                [name for name, now in self._buffers() if not _is_equal(before.get(name), now)],
            )
        is_put_off = self._plan is not None and not self._plan.is_last
        if self._has_told or not is_put_off or not torch.is_grad_enabled():
            return
        if self._gradients.has_stepped_in_batch(None):
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._trained_after_step)

    def compare_replicas(self) -> None:
        """Compare the buffers of all replicas, after the same forward. Called on all of them alike.

        Those that only some replicas have are left out.
        """
        if self._side_channel.world_size == 1:
            return
        first, *others = self._side_channel.gather(_sums(dict(self._buffers())))
        differing = [
            name
            for name, sums in first.items()
            if any(name in one and _is_other(sums, one[name]) for one in others)
        ]
        if not self._has_told_of_replicas:
            self._tell(_PER_REPLICA, differing)
            self._has_told_of_replicas = bool(differing)

    def step_schedule_of_epoch(self) -> None:
        """Say how long a schedule is that an epoch makes, where a batch is split."""
        self._faults.log(_LENGTH)

    def _trained_after_step(self, gradient: torch.Tensor) -> None:
        if not self._has_told:
            self._has_told = True
            self._faults.log(_AFTER_STEP.format(model=self._name))

    def _tell(self, text: str, names: list[str]) -> None:
        if names:
            more = ", ..." if len(names) > _MAX_NAMED else ""
            buffers = f"the buffer{'s' if len(names) > 1 else ''} {', '.join(names[:_MAX_NAMED])}{more}"
            self._faults.log(text.format(model=self._name, buffers=buffers))

    def _buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers of numbers that are part of a checkpoint, but for batch statistics."""
        for prefix, module in self._model.named_modules():
            if isinstance(module, _NormBase):
                continue
            for name, buffer in module.named_buffers(prefix, recurse=False):
                is_kept = name.rpartition(".")[2] not in module._non_persistent_buffers_set
                if is_kept and buffer.is_floating_point():
                    yield name, buffer


def _sums(buffers: Mapping[str, torch.Tensor]) -> dict[str, list[float]]:
    """Return each buffer's sum and that of its absolute values, with one wait for the device."""
    if not buffers:
        return {}
    device = next(iter(buffers.values())).device
    sums = [
        torch.stack([wide.sum(), wide.abs().sum()]).to(device)
        for wide in (one.double() for one in buffers.values())
    ]
    return dict(zip(buffers, torch.stack(sums).tolist(), strict=True))


def _is_equal(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and one.shape == other.shape and torch.equal(one, other)


def _is_other(first: list[float], other: list[float]) -> bool:
    values = [*first, *other]
    return all(map(math.isfinite, values)) and abs(first[0] - other[0]) > _TOLERANCE * max(first[1], other[1])
