"""What several reports have: shares, the accuracy of predictions, and jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pollux_slurm.document.columns import Column, Data, Kind, table_of
from pollux_slurm.document.document import Part
from pollux_slurm.report.parts.columns import (
    ACCOUNT,
    EFFICIENCY,
    GOODPUT,
    GPU_HOURS,
    GPU_TYPE,
    JOB,
    MEAN_ABS_ERROR,
    MEAN_ERROR,
    MEASURED,
    NAME,
    NUM_GPUS,
    NUM_SAMPLES,
    RUN,
    STANDSTILL_IN_PLACE,
    STATE,
    USER,
    WAITED,
)
from pollux_slurm.store.reporting.view_rows import JobGoodput, ModelAccuracy


def share(part: float, whole: float) -> float | None:
    """Return a part's share, None of nothing; at most 1: times of reports and of Slurm differ slightly."""
    return min(part / whole, 1.0) if whole > 0 else None


def accuracy_part(rows: Sequence[ModelAccuracy], *, by: str) -> Part:
    """Return predicted against measured throughput, rows of model_accuracy, by `by`, GPU type and GPUs."""
    columns = (
        {one.key: one for one in (RUN, ACCOUNT)}[by],
        GPU_TYPE,
        NUM_GPUS,
        NUM_SAMPLES,
        Column("predicted_throughput", "predicted (examples/s)"),
        MEASURED,
        MEAN_ERROR,
        MEAN_ABS_ERROR,
    )
    groups: defaultdict[tuple[Any, ...], list[ModelAccuracy]] = defaultdict(list)
    for row in rows:
        groups[getattr(row, by), row.gpu_type, row.num_gpus].append(row)
    weighed = tuple(
        (
            *key,
            sum(row.num_samples for row in found),
            *(_mean(found, column.key) for column in columns[4:]),
        )
        for key, found in sorted(groups.items(), key=lambda item: item[0])
    )
    data = Data(
        key="model_accuracy",
        columns=columns,
        rows=weighed,
        note="Mean error: predicted over measured throughput, less 1; above 0 the model promised too much. "
        "Samples are those of whole days in UTC.",
    )
    text = "" if rows else "No prediction was measured in this time."
    return Part(title="Predicted against measured throughput", text=text, tables=(data,))


def _mean(rows: Sequence[ModelAccuracy], key: str) -> float | None:
    """Return the mean of a column, by samples."""
    known = [(getattr(row, key), row.num_samples) for row in rows if getattr(row, key) is not None]
    weight = sum(samples for _, samples in known)
    return sum(value * samples for value, samples in known) / weight if weight else None


JOB_COLUMNS = (
    JOB,
    NAME,
    USER,
    ACCOUNT,
    STATE,
    Column("submitted_at", "submit (UTC)", Kind.MOMENT),
    Column("submit_to_finish_s", "to finish", Kind.SECONDS),
    WAITED,
    GPU_HOURS,
    Column("progress_share", "progress", Kind.SHARE),
    GOODPUT,
    EFFICIENCY,
    Column("speedup_one_gpu", "over one GPU", shown=False),
    Column("speedup_fair_share", "over fair share"),
    Column("restarts", "moves", Kind.COUNT),
    Column("lost_s", "lost to them", Kind.SECONDS),
    Column("regroups", "moves in place", Kind.COUNT),
    STANDSTILL_IN_PLACE,
)


def jobs_part(rows: Sequence[JobGoodput], *, ordered: bool = False) -> Part:
    """Return the jobs, rows of job_goodput: as `ordered`, or those with the most GPU hours first."""
    if not ordered:
        rows = sorted(rows, key=lambda row: (-row.gpu_hours, str(row.slurm_job_id)))
    has_regroups = any(row.regroups for row in rows)
    columns = tuple(
        replace(one, shown=one.shown and (has_regroups or one.key != "regroups")) for one in JOB_COLUMNS
    )
    data = table_of(
        "jobs",
        rows,
        columns,
        note=("" if ordered else "The most GPU hours first. ")
        + "Jobs that were submitted before this time are not here. Each value is of the job's whole life. "
        "Moves are those by requeue, unless in place.",
    )
    return Part(
        title="Jobs", text="" if rows else "No adaptive job was submitted in this time.", tables=(data,)
    )
