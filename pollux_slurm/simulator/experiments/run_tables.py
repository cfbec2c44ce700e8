"""The tables of simulations: policies beside each other, accounts, jobs, and the values in plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pollux_slurm.document.columns import Column, Data, Kind, table_of
from pollux_slurm.simulator.experiments.kept_runs import KeptRun, axis_text
from pollux_slurm.simulator.results.summary import RunOutcome

_SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
_MOST_TIMES = 24
_Item = TypeVar("_Item")

_RHO, _UNFAIR = (
    Column("rho_worst", "worst ρ", rank=2),
    Column("rho_share_above_1", "ρ > 1", Kind.SHARE, rank=4),
)
_COLUMNS = (
    Column("num_runs", "runs", Kind.COUNT, rank=4),
    Column("avg_jct_s", "average"),
    Column("ratio", "ratio"),
    Column("bound_avg_jct_s", "bound"),
    Column(
        "to_bound",
        "to bound",
        Kind.SHARE,
        value=lambda row: row["bound_avg_jct_s"] and row["bound_avg_jct_s"] / row["avg_jct_s"] - 1,
    ),
    Column("lowest_avg_jct_s", "lowest", rank=5),
    Column("highest_avg_jct_s", "highest", rank=5),
    Column("p50_jct_s", "median", rank=5),
    Column("p90_jct_s", "p90", rank=6),
    Column("p99_jct_s", "p99", rank=3),
    Column("makespan_s", "makespan", rank=1),
    Column("gpu_hours", "GPU hours", rank=4),
    Column("node_hours", "node hours", rank=1),
    Column("restarts_per_job", "restarts", rank=1),
    Column("regroups_per_job", "regroups", rank=1),
    Column("restart_share", "lost", Kind.SHARE, rank=2),
    _RHO,
    _UNFAIR,
    Column("num_asked", "asked", Kind.COUNT, rank=1),
    Column("num_accepted", "promised", Kind.COUNT, rank=1),
    Column("num_kept", "kept", Kind.COUNT, rank=1),
    Column("solve_ms", "solve", rank=7, value=lambda row: 1000 * row["solve_p95_s"]),
)


def comparison_table(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, str]) -> Data:
    """Return the table of an experiment's rows, with a column for each of `axes`, which vary.

    Columns that say nothing in all rows are left out.
    """
    seeds = any(row["num_runs"] > 1 for row in rows)
    bounds = any(row["bound_avg_jct_s"] is not None for row in rows)
    asked = any(row["num_asked"] for row in rows)
    scaled = any(row.get("autoscale") for row in rows)
    regroups = any(row["regroups_per_job"] for row in rows)
    empty = {
        *(() if seeds else ("num_runs", "lowest_avg_jct_s", "highest_avg_jct_s")),
        *(() if bounds else ("bound_avg_jct_s", "to_bound")),
        *(() if asked else ("num_asked", "num_accepted", "num_kept")),
        *(() if scaled else ("node_hours",)),
        *(() if regroups else ("regroups_per_job",)),
    }
    columns = (
        Column("policy", "policy", Kind.TEXT),
        *(_axis_column(key, title) for key, title in axes.items()),
        *(column for column in _COLUMNS if column.key not in empty),
    )
    note = (
        "Completion times, from submission to end, and makespan in seconds, means over the runs of a row; "
        "ratio: mean of the averages over those of the first policy on the same workload; "
        + ("lowest, highest: of the runs' averages; " if seeds else "")
        + ("bound: no policy's average is below it; " if bounds else "")
        + ("node hours: while nodes were there; " if scaled else "")
        + "GPU hours: while jobs had GPUs; restarts"
        + (", regroups (moves in place)" if regroups else "")
        + ": per job; lost: share of GPU time without progress at starts, moves and failures; ρ: completion "
        "time over that alone on an equal share (finish-time fairness: above 1, sharing cost the job time), "
        "the worst of all runs; "
        + ("asked: jobs with a moment (finish_by), promised, and kept; " if asked else "")
        + "solve: 95th percentile, ms."
    )
    return table_of("comparison", rows, columns, note=note)


def _axis_column(key: str, title: str) -> Column:
    return Column(key, title, Kind.TEXT, value=lambda row: axis_text(row.get(key)))


def account_table(results: Sequence[KeptRun]) -> Data:
    """Return the summaries of the runs by account."""
    columns = (
        *(Column(key, key, Kind.TEXT) for key in ("account", "workload", "policy")),
        Column("num_jobs", "jobs", Kind.COUNT),
        Column("avg_jct_s", "average (s)"),
        Column("gpu_hours", "GPU hours"),
        _RHO,
        _UNFAIR,
    )
    found = [
        {"workload": one.workload, "policy": one.label, "account": account, **got}
        for one in results
        for account, got in one.summary.get("accounts", {}).items()
    ]
    return table_of("accounts", found, columns, title="By account")


def spans_of(items: Sequence[_Item], most: int) -> list[Sequence[_Item]]:
    """Return the items in at most `most` spans of equally many."""
    size = max(-(-len(items) // most), 1)
    return [items[start : start + size] for start in range(0, len(items), size)]


def quantile_table(key: str, values: Mapping[str, Sequence[float]], kind: Kind) -> Data:
    """Return the values at or below which so many jobs are, a column for each key of `values`."""
    known = {
        label: np.percentile(found, _SHARES, method="inverted_cdf")
        for label, found in values.items()
        if len(found)
    }
    return Data(
        key=key,
        columns=(
            Column("share", "share of jobs", Kind.SHARE),
            *(Column(label, label, kind) for label in known),
        ),
        rows=tuple(
            (share / 100, *(float(found[place]) for found in known.values()))
            for place, share in enumerate(_SHARES)
        ),
    )


_USE = ("gpus_up", "gpus_used", "goodput")


def use_table(several: Sequence[tuple[str, RunOutcome]]) -> Data:
    """Return GPUs and goodput over time: means over spans of equally many rounds."""
    return Data(
        key="use",
        columns=(
            Column("policy", "policy", Kind.TEXT),
            Column("from_h", "from (h)"),
            *(Column(key, key.replace("_", " ").replace("gpus", "GPUs")) for key in _USE),
        ),
        rows=tuple(
            (
                label,
                span[0].at_s / 3600,
                *(sum(getattr(record, key) for record in span) / len(span) for key in _USE),
            )
            for label, one in several
            for span in spans_of(one.rounds, _MOST_TIMES)
        ),
        note=f"Means over spans of equally many rounds with a job, at most {_MOST_TIMES} for each policy.",
        keep="spread",
    )


_JOBS = (
    Column("name", "job", Kind.TEXT),
    Column("application", "application", Kind.TEXT),
    Column("submitted_h", "submitted (h)", value=lambda job: job.submitted_s / 3600),
    Column("waited_s", "waited", Kind.SECONDS, value=lambda job: job.started_s - job.submitted_s),
    Column("completion_s", "completed after", Kind.SECONDS),
    Column("gpu_hours", "GPU hours", value=lambda job: job.gpu_seconds / 3600),
    Column(
        "most_gpus",
        "most GPUs",
        Kind.COUNT,
        value=lambda job: max((gpus for _, gpus in job.gpu_changes), default=0),
    ),
    Column("moves", "moves", Kind.COUNT, value=lambda job: job.num_restarts + job.num_regroups),
)


def job_table(label: str, one: RunOutcome) -> Data:
    """Return when each job had how many GPUs, in the order of submission."""
    jobs = sorted(one.jobs, key=lambda job: (job.submitted_s, job.name))
    return table_of(f"jobs_{label}", jobs, _JOBS, note="--output writes all jobs.")
