"""Measurements of one replica's steps; on rank 0 also reports and batch size proposals made from them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pollux_slurm.agent.environment.job_environment import JobEnvironment, process_age_s
from pollux_slurm.agent.environment.tracker_runs import record_mlflow_run
from pollux_slurm.agent.measure.fit_and_batch_choice import Prediction, TrainingState, Tuner
from pollux_slurm.agent.measure.profile import StepProfile
from pollux_slurm.agent.measure.report_builder import ReportBuilder, TrainingProgress
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.model import BatchChoice, Configuration, JobWarning
from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.torch.boundary.seams import Seams
from pollux_slurm.torch.checkpoint.progress import MeasuredState, ProgressState
from pollux_slurm.torch.measurement.step_clock import StepClock
from pollux_slurm.torch.measurement.timestamps import timestamps_on
from pollux_slurm.torch.session.joining import make_reporter
from pollux_slurm.torch.session.trained_models import TrainedModels


class Measurements:
    """The step clock of one replica; on rank 0 also the report builder and the reporter's thread.

    `restore_s` is the time in which a checkpoint was loaded, None without one. `where` returns how far
    training is, as text. `report_builder` and `reporter` are None on other ranks. Each run has its own.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        run_number: int,
        restore_s: float | None,
        progress: ProgressState,
        where: Callable[[], str],
        seams: Seams,
    ) -> None:
        self._seams = seams
        self.clock, self._device = StepClock(None), torch.device("cpu")
        self.profile = StepProfile()
        self._tuner = Tuner(
            Configuration(num_nodes=environment.num_nodes, num_gpus=environment.world_size),
            self.profile,
        )
        self._progress, self._checkpoint_dir, self._where = progress, environment.checkpoint_dir, where
        self._has_started, self._run_began_s = False, 0.0
        self.report_builder: ReportBuilder | None = None
        self.reporter: Reporter | None = None
        self.begin_run(environment, run_number=run_number, restore_s=restore_s)

    def begin_run(self, environment: JobEnvironment, *, run_number: int, restore_s: float | None) -> None:
        """Measure and report another run from now on. The reporter of the former one ends by itself."""
        former = self.reporter
        warned: tuple[JobWarning, ...] = ()
        if self._has_started:
            self._run_began_s = process_age_s()
        if former is not None and self.report_builder is not None:
            for step in self.clock.measured():
                self._tuner.add_step(step)
            warned = self.report_builder.warnings
            # The last report of the former run does not fit the model once more.
            self.report_builder.set_phase(RunPhase.WAITING)
            former.close(timeout_s=0.0)
        self.report_builder = self.reporter = None
        self._tuner.configuration = Configuration(
            num_nodes=environment.num_nodes, num_gpus=environment.world_size
        )
        # Only rank 0 uses step times.
        self.clock.begin_run(timestamps_on(self._device) if environment.rank == 0 else None)
        if environment.rank == 0:
            self.report_builder = ReportBuilder(
                run_number=run_number,
                restart_count=environment.restart_count,
                gpus_per_node=environment.gpus_per_node,
                tuner=self._tuner,
                restore_s=restore_s,
            )
            for warning in warned:
                self.report_builder.warn(warning)
            self.reporter = make_reporter(environment, self.report_builder, run_number, self._where)
            if self._has_started:
                self.start()

    @property
    def state(self) -> MeasuredState:
        """The part that belongs into checkpoints."""
        return MeasuredState(self.profile, self._tuner)

    def set_device(self, device: torch.device) -> None:
        """Set the device of the trained model, before its first step."""
        self._device = device
        if self.clock.make_timestamp is not None:
            self.clock.make_timestamp = timestamps_on(device)
        if device.type == "cuda":
            self._tuner.gpu_type = torch.cuda.get_device_name(device)

    def start(self) -> None:
        """Start the reporter."""
        self._has_started = True
        self.report_progress()
        if self.reporter is not None:
            self.reporter.start()

    @property
    def fitting_atomic(self) -> int | None:
        """On rank 0: the examples that fit into memory at once by jobs of its kind; None where unknown."""
        return None if self.reporter is None else self.reporter.fitting_atomic

    def propose(self, training: TrainingState) -> BatchChoice:
        """Return the best batch by the present model; the present one where that is about as good."""
        return self._seams.first_batch(training.limits, training.batch, lambda: self._tuner.propose(training))

    def record_step(self, training: TrainingState, models: TrainedModels) -> BatchChoice | None:
        """On rank 0: pass measured steps to the report builder; return a batch proposed since, if any."""
        return self._seams.next_batch(training.limits, self._record_step(training, models))

    def _record_step(self, training: TrainingState, models: TrainedModels) -> BatchChoice | None:
        if self.report_builder is None or self.reporter is None:
            return None
        for step in self.clock.measured():
            self.report_builder.add_step(step)
        self.report_builder.set_training_state(training)
        if self.report_builder.first_step_s is None:
            self._tuner.num_parameters, self._tuner.precision = models.num_parameters, models.precision
            start_s = process_age_s() - self._run_began_s
            self.report_builder.set_first_step(start_s)
            self.profile.set_start_cost(start_s)
            self.report_builder.set_phase(RunPhase.TRAINING)
            self.reporter.report_soon()
            record_mlflow_run(self._checkpoint_dir)
        elif self.report_builder.phase is not RunPhase.TRAINING:
            self.report_builder.set_phase(RunPhase.TRAINING)
        return self.report_builder.take_proposal(training.limits)

    def prediction(self, batch: BatchChoice) -> Prediction | None:
        """On rank 0: return what the last report predicts for `batch`; None before the first fit."""
        return None if self.report_builder is None else self.report_builder.prediction(batch)

    def report_progress(self) -> None:
        """Put the progress of training into the next report."""
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

    def report_finished(self) -> None:
        """Report that no epoch is left."""
        if self.report_builder is not None and self.reporter is not None:
            self.report_builder.set_phase(RunPhase.FINISHED)
            self.reporter.report_soon()

    def close(self, *, timeout_s: float) -> None:
        """Send the last report, for a bounded time."""
        if self.reporter is not None:
            self.reporter.close(timeout_s=timeout_s)
