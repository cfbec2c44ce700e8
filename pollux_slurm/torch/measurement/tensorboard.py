"""Write scalars to TensorBoard or another writer with `add_scalar`. TensorBoard itself is not imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol


class ScalarWriter(Protocol):
    """The part of `torch.utils.tensorboard.SummaryWriter` that is used here."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object:
        """Write one number."""


def write_scalars(
    writer: ScalarWriter, scalars: Mapping[str, float | None], global_step: int, tag_prefix: str
) -> None:
    """Write each number under its name below `tag_prefix`, except those that are None or not finite."""
    if tag_prefix and not tag_prefix.endswith("/"):
        tag_prefix += "/"
    for name, value in scalars.items():
        if value is not None and math.isfinite(value):
            writer.add_scalar(tag_prefix + name, value, global_step)
