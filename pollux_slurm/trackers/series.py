"""The series that describe adaptive training, by their names in every tracker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pollux_slurm.text import plural
from pollux_slurm.torch.session.allocation_history import Allocation
from pollux_slurm.torch.session.figures import TrainingFigures

STEP = "pollux/step"
MOVE_S = "pollux/move_s"


def figures_as_scalars(figures: TrainingFigures) -> dict[str, float]:
    """Return what is known of the figures as `pollux/batch_size` and so on."""
    known = {name: value for name, value in asdict(figures).items() if value is not None}
    return {f"pollux/{name}": float(value) for name, value in known.items() if math.isfinite(value)}


def describe_move(allocations: Sequence[Allocation], index: int) -> str:
    """Return one line on how allocation `index` came after the one before it."""
    before, after = allocations[index - 1], allocations[index]
    if before.num_gpus == after.num_gpus and before.num_nodes == after.num_nodes:
        what = f"restarted on {_place(after)}"
    else:
        what = f"moved from {_place(before)} to {_place(after)}"
    cost = "" if after.move_s is None else f", {after.move_s:.1f} s after the step before it"
    return f"step {after.first_step}: {what}{cost}"


def describe_moves(allocations: Sequence[Allocation]) -> list[str]:
    """Return a line for each move of a job; none if it was never moved."""
    return [describe_move(allocations, index) for index in range(1, len(allocations))]


def _place(allocation: Allocation) -> str:
    return f"{plural(allocation.num_gpus, 'GPU')} on {plural(allocation.num_nodes, 'node')}"


def as_scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return numbers, and tensors of one element, as floats."""
    return {name: float(value.item() if hasattr(value, "item") else value) for name, value in values.items()}
