"""The content of a report in each phase of a run."""

from __future__ import annotations

import pytest

from pollux_slurm.agent.measure.fit_and_batch_choice import TrainingState, Tuner
from pollux_slurm.agent.measure.profile import Situation, StepProfile
from pollux_slurm.agent.measure.report_builder import ReportBuilder, TrainingProgress
from pollux_slurm.model import BatchChoice, BatchLimits, Configuration, GradientStatistics, JobWarning
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase
from tests.agent.steps import step

BATCH = BatchChoice(global_batch_size=32, atomic_batch_size=16, accumulation_steps=0)
TRAINING = TrainingState(
    limits=BatchLimits(initial_batch_size=32, max_batch_size=256),
    statistics=GradientStatistics(sqr=0.001, var=10.0),
    num_updates=100,
    batch=BATCH,
)


@pytest.fixture
def report_builder() -> ReportBuilder:
    profile = StepProfile()
    for _ in range(10):
        profile.record(Situation(num_nodes=1, num_gpus=2, atomic_batch_size=16), step(0.1, 0.16))
    return ReportBuilder(
        run_number=3,
        restart_count=2,
        gpus_per_node=(2,),
        tuner=Tuner(Configuration(num_nodes=1, num_gpus=2), profile),
        restore_s=0.5,
    )


def test_that_the_first_report_has_run_and_nodes_only(report_builder: ReportBuilder) -> None:
    report = report_builder.compose(sequence=1, checkpoint=None)
    assert (report.run_number, report.restart_count, report.sequence) == (3, 2, 1)
    assert (report.phase, report.gpus_per_node, report.restore_s) == (RunPhase.STARTING, (2,), 0.5)
    assert (report.model, report.batch, report.throughput, report.first_step_s) == (None, None, None, None)


def test_that_the_first_step_is_reported_before_anything_is_fitted(report_builder: ReportBuilder) -> None:
    report_builder.set_training_state(TRAINING)
    report_builder.set_first_step(4.5)
    report_builder.set_phase(RunPhase.TRAINING)
    report = report_builder.compose(sequence=2, checkpoint=None)
    assert (report.first_step_s, report.batch) == (4.5, BATCH)
    assert report.model is not None
    assert report.model.throughput is None


def test_that_later_reports_contain_the_interval_the_model_and_its_prediction(
    report_builder: ReportBuilder,
) -> None:
    report_builder.set_training_state(TRAINING)
    report_builder.set_phase(RunPhase.TRAINING)
    report_builder.compose(sequence=1, checkpoint=None)
    report_builder.set_progress(TrainingProgress(num_steps=7, progress=6.5, epoch=1, total_epochs=4))
    for _ in range(3):
        report_builder.add_step(step(0.1, 0.16, total_s=0.2))
    report = report_builder.compose(sequence=2, checkpoint=None)
    assert report.throughput == pytest.approx(160.0)
    assert report.step_time_s == pytest.approx(0.2)
    assert report.model is not None
    assert report.model.throughput is not None
    assert report.predicted_throughput == pytest.approx(32 / 0.16, rel=0.05)
    assert report.efficiency == 1.0
    assert (report.num_steps, report.progress, report.epoch, report.total_epochs) == (7, 6.5, 1, 4)
    # The next interval begins empty.
    assert report_builder.compose(sequence=3, checkpoint=None).throughput is None


def test_that_steps_before_the_first_step_is_reported_count_in_the_next_report(
    report_builder: ReportBuilder,
) -> None:
    report_builder.set_training_state(TRAINING)
    # A report in between, which comes before training is known to have begun, changes nothing.
    assert report_builder.compose(sequence=1, checkpoint=None).phase is RunPhase.STARTING
    report_builder.set_phase(RunPhase.TRAINING)
    report_builder.add_step(step(0.1, 0.9, total_s=1.0))
    assert report_builder.compose(sequence=1, checkpoint=None).throughput is None
    for _ in range(9):
        report_builder.add_step(step(0.05, 0.1, total_s=0.1))
    assert report_builder.compose(sequence=2, checkpoint=None).throughput == pytest.approx(10 * 32 / 1.9)


def test_that_a_run_that_ends_before_its_first_report_reports_its_steps(
    report_builder: ReportBuilder,
) -> None:
    report_builder.set_training_state(TRAINING)
    report_builder.add_step(step(0.1, 0.16, total_s=0.2))
    report_builder.set_phase(RunPhase.FINISHED)
    assert report_builder.compose(sequence=1, checkpoint=None).throughput == pytest.approx(160.0)


def test_that_a_proposal_is_taken_once_and_only_for_the_batch_it_was_made_from(
    report_builder: ReportBuilder,
) -> None:
    report_builder.set_training_state(TRAINING)
    report_builder.set_phase(RunPhase.TRAINING)
    report_builder.compose(sequence=1, checkpoint=None)
    assert report_builder.take_proposal(TRAINING.limits) is None
    report_builder.compose(sequence=2, checkpoint=None)
    proposal = report_builder.take_proposal(TRAINING.limits)
    assert proposal is not None
    assert proposal.global_batch_size == 64
    assert report_builder.take_proposal(TRAINING.limits) is None


def test_that_a_proposal_is_for_the_loader_it_was_made_for(report_builder: ReportBuilder) -> None:
    report_builder.set_training_state(TRAINING)
    report_builder.set_phase(RunPhase.TRAINING)
    report_builder.compose(sequence=1, checkpoint=None)
    report_builder.compose(sequence=2, checkpoint=None)
    assert report_builder.take_proposal(BatchLimits(initial_batch_size=32, max_batch_size=48)) is None
    assert report_builder.take_proposal(TRAINING.limits) is None, "it is for a batch that is no longer in use"


def test_that_a_confirmation_does_not_wait_for_a_fit(report_builder: ReportBuilder) -> None:
    report_builder.set_training_state(TRAINING)
    report_builder.set_phase(RunPhase.TRAINING)
    report_builder.compose(sequence=1, checkpoint=None)
    report_builder.set_phase(RunPhase.WAITING)
    confirmation = CheckpointConfirmation(request_id=9, blocked_s=0.1, size_bytes=100)
    report = report_builder.compose(sequence=2, checkpoint=confirmation)
    assert (report.phase, report.checkpoint) == (RunPhase.WAITING, confirmation)
    assert report.model is not None
    assert report.model.throughput is None


def test_that_a_job_that_waits_for_data_is_warned_once(
    report_builder: ReportBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    for data_s in (0.01, 0.15, 0.15):
        report_builder.add_step(step(0.1, 0.16, total_s=0.2, data_s=data_s))
        report_builder.compose(sequence=1, checkpoint=None)
    lines = [record.message for record in caplog.records if "waiting for data" in record.message]
    assert len(lines) == 1
    assert lines[0].startswith("75 %")


def test_that_a_warning_is_in_every_report_from_then_on_and_once(report_builder: ReportBuilder) -> None:
    assert report_builder.compose(sequence=1, checkpoint=None).warnings == ()
    for _ in range(3):
        report_builder.warn(JobWarning.REPLICAS_DIFFER)
    report_builder.warn(JobWarning.NEVER_STEPPED)
    for sequence in (2, 3):
        report = report_builder.compose(sequence=sequence, checkpoint=None)
        assert report.warnings == (JobWarning.REPLICAS_DIFFER, JobWarning.NEVER_STEPPED)
