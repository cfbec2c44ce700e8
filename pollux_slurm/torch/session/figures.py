"""What a training step is like: batch, GPUs, goodput and learning rate, for whoever logs them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFigures:
    """The figures of one step of the outermost loop. What was not measured yet is None.

    `goodput` (examples/s) and `efficiency` are the model's prediction for the present allocation and batch.
    `gain` is the step's progress in steps at M0, `lr_factor` the factor of the first group's learning rate,
    `noise_scale` the gradient noise scale in examples; `progress` is the sum of all gains, this step's too.
    """

    batch_size: int
    local_batch_size: int
    accumulation_steps: int
    num_gpus: int
    num_nodes: int
    goodput: float | None
    efficiency: float | None
    gain: float
    lr_factor: float
    noise_scale: float | None
    progress: float
