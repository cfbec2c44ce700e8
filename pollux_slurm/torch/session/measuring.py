"""What a replica measures of its steps, and what rank 0 makes of that: a model, reports, a batch size."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pollux_slurm.agent.launch.environment import JobEnvironment, process_age_s
from pollux_slurm.agent.measure.fit_and_batch_choice import TrainingState, Tuner
from pollux_slurm.agent.measure.profile import StepProfile
from pollux_slurm.agent.measure.report_builder import ReportBuilder, TrainingProgress
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.model import BatchChoice, BatchLimits, Configuration
from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.torch.checkpoint.progress import MeasuredState, ProgressState
from pollux_slurm.torch.data.micro_batches import StepPlan
from pollux_slurm.torch.gradients.noise_scale import NoiseEstimator
from pollux_slurm.torch.measurement.step_clock import StepClock
from pollux_slurm.torch.measurement.timestamps import HostInstant, Instant, instants_on
from pollux_slurm.torch.session.joining import make_reporter


class Measuring:
    """The step clock of one replica; on rank 0 also report_builder and the reporter's thread.

    `restore_s` is how long it took to take up a checkpoint, None without one; `where` says how far training
    is, in words. `report_builder` and `reporter` are
    None on other ranks.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        run_number: int,
        restore_s: float | None,
        progress: ProgressState,
        where: Callable[[], str],
    ) -> None:
        # Only rank 0 makes anything of step times.
        self.clock = StepClock(HostInstant if environment.rank == 0 else None)
        self.profile = StepProfile()
        self._tuner = Tuner(
            Configuration(num_nodes=environment.num_nodes, num_gpus=environment.world_size),
            self.profile,
            equation=environment.config.agent.throughput_equation,
        )
        self._progress = progress
        self.report_builder: ReportBuilder | None = None
        self.reporter: Reporter | None = None
        if environment.rank == 0:
            self.report_builder = ReportBuilder(
                run_number=run_number,
                restart_count=environment.restart_count,
                gpus_per_node=environment.gpus_per_node,
                tuner=self._tuner,
                restore_s=restore_s,
            )
            self.reporter = make_reporter(environment, self.report_builder, run_number, where)

    @property
    def state(self) -> MeasuredState:
        """What of it belongs into checkpoints."""
        return MeasuredState(self.profile, self._tuner)

    def runs_on(self, device: torch.device) -> None:
        """Tell where the model is that is stepped with, before its first step."""
        if self.clock.instant is not None:
            self.clock.instant = instants_on(device)
        if device.type == "cuda":
            self._tuner.gpu_type = torch.cuda.get_device_name(device)

    def start(self) -> None:
        """Begin to report."""
        self.tell_progress()
        if self.reporter is not None:
            self.reporter.start()

    def step_done(
        self, step: StepPlan, batch: BatchChoice, *, local_end: Instant | None, sync_end: Instant | None
    ) -> None:
        """Close the clock's step; without the stamps of a reduction it does not count."""
        self.clock.step_done(
            local_end=local_end,
            sync_end=sync_end,
            atomic_batch_size=batch.atomic_batch_size,
            num_examples=step.size,
            is_typical=step.is_full and not any(plan.is_padding for plan in step.passes),
        )

    def propose(self, limits: BatchLimits, batch: BatchChoice, noise: NoiseEstimator) -> BatchChoice:
        """Return the best batch by what is known now; `batch` where that is about as good."""
        return self._tuner.propose(_training(limits, batch, noise))

    def tell_step(self, limits: BatchLimits, batch: BatchChoice, noise: NoiseEstimator) -> BatchChoice | None:
        """On rank 0: record what was measured; return the batch that was proposed meanwhile."""
        if self.report_builder is None or self.reporter is None:
            return None
        for step in self.clock.measured():
            self.report_builder.add_step(step)
        self.report_builder.set_training_state(_training(limits, batch, noise))
        if self.report_builder.first_step_s is None:
            self.report_builder.set_first_step(process_age_s())
            self.report_builder.set_phase(RunPhase.TRAINING)
            self.reporter.report_soon()
        elif self.report_builder.phase is not RunPhase.TRAINING:
            self.report_builder.set_phase(RunPhase.TRAINING)
        return self.report_builder.take_proposal(limits)

    def tell_progress(self) -> None:
        """Let the next report say how far training has come."""
        if self.report_builder is not None:
            self.report_builder.set_progress(
                TrainingProgress(
                    num_steps=self._progress.num_steps,
                    num_examples=self._progress.run_examples,
                    progress=self._progress.progress,
                    epoch=self._progress.finished_epochs,
                    total_epochs=self._progress.total_epochs,
                )
            )

    def tell_end(self) -> None:
        """Report that no epoch is left."""
        if self.report_builder is not None and self.reporter is not None:
            self.report_builder.set_phase(RunPhase.FINISHED)
            self.reporter.report_soon()

    def close(self, *, timeout_s: float) -> None:
        """Send what is left to say, for a bounded time."""
        if self.reporter is not None:
            self.reporter.close(timeout_s=timeout_s)


def _training(limits: BatchLimits, batch: BatchChoice, noise: NoiseEstimator) -> TrainingState:
    return TrainingState(
        limits=limits, statistics=noise.statistics(), num_updates=noise.num_updates, batch=batch
    )
