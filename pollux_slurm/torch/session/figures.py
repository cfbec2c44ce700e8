"""What a training step is like: batch, GPUs, goodput and learning rate, for whoever logs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.agent.measure.fit_and_batch_choice import Prediction
from pollux_slurm.goodput import noise_scale
from pollux_slurm.torch.session.loader_protocol import Loader

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel


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


def figures_of(
    loader: Loader,
    model: WrappedModel,
    *,
    environment: JobEnvironment,
    prediction: Prediction | None,
    progress: float,
) -> TrainingFigures:
    """Return the figures of the loader's present step. `prediction` is the fitted model's, if any."""
    batch, statistics = loader.choice, model.noise.statistics()
    return TrainingFigures(
        batch_size=batch.global_batch_size,
        local_batch_size=batch.atomic_batch_size,
        accumulation_steps=batch.accumulation_steps,
        num_gpus=environment.world_size,
        num_nodes=environment.num_nodes,
        goodput=None if prediction is None else prediction.throughput * prediction.efficiency,
        efficiency=None if prediction is None else prediction.efficiency,
        gain=model.gain,
        lr_factor=model.last_factor,
        noise_scale=None
        if statistics is None or statistics.sqr <= 0
        else noise_scale(statistics, loader.batch_size),
        progress=progress,
    )
