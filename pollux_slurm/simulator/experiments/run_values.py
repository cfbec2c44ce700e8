"""The values in the plots of a comparison, as tables of texts that a reader can still go through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from pollux_slurm.report import Table, duration_text
from pollux_slurm.simulator.results.outcomes import RoundOutcome
from pollux_slurm.simulator.results.summary import RunOutcome

_SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
_MOST_TIMES = 24
_MOST_JOBS = 200
_Item = TypeVar("_Item")


def spans_of(items: Sequence[_Item], most: int) -> list[Sequence[_Item]]:
    """Return the items in at most `most` spans of equally many."""
    size = max(-(-len(items) // most), 1)
    return [items[start : start + size] for start in range(0, len(items), size)]


def quantile_table(values: Mapping[str, Sequence[float]], text: Callable[[float], str]) -> Table:
    """Return the values at or below which so many jobs are, a column for each key of `values`."""
    known = {
        label: np.percentile(found, _SHARES, method="inverted_cdf")
        for label, found in values.items()
        if len(found)
    }
    return Table(
        columns=("share of jobs", *known),
        rows=tuple(
            (f"{share}\N{NO-BREAK SPACE}%", *(text(float(found[place])) for found in known.values()))
            for place, share in enumerate(_SHARES)
        ),
    )


def use_table(several: Sequence[tuple[str, RunOutcome]]) -> Table:
    """Return GPUs and goodput over time: means over spans of equally many rounds."""
    rows = []
    for label, one in several:
        for span in spans_of(one.rounds, _MOST_TIMES):
            means = (_mean(span, lambda record: record.gpus_up), _mean(span, lambda record: record.gpus_used))
            goodput = _mean(span, lambda record: record.goodput)
            rows.append(
                (label, f"{span[0].at_s / 3600:,.1f}", *(f"{value:,.1f}" for value in (*means, goodput)))
            )
    return Table(
        columns=("policy", "from (h)", "GPUs", "GPUs used", "goodput"),
        rows=tuple(rows),
        note=f"Means over spans of equally many rounds with a job, at most {_MOST_TIMES} for each policy.",
    )


def job_table(one: RunOutcome) -> Table:
    """Return when each job had how many GPUs, in the order of submission."""
    jobs = sorted(one.jobs, key=lambda job: (job.submitted_s, job.name))
    rows = tuple(
        (
            job.name,
            job.application,
            f"{job.submitted_s / 3600:,.2f}",
            duration_text(job.started_s - job.submitted_s),
            duration_text(job.completion_s),
            f"{job.gpu_seconds / 3600:,.2f}",
            f"{max((gpus for _, gpus in job.gpu_changes), default=0)}",
            f"{job.num_restarts + job.num_regroups}",
        )
        for job in jobs[:_MOST_JOBS]
    )
    return Table(
        columns=(
            *("job", "application", "submitted (h)", "waited", "completed after"),
            *("GPU hours", "most GPUs", "moves"),
        ),
        rows=rows,
        note=f"The first {_MOST_JOBS} of {len(jobs):,} jobs; --output writes all."
        if len(jobs) > _MOST_JOBS
        else "",
        texts=(0, 1),
    )


def _mean(span: Sequence[RoundOutcome], value: Callable[[RoundOutcome], float]) -> float:
    return sum(value(record) for record in span) / len(span)
