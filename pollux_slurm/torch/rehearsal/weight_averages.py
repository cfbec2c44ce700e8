"""Detect averages of the weights (EMA) that a script updates in micro-batches that only accumulate.

In such a micro-batch the weights do not change, and neither should their average: else it depends on the
number of micro-batches in a step. An average is recognised by its update: a tensor e in the shape of a weight
w becomes e + f·(w − e), with 0 < f < 1. A copy (f = 1) does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from pollux_slurm.torch.regroup.user_frames import user_frames
from pollux_slurm.torch.rehearsal.live_objects import live_objects

# All weights of a model are averaged alike, so a few of them suffice.
_WEIGHTS_PER_MODEL = 2
_MIN_NUMEL, _MAX_NUMEL = 4, 1 << 20
_MAX_EXAMINED = 20
_MAX_FACTOR = 0.999
_MIN_COSINE = 0.99
_MAX_RESIDUAL = 1e-4
_DEPTH = 3
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MAX_PARTS = 2000


class WeightAverageDetector:
    """Examines a run's first micro-batches that only accumulate; each takes a tenth of a second."""

    def __init__(self, models: Callable[[], Sequence[torch.nn.Module]]) -> None:
        self._models = models
        self._num_examined = 0
        self._weights: list[torch.Tensor] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin_micro_batch(self) -> None:
        """Copy all tensors that may be averages: a micro-batch begins that only accumulates."""
        self._before = []
        if self._num_examined >= _MAX_EXAMINED:
            return
        self._num_examined += 1
        self._weights = [weight for model in self._models() for weight in _chosen(model)]
        self._before = [(tensor, _plain(tensor)) for tensor in self._candidates()]

    def end_micro_batch(self) -> list[str]:
        """Return the variables with averages that the micro-batch has changed; "" for an unknown variable."""
        before, self._before = self._before, []
        if not before:
            return []
        copies = {id(tensor): numbers for tensor, numbers in before}
        moved = []
        for tensor in self._candidates():
            now = _plain(tensor)
            # Where a script has replaced the tensor by a new one, any of the copies may be the old one.
            olds = [copies[id(tensor)]] if id(tensor) in copies else [numbers for _, numbers in before]
            weights = [_plain(weight) for weight in self._weights if weight.shape == tensor.shape]
            if any(_is_step_towards(weight, old, now) for old in olds for weight in weights):
                moved.append(tensor)
        frames = list(user_frames())
        return sorted({name_of(tensor, frames) for tensor in moved})

    def _candidates(self) -> list[torch.Tensor]:
        """Return the process's tensors that have a chosen weight's shape and belong to no model."""
        shapes = {weight.shape for weight in self._weights}
        own = {id(tensor) for model in self._models() for tensor in (*model.parameters(), *model.buffers())}
        return [
            value
            for value in live_objects(torch.Tensor)
            if type(value) in _PLAIN_TENSORS  # no fake, lazy or distributed ones
            and value.is_floating_point()
            and value.shape in shapes
            and id(value) not in own
            and value.layout is torch.strided
            and not value.is_meta
            and value.untyped_storage().size() >= value.numel() * value.element_size()
        ]


def _chosen(model: torch.nn.Module) -> Sequence[torch.Tensor]:
    sized = [
        weight
        for weight in model.parameters()
        if weight.requires_grad and _MIN_NUMEL <= weight.numel() <= _MAX_NUMEL
    ]
    return sorted(sized, key=lambda weight: -weight.numel())[:_WEIGHTS_PER_MODEL]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float64, copy=True).reshape(-1)


def _is_step_towards(weight: torch.Tensor, before: torch.Tensor, now: torch.Tensor) -> bool:
    """Return whether `now` = `before` + f·(`weight` − `before`) with 0 < f < 1, except for rounding."""
    if before.shape != weight.shape or now.shape != weight.shape or not before.any():
        return False
    step, way = now - before, weight - before
    lengths = float(step.norm()) * float(way.norm())
    if not 0.0 < lengths < float("inf"):
        return False
    along = float(step @ way)
    factor = along / float(way @ way)
    if along / lengths < _MIN_COSINE or factor > _MAX_FACTOR:
        return False
    # The cosine is not enough: in a direction far longer than both, it is always near 1.
    return float((now - before - factor * way).norm()) <= _MAX_RESIDUAL * float(now.norm())


def name_of(tensor: torch.Tensor, frames: Sequence[FrameType]) -> str:
    """Return the script's variable that contains a tensor, directly or nested; "" if none does."""
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            if not name.startswith("__") and _holds(value, tensor, _DEPTH):
                return name
    return ""


def _holds(value: Any, tensor: torch.Tensor, depth: int) -> bool:
    if value is tensor:
        return True
    if isinstance(value, torch.nn.Module):
        return any(part is tensor for part in (*value.parameters(), *value.buffers()))
    return depth > 0 and any(_holds(part, tensor, depth - 1) for part in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif isinstance(value, torch.Tensor | type) or not hasattr(value, "__dict__"):
        parts = []
    else:
        parts = list(vars(value).values())
    yield from parts[:_MAX_PARTS]
