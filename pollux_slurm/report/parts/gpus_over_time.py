"""The GPUs of each job over time: a row for each job of a report, where they are few enough to be seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pollux_slurm.document.charts.time_axes import Range, time_axis
from pollux_slurm.document.charts.timeline import Bar, Timeline
from pollux_slurm.document.columns import Column, Kind, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import ACCOUNT, JOB, NUM_GPUS, UNTIL, USER
from pollux_slurm.report.parts.groups import NAMELESS
from pollux_slurm.store.reporting.view_rows import GpuHolders
from pollux_slurm.text import plural, shortened

MOST_JOBS = 200
"""A page is some thousand units high: more jobs would be a row of less than five each."""
_NAMED = 12
_TITLE = "Jobs over time"
_COLUMNS = (
    Column("at", "from (UTC)", Kind.MOMENT),
    UNTIL,
    JOB,
    USER,
    ACCOUNT,
    NUM_GPUS,
)


def gpus_over_time_part(held: GpuHolders, range_: Range, *, by: str) -> tuple[Part, ...]:
    """Return the part about who held GPUs in the range; none where nobody did.

    Jobs stand in groups of `by`, account or user_name; a few each under its own name.
    """
    if held.truncated:
        text = f"More than {MOST_JOBS} jobs are too many to be drawn one by one: choose a shorter time."
        return (Part(title=_TITLE, text=text),)
    parts = [(one, *range_.part_of(one.at, one.until)) for one in held.intervals]
    intervals = [(one, begin, end) for one, begin, end in parts if begin < end]
    if not intervals:
        return ()
    changes: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for one, begin, end in intervals:
        changes[one.job_id] += [(begin, one.num_gpus or 0), (end, 0)]
    jobs = [job for job in held.jobs if job.job_id in changes]
    few = len(jobs) <= _NAMED
    bars = tuple(
        Bar(
            name=f"{job.slurm_job_id} {shortened(job.name)}",
            group=f"{job.slurm_job_id} {job.name}" if few else getattr(job, by) or NAMELESS,
            begin=begin,
            end=end,
            gpu_changes=_merged(changes[job.job_id]),
        )
        for job in jobs
        for begin, end in [range_.part_of(job.submitted_at, job.finished_at)]
    )
    chart = Timeline(
        title="Who held what when",
        text=f"A row for each of {plural(len(bars), 'job')} that held GPUs in this time, in groups; "
        f"{plural(len(intervals), 'allocation')}.",
        x=time_axis([range_.since, range_.until]),
        bars=bars,
    )
    caption = (
        "A row for each job that held GPUs in this time, from submission to end: a thin line while it waits, "
        "a bar while it holds GPUs, the thicker and stronger the more."
    )
    data = table_of(
        "allocations",
        [one for one, _, _ in intervals],
        _COLUMNS,
        keep="last",
        note="Allocations that reach into this time. One without an end is held now.",
    )
    return (Part(title=_TITLE, plots=(Plot(chart=chart, caption=caption, data=data),)),)


def _merged(changes: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Return the changes in order; where one interval ends as the next begins, the next one's GPUs count."""
    found: list[tuple[float, int]] = []
    for at, gpus in changes:
        if found and found[-1][0] >= at:
            found.pop()
        found.append((at, gpus))
    return tuple(found)
