"""Which of Slurm's jobs the store knows, and what to say of those that it does not."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pollux_slurm.model import ClusterSnapshot, JobState, SlurmJob
from pollux_slurm.now.daemon_text import daemon_absence_text, next_read_text
from pollux_slurm.now.slurm_reading import read_slurm
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, parse_comment
from pollux_slurm.text import ago_text

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord

# A running daemon that serves the job has registered it by then.
_REGISTERED_WITHIN = timedelta(minutes=2)


def is_recorded_job(job: SlurmJob, record: JobRecord) -> bool:
    """Whether Slurm's job with this id is the registered one.

    Job ids repeat when a cluster is set up anew, and owners may edit the Comment. So only a job of the same
    user, whose Comment has the registered token's hash, may be touched.
    """
    terms = decode_comment(job.comment)
    return (
        terms is not None
        and terms.token_sha256 == record.terms.token_sha256
        and job.user_id == terms.user_id == record.terms.user_id
    )


def refused_registrations(
    snapshot: ClusterSnapshot, records: Iterable[JobRecord], refused: Container[str] = ()
) -> dict[str, str]:
    """Return, by job id, why jobs with terms in their Comment cannot be registered.

    Slurm's owner of a job counts, not its Comment: Comments are public and can be copied. `refused` are jobs
    that the store did not register.
    """
    registered = {(known.terms.user_id, known.terms.token_sha256): known.slurm_job_id for known in records}
    found = {}
    for job in snapshot.jobs:
        parsed = parse_comment(job.comment)
        if job.state.is_over:
            continue
        if parsed.problem is not None:
            found[job.job_id] = f"the terms in its Comment cannot be used: {parsed.problem}"
        elif parsed.terms is not None and parsed.terms.user_id != job.user_id:
            found[job.job_id] = (
                f"its token is another user's: its Comment has user id {parsed.terms.user_id}, "
                f"Slurm has {job.user_id}"
            )
        elif parsed.terms is not None:
            holder = registered.get((job.user_id, parsed.terms.token_sha256), job.job_id)
            if holder != job.job_id:
                found[job.job_id] = f"its token is that of the same user's job {holder}"
            elif job.job_id in refused:
                found[job.job_id] = "its token was an earlier job's, or its bounds are impossible"
    return found


def describe_unknown_job(
    config: Config, job_id: str, records: Iterable[JobRecord], seen: DaemonStatus, now: datetime
) -> str | None:
    """Describe a job that Slurm knows and the store does not; None if Slurm does not know it or answer."""
    snapshot, _ = read_slurm(config)
    job = None if snapshot is None else snapshot.job(job_id)
    if snapshot is None or job is None:
        return None
    because = refused_registrations(snapshot, records).get(job_id)
    if because is not None:
        return f"job {job_id} ({job.state.value}) is not adaptive: {because}"
    if decode_comment(job.comment) is not None:
        return unregistered_job_text(job, seen, now)
    return (
        f"job {job_id} ({job.state.value}) is not adaptive: submit it with pollux sbatch; a job of plain "
        "sbatch becomes adaptive when it starts if its script calls pollux run and a store is set"
    )


def unregistered_lines(
    snapshot: ClusterSnapshot | None, records: tuple[JobRecord, ...], seen: DaemonStatus, now: datetime
) -> list[str]:
    """Return a line for each adaptive job of this user in Slurm that the store does not know yet.

    Also one for each job, of any user, that is not adaptive because its Comment is refused.
    """
    refused = {} if snapshot is None else refused_registrations(snapshot, records)
    known = {*(record.slurm_job_id for record in records), *refused}
    return [f"job {job_id} is not adaptive: {because}" for job_id, because in refused.items()] + [
        unregistered_job_text(job, seen, now)
        for job in (() if snapshot is None else snapshot.jobs)
        if job.job_id not in known
        and job.user_id == os.geteuid()
        and not job.state.is_over
        and decode_comment(job.comment) is not None
    ]


def unregistered_job_text(job: SlurmJob, seen: DaemonStatus, now: datetime) -> str:
    """Return a text for people about an adaptive job in Slurm that is not registered yet."""
    came = "" if job.submitted_at is None else f" {ago_text(job.submitted_at, now)}"
    why = f" ({job.reason})" if job.state is JobState.PENDING and job.reason not in ("", "None") else ""
    # An anchor that has submitted no wing yet is shown as COMPLETING.
    is_starting = job.state is JobState.COMPLETING and job.ended_at is None
    state = "starting" if is_starting else job.state.value
    text = f"job {job.job_id} was submitted{came} and is {state}{why}"
    missing = daemon_absence_text(seen, now)
    if missing is not None:
        return f"{text}; it is not registered: {missing}"
    text += f"; it is not registered yet: {next_read_text(seen, now)}"
    if job.submitted_at is None or now - job.submitted_at <= _REGISTERED_WITHIN:
        return text
    return f"{text}; it may serve only other partitions or other users, see its log"
