"""The demo's summary: each job's GPUs, the cost of each move, the accuracy of predictions, checks, idle GPUs.

It reads the store and the result files of the training scripts.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pollux_slurm.model import JobState, ReallocationStep, ReallocationWay
from pollux_slurm.report.charts.time_axes import Range
from pollux_slurm.report.parts.idle_gpus import idle_text, idle_times, why_text
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Sample, Store
from pollux_slurm.store.journal.move_costs import reallocation_costs
from pollux_slurm.store.reporting.gpu_use import GpuUse

Step = ReallocationStep


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What one job must achieve: `target` test accuracy, written to `result`."""

    name: str
    target: float
    result: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the checks."""

    name: str
    passed: bool
    detail: str


def print_summary(
    console: Console, store: Store, expected: Mapping[str, Expectation], *, num_expected: int
) -> bool:
    """Print the summary; return whether every check passes."""
    records = [record for record in store.jobs() if record.slurm_job_id in expected]
    results = {job_id: _result(expectation.result) for job_id, expectation in expected.items()}
    moves = [move for record in records for move in store.reallocations(record.slurm_job_id)]
    begin = min((record.submitted_at for record in records), default=None)

    console.rule("jobs")
    console.print(_jobs_table(store, records, results))
    console.rule("GPUs over time")
    for record in records:
        times = _timeline(store, record, begin or record.submitted_at)
        console.print(f"[bold]{record.name}[/]: {times}", highlight=False)
    console.print("Seconds count from the first submission.", style="dim")
    console.rule("moves of running jobs")
    console.print(_moves_table(records, [move for move in moves if move.moves_running]))
    console.rule("throughput, examples/s: predicted and measured")
    console.print(_predictions_table(store, records))
    console.rule("checks")
    checks = _checks(records, results, moves, expected, num_expected)
    for check in checks:
        mark = "[green]passed[/]" if check.passed else "[bold red]FAILED[/]"
        console.print(f"{mark}  {check.name}: {check.detail}", highlight=False)
    console.print(
        "The training scripts counted the samples: one counter per example, in each checkpoint, summed over"
        " all replicas. So the counts are those of the final model.",
        style="dim",
    )
    return all(check.passed for check in checks)


def print_idle_gpus(console: Console, use: GpuUse, range_: Range) -> None:
    """Print each time in which GPUs were idle while a job could have used them, or that there was none."""
    times = idle_times(use, range_)
    console.rule("idle GPUs that a job could have used")
    console.print(idle_text(use, times), highlight=False)
    begin = min((job.submitted_at for job in use.jobs), default=range_.since)
    table = Table(box=None)
    for column in ("from", "to", "idle GPUs"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for time in times:
        if time.begins and table.row_count:
            table.add_row()
        since, until = _between(begin, time.since), _between(begin, time.until)
        table.add_row(f"{since:.0f} s", f"{until:.0f} s", str(time.num_gpus), escape(why_text(time)))
    if times:
        console.print(table)
        console.print("Reasons are the journal's, and those of the last round before.", style="dim")


def _jobs_table(store: Store, records: list[JobRecord], results: Mapping[str, dict[str, Any]]) -> Table:
    table = Table(
        "job",
        "state",
        "submit to finish",
        "max GPUs",
        "moves in place",
        "by requeue",
        "stood still",
        "accuracy",
        "epochs",
        box=None,
    )
    for record in records:
        moved = _moved(store, record)
        in_place = [move for move in moved if move.way is ReallocationWay.IN_PLACE]
        result = results.get(record.slurm_job_id, {})
        peak = max(
            (one.allocation.num_gpus for one in store.allocation_history(record.slurm_job_id)), default=0
        )
        table.add_row(
            record.name,
            record.state.value,
            _seconds(_between(record.submitted_at, record.finished_at)),
            str(peak),
            str(len(in_place)),
            str(len(moved) - len(in_place)),
            _seconds(sum(_standstill_s(move) or 0.0 for move in moved)),
            f"{result['accuracy']:.4f}" if "accuracy" in result else "-",
            str(result.get("epochs", "-")),
        )
    return table


def _timeline(store: Store, record: JobRecord, begin: datetime) -> str:
    """Return the job's allocations with their times since `begin`."""
    held = [
        f"{_between(begin, one.started_at):.0f} s {one.allocation}"
        for one in store.allocation_history(record.slurm_job_id)
        if one.allocation
    ]
    submitted = f"submitted at {_between(begin, record.submitted_at):.0f} s"
    ended = f"ended at {_between(begin, record.finished_at):.0f} s" if record.finished_at else "not ended"
    return " → ".join([submitted, *held, ended])


