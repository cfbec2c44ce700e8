"""Who held GPUs when, as a part of a report."""

from __future__ import annotations

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.report.parts.gpus_over_time import gpus_over_time_part
from pollux_slurm.store.reporting.view_rows import GpuHolders
from tests.store.builders import at


def test_that_too_many_jobs_are_named_as_the_reason_for_no_plot() -> None:
    range_ = Range(since=at(0), until=at(100))
    (part,) = gpus_over_time_part(GpuHolders(truncated=True), range_, by="account")
    assert part.text == "More than 200 jobs are too many to be drawn one by one: choose a shorter time."
    assert gpus_over_time_part(GpuHolders(), range_, by="account") == ()
