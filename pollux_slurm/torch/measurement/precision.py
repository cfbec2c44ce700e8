"""The type of numbers that a model computes with."""

from __future__ import annotations

import torch


def computed_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the type that a parameter has in a forward pass: that of autocast, where it is on."""
    kind = parameter.device.type
    if parameter.is_floating_point() and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return parameter.dtype