def _moves_table(records: list[JobRecord], moves: list[Reallocation]) -> Table:
    """Return what each move cost; columns that are of moves by requeue only where there is one."""
    table = Table("job", "way", "from", "to", "end", box=None)
    requeues = any(move.way is ReallocationWay.REQUEUE for move in moves)
    by_requeue = ("checkpoint", "requeue to start", "start to first step") if requeues else ()
    for column in ("new processes start", *by_requeue, "stands still"):
        table.add_column(column, justify="right")
    names = {record.slurm_job_id: record.name for record in records}
    for move in moves:
        cost = reallocation_costs(move)
        parts = (cost.checkpoint_s, cost.slurm_s, cost.launch_s) if requeues else ()
        table.add_row(
            names[move.slurm_job_id],
            "in place" if move.way is ReallocationWay.IN_PLACE else "requeue",
            str(move.source),
            str(move.target),
            move.step.value + (f": {move.reason}" if move.reason else ""),
            *(_seconds(part) for part in (cost.warm_up_s, *parts, _standstill_s(move))),
        )
    table.caption = "While new processes start, the others train."
    return table


def _standstill_s(move: Reallocation) -> float | None:
    cost = reallocation_costs(move)
    return cost.standstill_s if move.way is ReallocationWay.IN_PLACE else cost.total_s


def _predictions_table(store: Store, records: list[JobRecord]) -> Table:
    table = Table("job", "batch", box=None)
    for column in ("samples", "predicted", "measured", "median error"):
        table.add_column(column, justify="right")
    for record in records:
        groups: defaultdict[int, list[Sample]] = defaultdict(list)
        for sample in store.sample_history(record.slurm_job_id):
            if sample.throughput and sample.predicted_throughput and sample.batch:
                groups[sample.batch.global_batch_size].append(sample)
        for batch, samples in sorted(groups.items()):
            predicted = statistics.median(sample.predicted_throughput or 0.0 for sample in samples)
            measured = statistics.median(sample.throughput or 0.0 for sample in samples)
            errors = [abs((one.predicted_throughput or 0) / (one.throughput or 1) - 1) for one in samples]
            table.add_row(
                record.name,
                str(batch),
                str(len(samples)),
                f"{predicted:.0f}",
                f"{measured:.0f}",
                f"{statistics.median(errors):.0%}",
            )
    return table


def _checks(
    records: list[JobRecord],
    results: Mapping[str, dict[str, Any]],
    moves: list[Reallocation],
    expected: Mapping[str, Expectation],
    num_expected: int,
) -> list[Check]:
    done = [record for record in records if record.state is JobState.COMPLETED]
    confirmed = [move for move in moves if move.step is Step.CONFIRMED and move.moves_running]
    grown = [move for move in confirmed if move.target.num_gpus > move.source.num_gpus]
    shrunk = [move for move in confirmed if move.target.num_gpus < move.source.num_gpus]
    open_moves = [move for move in moves if not move.step.is_end]
    checks = [
        Check(
            name="every job finished",
            passed=len(done) == num_expected,
            detail=", ".join(f"{record.name} {record.state.value}" for record in records),
        ),
        Check(name="at least one job grew", passed=bool(grown), detail=f"{len(grown)} growths confirmed"),
        Check(name="at least one job shrank", passed=bool(shrunk), detail=f"{len(shrunk)} shrinks confirmed"),
        Check(
            name="at least one move was made in place",
            passed=any(move.way is ReallocationWay.IN_PLACE for move in confirmed),
            detail=f"{sum(move.way is ReallocationWay.IN_PLACE for move in confirmed)} of {len(confirmed)}",
        ),
        Check(name="no move was left open", passed=not open_moves, detail=f"{len(open_moves)} open"),
    ]
    for job_id, expectation in expected.items():
        result = results[job_id]
        accuracy = result.get("accuracy", float("nan"))
        checks.append(
            Check(
                name=f"{expectation.name} reached its accuracy",
                passed=accuracy >= expectation.target,
                detail=f"{accuracy:.4f} of {expectation.target}",
            )
        )
        epochs = result.get("audit", [])
        exact = [epoch for epoch in epochs if epoch["min"] == epoch["max"] == 1]
        checks.append(
            Check(
                name=f"{expectation.name} saw each sample once in each epoch",
                passed=bool(epochs) and len(exact) == len(epochs) == result.get("epochs"),
                detail=f"{len(exact)} of {len(epochs)} epochs exact",
            )
        )
    return checks


def _moved(store: Store, record: JobRecord) -> list[Reallocation]:
    """Return the moves of a running job that were made."""
    moves = store.reallocations(record.slurm_job_id)
    return [move for move in moves if move.moves_running and move.step is Step.CONFIRMED]


def _result(file: Path) -> dict[str, Any]:
    try:
        result: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return result


def _between(start: datetime, end: datetime | None) -> float:
    return (end - start).total_seconds() if end is not None else float("nan")


def _seconds(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.1f} s"
