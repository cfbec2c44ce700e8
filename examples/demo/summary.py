"""The demo's summary: the cost of each move, checks, idle GPUs, and three sentences with figures.

It reads the store and the result files of the training scripts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.model import JobState, ReallocationStep, ReallocationWay
from pollux_slurm.report.parts.idle_gpus import idle_text, idle_times, why_text
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Store
from pollux_slurm.store.journal.move_costs import reallocation_costs
from pollux_slurm.store.reporting.gpu_use import GpuUse
from pollux_slurm.store.reporting.queries import ViewReader

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
    records = [record for record in store.jobs.all() if record.slurm_job_id in expected]
    results = {job_id: _result(expectation.result) for job_id, expectation in expected.items()}
    moves = [move for record in records for move in store.journal.reallocations(record.slurm_job_id)]
    console.rule("moves of running jobs")
    console.print(_moves_table(records, [move for move in moves if move.moves_running]))
    console.rule("checks")
    checks = _checks(records, results, moves, expected, num_expected)
    for check in checks:
        mark = "[green]passed[/]" if check.passed else "[bold red]FAILED[/]"
        console.print(f"{mark}  {check.name}: {check.detail}", highlight=False)
    return all(check.passed for check in checks)


def three_sentences(
    reports: ViewReader,
    use: GpuUse,
    range_: Range,
    expected: Mapping[str, Expectation],
    num_gpus: int,
) -> tuple[str, str, str]:
    """Return how many GPUs were idle, how fast training was against a fixed size, how many samples were lost.

    The speed is that of the first job: its useful examples per second over its whole time, against those
    that it measured with its first number of GPUs.
    """
    jobs = sorted(use.jobs, key=lambda job: job.submitted_at)
    idle_gpu_s = sum(one.gpu_s for one in idle_times(use, range_))
    first, last = jobs[0].submitted_at, max(job.finished_at or range_.until for job in jobs)
    whole_gpu_s = num_gpus * (last - first).total_seconds()
    idle = (
        f"GPUs were idle for {idle_gpu_s / whole_gpu_s:.0%} of the {whole_gpu_s:.0f} GPU seconds while a job "
        "could have used them."
    )
    job, samples = jobs[0], reports.samples(jobs[0].slurm_job_id, max_points=10_000)
    measured = [(one.goodput, one.num_gpus) for one in samples if one.goodput is not None]
    speed = f"{job.name} measured nothing."
    if measured:
        num_first = measured[0][1]
        all_speeds = [goodput for goodput, _ in measured]
        fixed_speeds = [goodput for goodput, num_gpus in measured if num_gpus == num_first]
        ratio = statistics.mean(all_speeds) / statistics.mean(fixed_speeds)
        speed = (
            f"{job.name} trained {ratio:.1f} times as fast as with the {num_first} GPUs that it began with."
        )
    counts = [epoch for one in expected.values() for epoch in _result(one.result).get("audit", [])]
    lost, twice = sum(epoch["min"] < 1 for epoch in counts), sum(epoch["max"] > 1 for epoch in counts)
    result = "samples lost: 0, used twice: 0"
    if lost or twice:
        result = f"samples were lost in {lost} and used twice in {twice}"
    samples_text = f"Over {len(counts)} epochs of {len(jobs)} jobs, {result}."
    return idle, speed, samples_text


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


def _moves_table(records: list[JobRecord], moves: list[Reallocation]) -> Table:
    """Return what each move cost; columns that are of moves by requeue only where there is one."""
    table = Table(box=None, pad_edge=False)
    for column in ("job", "way", "from", "to"):
        table.add_column(column, no_wrap=True)
    table.add_column("end")
    requeues = any(move.way is ReallocationWay.REQUEUE for move in moves)
    by_requeue = ("checkpoint", "requeue to start", "start to first step") if requeues else ()
    for column in ("processes start", *by_requeue, "stands still"):
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
    table.caption = "While the new processes of a move in place start, the others train."
    return table


def _standstill_s(move: Reallocation) -> float | None:
    cost = reallocation_costs(move)
    return cost.standstill_s if move.way is ReallocationWay.IN_PLACE else cost.total_s


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
