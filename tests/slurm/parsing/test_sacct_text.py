"""Jobs in sacct's text, as Slurm 22.05.8 with slurmdbd wrote it; malformed text: tests/simulator/site."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.slurm.commands.accounting import JOB_COLUMNS
from pollux_slurm.slurm.parsing.sacct_text import SacctJob, parse_sacct

RECORDED = Path(__file__).parents[1] / "recorded" / "sacct-22.05.txt"


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-26T07:{text}+00:00")


def recorded() -> dict[str, SacctJob]:
    lines = RECORDED.read_text().splitlines()
    return {job.job_id: job for job in parse_sacct(lines, command="sacct", required=JOB_COLUMNS[1:-1])}


def test_that_times_gpus_and_owner_of_a_job_are_read() -> None:
    job = recorded()["3"]
    assert (job.user_name, job.account, job.name, job.state) == ("ada", "vision", "waits", "COMPLETED")
    assert (job.submitted_at, job.started_at, job.ended_at) == (at("27:13"), at("27:18"), at("27:21"))
    assert (job.num_gpus, job.gpu_s, job.has_ended) == (2, 6, True)
    assert recorded()["2"].name == "a|b name"


def test_that_a_requeued_job_is_one_job_from_its_first_submission_to_its_last_end() -> None:
    job = recorded()["7"]
    assert (job.submitted_at, job.started_at, job.ended_at) == (at("27:13"), at("27:18"), at("29:25"))
    assert (job.gpu_s, job.state) == (6, "COMPLETED")


def test_that_jobs_without_a_start_or_without_gpus_have_no_start() -> None:
    found = recorded()
    never, cpu = found["6"], found["5"]
    assert (never.started_at, never.num_gpus, never.state) == (None, 0, "CANCELLED")
    assert (cpu.started_at, cpu.num_gpus) == (None, 0)
    head = "JobIDRaw|Submit|Start|End|ElapsedRaw|AllocTRES|State"
    (waits,) = parse_sacct([head, "1|1769846400|Unknown|Unknown|0||PENDING"], command="sacct")
    assert waits.submitted_at == datetime(2026, 1, 31, 8, tzinfo=timezone.utc)
    assert (waits.started_at, waits.ended_at, waits.has_ended) == (None, None, False)


def test_that_what_is_required_must_be_there() -> None:
    with pytest.raises(TraceError, match=r"no column Start; write it with: sacct -X -P$"):
        parse_sacct(["JobIDRaw|Submit|ElapsedRaw|AllocTRES"], command="sacct -X -P", required=("Start",))
    with pytest.raises(TraceError, match=r"line 2 .* End is 'soon'"):
        parse_sacct(["JobIDRaw|Submit|ElapsedRaw|AllocTRES|End", "1|1|1||soon"], command="sacct")
