"""What one run tells the store: written by training at each step, read when a report is due."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from pollux_slurm.agent.measure.fit_and_batch_choice import TrainingState, Tuner
from pollux_slurm.agent.measure.profile import MeasuredStep
from pollux_slurm.model import BatchChoice, BatchLimits, JobWarning
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Report, RunPhase

_LOG = logging.getLogger(__name__)
# Of a step's time.
_LOADING_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far training has come. `progress` is in scale-invariant iterations, `num_examples` of this run."""

    num_steps: int = 0
    num_examples: int = 0
    progress: float = 0.0
    epoch: int = 0
    total_epochs: int | None = None


class ReportBuilder:
    """The latest state of one run. Each method holds the lock for a few assignments, so no step waits."""

    def __init__(
        self,
        *,
        run_number: int,
        restart_count: int,
        gpus_per_node: tuple[int, ...],
        tuner: Tuner,
        restore_s: float | None,
    ) -> None:
        self._blank = Report(
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
        self._told_of_loading = False
        # With the limits of the loader that it was made for.
        self._proposal: tuple[BatchLimits, BatchChoice] | None = None
        self._told_of_step = False
        self._written: CheckpointConfirmation | None = None
        self._warnings: dict[JobWarning, None] = {}

    @property
    def phase(self) -> RunPhase:
        return self._phase

    @property
    def first_step_s(self) -> float | None:
        return self._first_step_s

    def set_phase(self, phase: RunPhase) -> None:
        """Tell where the run stands."""
        self._phase = phase

    def set_first_step(self, since_process_start_s: float) -> None:
        """Tell when the first optimizer step of this run ended."""
        self._first_step_s = since_process_start_s

    def set_training_state(self, training: TrainingState) -> None:
        """Tell what training is like after one more optimizer step."""
        self._training = training

    def add_step(self, step: MeasuredStep) -> None:
        """Add one typical step to the interval's throughput, and to what is fitted."""
        with self._lock:
            self._interval_examples += step.num_examples
            self._interval_steps += 1
            self._interval_s += step.total_s
            self._interval_data_s += step.data_s
        self._tuner.add_step(step)

    def _tell_of_loading(self, data_s: float, span_s: float) -> None:
        """Say once that more GPUs will not help a job whose time goes into loading."""
        if self._told_of_loading or not span_s > 0 or data_s < _LOADING_SHARE * span_s:
            return
        self._told_of_loading = True
        _LOG.warning(
            "%.0f %% of a step is spent waiting for data: raise num_workers of the loader, or it bounds what "
            "more GPUs can do",
            100.0 * min(data_s / span_s, 1.0),
        )

    def set_progress(self, progress: TrainingProgress) -> None:
        """Tell how far training has come."""
        self._progress = progress

    def warn(self, warning: JobWarning) -> None:
        """Tell of something that the job's owner must hear of. From any thread; once is as good as often.

        Every report from now on carries it, so that a lost one loses no warning.
        """
        with self._lock:
            self._warnings[warning] = None

    def add_checkpoint(self, *, blocked_s: float, size_bytes: int) -> None:
        """Tell of a checkpoint that nobody asked for; standstills until the next report add up."""
        with self._lock:
            before = 0.0 if self._written is None else self._written.blocked_s
            self._written = CheckpointConfirmation(
                request_id=None, blocked_s=before + blocked_s, size_bytes=size_bytes
            )

    def take_proposal(self, limits: BatchLimits) -> BatchChoice | None:
        """Return the batch that was last proposed, once; None where it was for another loader's limits."""
        with self._lock:
            proposed, self._proposal = self._proposal, None
        return proposed[1] if proposed is not None and proposed[0] == limits else None

    def compose(self, *, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        """Fit, propose a batch, and return the report that is due; the interval begins anew."""
        with self._lock:
            training, phase, progress = self._training, self._phase, self._progress
            examples, steps, span_s = self._interval_examples, self._interval_steps, self._interval_s
            data_s = self._interval_data_s
            warnings = tuple(self._warnings)
            self._interval_examples, self._interval_steps, self._interval_s = 0, 0, 0.0
            self._interval_data_s = 0.0
            written = None
            if checkpoint is None:
                written, self._written = self._written, None
        self._tell_of_loading(data_s, span_s)
        report = replace(
            self._blank,
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
        if phase is not RunPhase.TRAINING or checkpoint is not None or not self._told_of_step:
            # The news that training runs, a confirmation, the end: none waits for a solver's import.
            self._told_of_step = True
            return replace(report, model=model, batch=training.batch)
        self._tuner.refit()
        model = self._tuner.model(training.limits, training.statistics)
        prediction = self._tuner.predict(training)
        proposal = self._tuner.propose(training)
        with self._lock:
            # Only a proposal made from the batch that is still in use.
            if self._training is not None and self._training.batch == training.batch:
                self._proposal = (training.limits, proposal) if proposal != training.batch else None
        return replace(
            report,
            model=model,
            batch=training.batch,
            predicted_throughput=None if prediction is None else prediction.throughput,
            efficiency=None if prediction is None else prediction.efficiency,
        )
