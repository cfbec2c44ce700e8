"""Averages of the weights (EMA) that a script updates in passes that only accumulate.

In such a pass the weights stay as they are, and so should their average: updated there, it depends on how
many passes a step is split into. An average is known by what it does, whatever holds it: a tensor e in the
shape of a weight w goes to e + f·(w − e), with 0 < f < 1. A copy (f = 1) may be made as often as one likes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from pollux_slurm.torch.rehearsal.snapshot import user_frames

# All weights of a model are averaged alike, so a few of them tell.
_WEIGHTS_PER_MODEL = 2
_LEAST_NUMEL, _MOST_NUMEL = 4, 1 << 20
_MOST_LOOKS = 20
_MOST_FACTOR = 0.999
_LEAST_COSINE = 0.99
_MOST_RESIDUAL = 1e-4
_DEPTH = 3
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_MOST_PARTS = 2000


class AverageWatch:
    """Looks at the first passes of a run that only accumulate. A look takes a tenth of a second."""

    def __init__(self, models: Callable[[], Sequence[torch.nn.Module]]) -> None:
        self._models = models
        self._num_looks = 0
        self._weights: list[torch.Tensor] = []
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin_pass(self) -> None:
        """A pass begins that only accumulates: keep all that might be an average."""
        self._before = []
        if self._num_looks >= _MOST_LOOKS:
            return
        self._num_looks += 1
        self._weights = [weight for model in self._models() for weight in _chosen(model)]
        self._before = [(tensor, _plain(tensor)) for tensor in self._candidates()]

    def end_pass(self) -> list[str]:
        """Return the variables that hold averages which the pass has moved; empty text for one unknown."""
        before, self._before = self._before, []
        if not before:
            return []
        held = {id(tensor): numbers for tensor, numbers in before}
        moved = []
        for tensor in self._candidates():
            now = _plain(tensor)
            # Where a script puts a new tensor in place of the old one, any of the old may be it.
            olds = [held[id(tensor)]] if id(tensor) in held else [numbers for _, numbers in before]
            weights = [_plain(weight) for weight in self._weights if weight.shape == tensor.shape]
            if any(_is_step_towards(weight, old, now) for old in olds for weight in weights):
                moved.append(tensor)
        frames = list(user_frames())
        return sorted({name_of(tensor, frames) for tensor in moved})

    def _candidates(self) -> list[torch.Tensor]:
        """Return the process's tensors that have a chosen weight's shape and are no part of a model."""
        shapes = {weight.shape for weight in self._weights}
        own = {id(tensor) for model in self._models() for tensor in (*model.parameters(), *model.buffers())}
        return [
            value
            for value in gc.get_objects()
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
        if weight.requires_grad and _LEAST_NUMEL <= weight.numel() <= _MOST_NUMEL
    ]
    return sorted(sized, key=lambda weight: -weight.numel())[:_WEIGHTS_PER_MODEL]


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", torch.float64, copy=True).reshape(-1)


def _is_step_towards(weight: torch.Tensor, before: torch.Tensor, now: torch.Tensor) -> bool:
    """Whether `now` = `before` + f·(`weight` − `before`) with 0 < f < 1, but for rounding."""
    if before.shape != weight.shape or now.shape != weight.shape or not before.any():
        return False
    step, way = now - before, weight - before
    lengths = float(step.norm()) * float(way.norm())
    if not 0.0 < lengths < float("inf"):
        return False
    along = float(step @ way)
    factor = along / float(way @ way)
    if along / lengths < _LEAST_COSINE or factor > _MOST_FACTOR:
        return False
    # Seen from a tensor far larger than both, everything lies in one direction.
    return float((now - before - factor * way).norm()) <= _MOST_RESIDUAL * float(now.norm())


def name_of(tensor: torch.Tensor, frames: Sequence[FrameType]) -> str:
    """Return the variable of the script that holds a tensor, somewhere inside."""
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
    yield from parts[:_MOST_PARTS]
