"""Lines of squeue as Slurm 22.05 prints them."""

from __future__ import annotations

import pytest

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.launch.anchor.seen_job import SeenJob, parse_seen_job
from pollux_slurm.model import JobState


@pytest.mark.parametrize(
    ("line", "job"),
    [
        (
            "7|RUNNING|4294901750|1:30:00|n0|None",
            SeenJob(state=JobState.RUNNING, reason="None", node="n0", time_left_s=5400.0),
        ),
        (
            "7|RUNNING|0|59:58|n0|JobHeldAdmin",
            SeenJob(
                state=JobState.RUNNING, reason="JobHeldAdmin", is_held=True, node="n0", time_left_s=3598.0
            ),
        ),
        (
            "8|PENDING|4294901749|3-00:00:05|n/a|BeginTime",
            SeenJob(state=JobState.PENDING, reason="BeginTime", time_left_s=259205.0),
        ),
        (
            "8|PENDING|0|UNLIMITED|n/a|launch failed requeued held",
            SeenJob(state=JobState.PENDING, reason="launch failed requeued held", is_held=True),
        ),
        (
            "9|FAILED|42|INVALID|n1|NonZeroExitCode",
            SeenJob(state=JobState.FAILED, reason="NonZeroExitCode", has_failed=True, node="n1"),
        ),
        (
            f"9|FAILED|42|{'9' * 5000}:{'1:' * 5000}1|n1|None",
            SeenJob(state=JobState.FAILED, reason="None", has_failed=True, node="n1"),
        ),
        (
            "9|NODE_FAIL|42|0:00|n1|None",
            SeenJob(state=JobState.FAILED, reason="None", node="n1", time_left_s=0.0),
        ),
    ],
)
def test_that_a_line_is_a_job(line: str, job: SeenJob) -> None:
    assert parse_seen_job(line) == (line[0], job)


@pytest.mark.parametrize("line", ["", "7|RUNNING", "7|AWAY|1|0:10|n0|None"])
def test_that_another_line_is_an_incomplete_answer(line: str) -> None:
    with pytest.raises(SlurmReadError):
        parse_seen_job(line)
