"""The tables of a comparison of simulations: its rows, and the values in its plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pollux_slurm.document.columns import Column, Data, Kind, rows_of
from pollux_slurm.simulator.experiments.kept_runs import KeptRun, axis_text
from pollux_slurm.simulator.results.summary import RunOutcome

_SHARES = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 100)
_MOST_TIMES = 24
_Item = TypeVar("_Item")

_RHO, _UNFAIR = (
    Column(key="rho_worst", title="worst ρ", rank=2),
    Column(key="rho_share_above_1", title="ρ > 1", kind=Kind.SHARE, rank=4),
)
_COLUMNS = (
    Column(key="num_runs", title="runs", kind=Kind.COUNT, rank=4),
    Column(key="avg_jct_s", title="average"),
    Column(key="ratio", title="ratio"),
    Column(key="bound_avg_jct_s", title="bound"),
    Column(
        key="to_bound",
        title="to bound",
        kind=Kind.SHARE,
        value=lambda row: row["bound_avg_jct_s"] and row["bound_avg_jct_s"] / row["avg_jct_s"] - 1,
    ),
    Column(key="lowest_avg_jct_s", title="lowest", rank=5),
    Column(key="highest_avg_jct_s", title="highest", rank=5),
    Column(key="p50_jct_s", title="median", rank=5),
    Column(key="p90_jct_s", title="p90", rank=6),
    Column(key="p99_jct_s", title="p99", rank=3),
    Column(key="makespan_s", title="makespan", rank=1),
    Column(key="gpu_hours", title="GPU hours", rank=4),
    Column(key="node_hours", title="node hours", rank=1),
    Column(key="restarts_per_job", title="restarts", rank=1),
    Column(key="regroups_per_job", title="regroups", rank=1),
    Column(key="restart_share", title="lost", kind=Kind.SHARE, rank=2),
    _RHO,
    _UNFAIR,
    Column(key="num_asked", title="asked", kind=Kind.COUNT, rank=1),
    Column(key="num_accepted", title="promised", kind=Kind.COUNT, rank=1),
    Column(key="num_kept", title="kept", kind=Kind.COUNT, rank=1),
    Column(key="solve_ms", title="solve", rank=7, value=lambda row: 1000 * row["solve_p95_s"]),
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
        Column(key="policy", title="policy", kind=Kind.TEXT),
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
    return Data(key="comparison", title="", columns=columns, rows=rows_of(rows, columns), note=note)


def _axis_column(key: str, title: str) -> Column:
    return Column(key=key, title=title, kind=Kind.TEXT, value=lambda row: axis_text(row.get(key)))


def account_table(results: Sequence[KeptRun]) -> Data:
    """Return the summaries of the runs by account."""
    columns = (
        *(Column(key=key, title=key, kind=Kind.TEXT) for key in ("account", "workload", "policy")),
        Column(key="num_jobs", title="jobs", kind=Kind.COUNT),
        Column(key="avg_jct_s", title="average (s)"),
        Column(key="gpu_hours", title="GPU hours"),
        _RHO,
        _UNFAIR,
    )
    found = [
        {"workload": one.workload, "policy": one.label, "account": account, **got}
        for one in results
        for account, got in one.summary.get("accounts", {}).items()
    ]
    return Data(key="accounts", title="By account", columns=columns, rows=rows_of(found, columns))


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
        title="",
        columns=(
            Column(key="share", title="share of jobs", kind=Kind.SHARE),
            *(Column(key=label, title=label, kind=kind) for label in known),
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
        title="",
        columns=(
            Column(key="policy", title="policy", kind=Kind.TEXT),
            Column(key="from_h", title="from (h)"),
            *(Column(key=key, title=key.replace("_", " ").replace("gpus", "GPUs")) for key in _USE),
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
    Column(key="name", title="job", kind=Kind.TEXT),
    Column(key="application", title="application", kind=Kind.TEXT),
    Column(key="submitted_h", title="submitted (h)", value=lambda job: job.submitted_s / 3600),
    Column(
        key="waited_s", title="waited", kind=Kind.SECONDS, value=lambda job: job.started_s - job.submitted_s
    ),
    Column(key="completion_s", title="completed after", kind=Kind.SECONDS),
    Column(key="gpu_hours", title="GPU hours", value=lambda job: job.gpu_seconds / 3600),
    Column(
        key="most_gpus",
        title="most GPUs",
        kind=Kind.COUNT,
        value=lambda job: max((gpus for _, gpus in job.gpu_changes), default=0),
    ),
    Column(
        key="moves",
        title="moves",
        kind=Kind.COUNT,
        value=lambda job: job.num_restarts + job.num_regroups,
    ),
)


def job_table(label: str, one: RunOutcome) -> Data:
    """Return when each job had how many GPUs, in the order of submission."""
    jobs = sorted(one.jobs, key=lambda job: (job.submitted_s, job.name))
    return Data(
        key=f"jobs_{label}",
        title="",
        columns=_JOBS,
        rows=rows_of(jobs, _JOBS),
        note="--output writes all jobs.",
    )
