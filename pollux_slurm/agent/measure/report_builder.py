"""The latest state of a run, the reports made of it, and the warning of steps that wait for their data."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from pollux_slurm.agent.measure.fit_and_batch_choice import Prediction, TrainingState, Tuner
from pollux_slurm.agent.measure.profile import MeasuredStep
from pollux_slurm.model import BatchChoice, BatchLimits, JobWarning
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Report, RunPhase

_LOG = logging.getLogger(__name__)
# A share of step time spent waiting for data from which a warning is logged.
_LOADING_WARNING_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far training has come. `progress` is in units of M0; `num_examples` are those of this run."""

    num_steps: int = 0
    num_examples: int = 0
    progress: float = 0.0
    epoch: int = 0
    total_epochs: int | None = None


class ReportBuilder:
    """Collects the latest state of one run and composes reports of it.

    Each method takes the lock for a few assignments only, so that no step waits.
    """

    def __init__(
        self,
        *,
        run_number: int,
        restart_count: int,
        gpus_per_node: tuple[int, ...],
        tuner: Tuner,
        restore_s: float | None,
    ) -> None:
        self._template = Report(
            run_number=run_number,
            restart_count=restart_count,
            sequence=0,
            phase=RunPhase.STARTING,
            gpus_per_node=gpus_per_node,
            restore_s=restore_s,
        )
        self._tuner = tuner
        self._lock = threading.Lock()
        self._phase = RunPhase.STARTING
        self._training: TrainingState | None = None
        self._progress = TrainingProgress()
        self._first_step_s: float | None = None
        self._interval_examples, self._interval_steps, self._interval_s = 0, 0, 0.0
        self._interval_data_s = 0.0
        self._has_warned_of_loading = False
        # With the limits of the loader that it is for.
        self._proposal: tuple[BatchLimits, BatchChoice] | None = None
        self._prediction: tuple[BatchChoice, Prediction] | None = None
        self._has_reported_step = False
        self._written: CheckpointConfirmation | None = None
        self._warnings: dict[JobWarning, None] = {}

    @property
    def phase(self) -> RunPhase:
        return self._phase

    @property
    def first_step_s(self) -> float | None:
        return self._first_step_s

    def set_phase(self, phase: RunPhase) -> None:
        """Set the phase of the run."""
        self._phase = phase

    def set_first_step(self, since_process_start_s: float) -> None:
        """Set the time from the process's start to the end of the first optimizer step."""
        self._first_step_s = since_process_start_s

    def set_training_state(self, training: TrainingState) -> None:
        """Set the state of training after an optimizer step."""
        self._training = training

    def add_step(self, step: MeasuredStep) -> None:
        """Add a measured step to the report interval's throughput and to the profile."""
        with self._lock:
            self._interval_examples += step.num_examples
            self._interval_steps += 1
            self._interval_s += step.total_s
            self._interval_data_s += step.data_s
        self._tuner.add_step(step)

    def _warn_of_loading(self, data_s: float, span_s: float) -> None:
        """Log once that a slow loader limits what more GPUs can bring."""
        if self._has_warned_of_loading or not span_s > 0 or data_s < _LOADING_WARNING_SHARE * span_s:
            return
        self._has_warned_of_loading = True
        _LOG.warning(
            "%.0f %% of a step is spent waiting for data, which limits what more GPUs can bring: raise "
            "num_workers of the loader",
            100.0 * min(data_s / span_s, 1.0),
        )

    def set_progress(self, progress: TrainingProgress) -> None:
        """Set how far training has come."""
        self._progress = progress

    def warn(self, warning: JobWarning) -> None:
        """Add a warning for the job's owner. Thread-safe; adding it again changes nothing.

        Every later report contains it, so that a lost report loses no warning.
        """
        with self._lock:
            self._warnings[warning] = None

    @property
    def warnings(self) -> tuple[JobWarning, ...]:
        """The warnings so far."""
        with self._lock:
            return tuple(self._warnings)

    def add_checkpoint(self, *, blocked_s: float, size_bytes: int) -> None:
        """Add a checkpoint that was not requested; blocking times add up until the next report."""
        with self._lock:
            before = 0.0 if self._written is None else self._written.blocked_s
            self._written = CheckpointConfirmation(
                request_id=None, blocked_s=before + blocked_s, size_bytes=size_bytes
            )

    def take_proposal(self, limits: BatchLimits) -> BatchChoice | None:
        """Return the last proposed batch size, once; None if it was for another loader's limits."""
        with self._lock:
            proposed, self._proposal = self._proposal, None
        return proposed[1] if proposed is not None and proposed[0] == limits else None

    def prediction(self, batch: BatchChoice) -> Prediction | None:
        """Return the last report's prediction; None before the first, or if that was for another batch."""
        made = self._prediction
        return made[1] if made is not None and made[0] == batch else None

    def compose(self, *, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        """Fit the model, propose a batch size, and return the report; a new report interval begins.

        The report of the first step ends no interval: it may come a step or two later, which are slow ones.
        """
        examples, steps, span_s, data_s = 0, 0, 0.0, 0.0
        with self._lock:
            training, phase, progress = self._training, self._phase, self._progress
            goes_on = phase is RunPhase.TRAINING and checkpoint is None
            if self._has_reported_step or not goes_on:
                examples, steps, span_s = self._interval_examples, self._interval_steps, self._interval_s
                data_s = self._interval_data_s
                self._interval_examples, self._interval_steps, self._interval_s = 0, 0, 0.0
                self._interval_data_s = 0.0
            warnings = tuple(self._warnings)
            written = None
            if checkpoint is None:
                written, self._written = self._written, None
        self._warn_of_loading(data_s, span_s)
        report = replace(
            self._template,
            sequence=sequence,
            phase=phase,
            num_steps=progress.num_steps,
            num_examples=progress.num_examples,
            progress=progress.progress,
            epoch=progress.epoch,
            total_epochs=progress.total_epochs,
            first_step_s=self._first_step_s,
            throughput=examples / span_s if span_s > 0 else None,
            step_time_s=span_s / steps if steps else None,
            checkpoint=checkpoint or written,
            warnings=warnings,
        )
        if training is None:
            return report
        model = self._tuner.model(training.limits, training.statistics)
        if not (goes_on and self._has_reported_step):
            # The first report of a step, a confirmation and the last report do not wait for scipy's import.
            self._has_reported_step |= goes_on
            return replace(report, model=model, batch=training.batch)
        self._tuner.refit()
        model = self._tuner.model(training.limits, training.statistics)
        prediction = self._tuner.predict(training)
        self._prediction = None if prediction is None else (training.batch, prediction)
        proposal = self._tuner.propose(training)
        with self._lock:
            # Only if the batch size that the proposal started from is still in use.
            if self._training is not None and self._training.batch == training.batch:
                self._proposal = (training.limits, proposal) if proposal != training.batch else None
        return replace(
            report,
            model=model,
            batch=training.batch,
            predicted_throughput=None if prediction is None else prediction.throughput,
            efficiency=None if prediction is None else prediction.efficiency,
        )
