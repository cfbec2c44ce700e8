"""Faults of a training that can go on: reported once, or raised under `strict`."""

from __future__ import annotations

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.errors import ConfigError, PolluxError, TrainingError
from pollux_slurm.model import JobWarning
from pollux_slurm.torch.session.current_session import current_session, set_session
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


def test_that_a_fault_is_reported_once_of_each_kind(caplog: pytest.LogCaptureFixture) -> None:
    with joined() as session:
        assert not session.faults.strict
        for _ in range(3):
            session.faults.report(JobWarning.REPLICAS_DIFFER, "this is wrong: do that")
        session.faults.report(JobWarning.NEVER_STEPPED, "that is wrong: do this")
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "this is wrong: do that",
        "that is wrong: do this",
    ]
    assert session.measurements.report_builder is not None
    report = session.measurements.report_builder.compose(sequence=1, checkpoint=None)
    assert report.warnings == (JobWarning.REPLICAS_DIFFER, JobWarning.NEVER_STEPPED)


def test_that_a_fault_is_an_error_under_strict() -> None:
    with joined(strict=True) as session, pytest.raises(TrainingError, match="do that"):
        session.faults.report(JobWarning.REPLICAS_DIFFER, "this is wrong: do that")
    assert issubclass(TrainingError, PolluxError)


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False)])
def test_that_the_environment_makes_a_job_strict(value: str, expected: bool) -> None:
    pt.init_process_group(environ={"POLLUX_STRICT": value})
    session = current_session()
    set_session(None)
    session.close()
    assert session.faults.strict is expected


def test_that_another_value_of_the_variable_is_refused() -> None:
    with pytest.raises(ConfigError, match="POLLUX_STRICT='yes' is neither 0 nor 1"):
        pt.init_process_group(environ={"POLLUX_STRICT": "yes"})
