"""What Slurm itself has of each run, by slurmctld's log or sacct, and how the store differs from it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pollux_slurm.model import JobState
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.store.contract.interface import AllocationRecord, Store
from tests.books.mixture import Mixture, Played

_LINE = re.compile(r"^\[([0-9T:.-]+)\] (.*)$")
_STARTED = re.compile(r"(?:Started|Allocate) JobId=(\d+)\b")
_SUSPENDED = re.compile(r"_slurm_rpc_suspend\((suspend|resume)\) for (\d+)")
# How the log shows the end of a cancelled job, and of one that timed out.
_ENDED = re.compile(
    r"(?:Requeuing|REQUEST_KILL_JOB|Time limit exhausted for|_job_complete:) JobId=(\d+)(?:$| (?!done))"
)


@dataclass(slots=True, kw_only=True)
class SlurmRun:
    """One run: start and end to the second, and what Slurm counts of it, in seconds."""

    started_at: datetime
    ended_at: datetime | None = None
    counted_s: float = 0.0
    gpus: int | None = None
    state: str = ""


def runs_of_log(path: Path) -> dict[str, list[SlurmRun]]:
    """Return the runs of each job by slurmctld's log. Its times are those of the machine's time zone."""
    found: defaultdict[str, list[SlurmRun]] = defaultdict(list)
    since: dict[str, datetime | None] = {}
    for line in path.read_text(errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        at = datetime.fromisoformat(match[1]).astimezone(timezone.utc).replace(microsecond=0)
        text = match[2]
        if (started := _STARTED.search(text)) is not None:
            found[started[1]].append(SlurmRun(started_at=at))
            since[started[1]] = at
        elif (paused := _SUSPENDED.search(text)) is not None:
            job_id = paused[2]
            began = since.get(job_id)
            if paused[1] == "suspend" and began is not None:
                found[job_id][-1].counted_s += (at - began).total_seconds()
            since[job_id] = at if paused[1] == "resume" else None
        elif (ended := _ENDED.search(text)) is not None and found[ended[1]]:
            run, began = found[ended[1]][-1], since.get(ended[1])
            if run.ended_at is None:
                run.ended_at = at
                run.counted_s += (at - began).total_seconds() if began is not None else 0.0
    return dict(found)


def runs_of_sacct(runner: CommandRunner) -> dict[str, list[SlurmRun]]:
    """Return the runs of each job by sacct, oldest first."""
    answer = runner.run(
        "sacct", "-D", "-X", "-P", "-n", "--allusers", "--starttime=2020-01-01",
        "--format=JobIDRaw,Start,End,ElapsedRaw,State,AllocTRES",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.error_text
    found: defaultdict[str, list[SlurmRun]] = defaultdict(list)
    for line in answer.stdout.splitlines():
        job_id, start, end, elapsed, state, tres = line.split("|")
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        found[job_id].append(
            SlurmRun(
                started_at=_utc(start),
                ended_at=None if end == "Unknown" else _utc(end),
                counted_s=float(elapsed),
                gpus=int(gpus[1]) if gpus else 0,
                state=state.split()[0].lower(),
            )
        )
    return {job_id: sorted(runs, key=lambda run: run.started_at) for job_id, runs in found.items()}


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One job in both accounts."""

    played: Played
    stored_gpu_s: float
    slurm_gpu_s: float
    estimated: bool
    differences: tuple[str, ...]


def compared(
    mixture: Mixture, rows: Iterable[Mapping[str, Any]], slurm: Mapping[str, Sequence[SlurmRun]]
) -> list[Line]:
    """Compare every job; `rows` are those of the view job_goodput."""
    by_id = {str(row["slurm_job_id"]): row for row in rows}
    return [
        _compared(played, by_id[played.job_id], slurm.get(played.job_id, ()), mixture.store)
        if played.job_id in by_id
        else Line(
            played=played, stored_gpu_s=0.0, slurm_gpu_s=0.0, estimated=False, differences=("not stored",)
        )
        for played in mixture.played
    ]


def _compared(played: Played, row: Mapping[str, Any], runs: Sequence[SlurmRun], store: Store) -> Line:
    own = _seconds_by_run(store.history.allocations(played.job_id))
    estimated = bool(row["estimated"])
    gpus = [played.gpus if run.gpus is None else run.gpus for run in runs]
    slurm_gpu_s = sum(count * run.counted_s for count, run in zip(gpus, runs, strict=True))
    stored_gpu_s = 3600.0 * float(row["gpu_hours"])
    odd: list[str] = []
    job = store.jobs.get(played.job_id)
    if not runs:
        odd.append("Slurm knows no run of it")
    elif not estimated:
        if [number for number, _, _ in own] != list(range(len(runs))):
            odd.append(f"runs {[number for number, _, _ in own]}, not {len(runs)}")
        for (number, seconds, held), run, count in zip(own, runs, gpus, strict=False):
            if abs(seconds - run.counted_s) > 1:
                odd.append(f"run {number} lasted {seconds:g} s, by Slurm {run.counted_s:g} s")
            if held != {count}:
                odd.append(f"run {number} held {held} GPUs, by Slurm {count}")
        if abs(stored_gpu_s - slurm_gpu_s) > sum(gpus):
            odd.append(f"{stored_gpu_s:.0f} GPU seconds, by Slurm {slurm_gpu_s:.0f}")
        odd.extend(_differing("start", job.started_at, runs[0].started_at))
        odd.extend(_differing("end", job.finished_at, runs[-1].ended_at))
        if row["requeues"] != len(runs) - 1:
            odd.append(f"{row['requeues']} requeues, by Slurm {len(runs) - 1}")
        if runs[-1].state and runs[-1].state != job.state.value:
            odd.append(f"{job.state.value}, by Slurm {runs[-1].state}")
    return Line(
        played=played,
        stored_gpu_s=stored_gpu_s,
        slurm_gpu_s=slurm_gpu_s,
        estimated=estimated,
        differences=tuple(odd),
    )


def _differing(what: str, stored: datetime | None, slurm: datetime | None) -> list[str]:
    if stored is not None and slurm is not None and abs((stored - slurm).total_seconds()) <= 1:
        return []
    return [f"{what} {stored}, by Slurm {slurm}"]


def _seconds_by_run(history: Sequence[AllocationRecord]) -> list[tuple[int | None, float, set[int]]]:
    """Return number, seconds and GPUs of each run, oldest first."""
    seconds: defaultdict[int | None, float] = defaultdict(float)
    gpus: defaultdict[int | None, set[int]] = defaultdict(set)
    for held in history:
        ended_at = held.ended_at or held.started_at
        seconds[held.restart_count] += (ended_at - held.started_at).total_seconds()
        gpus[held.restart_count].add(held.allocation.num_gpus)
    return [(number, seconds[number], gpus[number]) for number in seconds]


def states_of(mixture: Mixture) -> dict[str, JobState]:
    """Return the state of each job that slurmctld still knows."""
    return {job.job_id: job.state for job in mixture.slurm.snapshot().jobs}
