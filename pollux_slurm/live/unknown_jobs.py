"""What `pollux status` and `explain` say of jobs that Slurm knows and the store does not."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from pollux_slurm.live.slurm_reading import read_slurm

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord


def describe_unknown_job(
    config: Config, job_id: str, records: Iterable[JobRecord], seen: DaemonStatus, now: datetime
) -> str | None:
    """Describe a job that Slurm knows and the store does not; None if Slurm does not know it or answer."""
    from pollux_slurm.daemon.observe.cluster_picture import refused_registrations
    from pollux_slurm.daemon.observe.live_status import unregistered_job_text
    from pollux_slurm.slurm.parsing.comment_terms import decode_comment

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
