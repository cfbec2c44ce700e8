"""What `pollux status` and `explain` ask of Slurm itself, and what it says of jobs that the store has not."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from pollux_slurm.errors import SlurmError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.model import ClusterSnapshot
    from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord

# A slurmctld that is slow to answer must not keep people from what the store knows.
_PATIENCE_S = 10.0


def read_slurm(config: Config) -> tuple[ClusterSnapshot | None, str]:
    """Return what Slurm shows now, and why it could not be asked, where it could not."""
    from pollux_slurm.slurm import connect

    patience_s = min(config.slurm.command_timeout_s, _PATIENCE_S)
    asked = dataclasses.replace(config.slurm, backend="commands", command_timeout_s=patience_s)
    try:
        return connect(asked, os.environ).snapshot(), ""
    except SlurmError as error:
        return None, str(error)


def describe_unknown_job(
    config: Config, job_id: str, records: Iterable[JobRecord], seen: DaemonStatus, now: datetime
) -> str | None:
    """Return what Slurm knows of a job that the store does not; None where it knows nothing, or is silent."""
    from pollux_slurm.daemon.observe.cluster_picture import refusals
    from pollux_slurm.daemon.observe.daemon_presence import newcomer
    from pollux_slurm.slurm.parsing.comment_terms import decode_comment

    snapshot, _ = read_slurm(config)
    job = None if snapshot is None else snapshot.job(job_id)
    if snapshot is None or job is None:
        return None
    because = refusals(snapshot, records).get(job_id)
    if because is not None:
        return f"job {job_id} ({job.state.value}) is not adaptive: {because}"
    if decode_comment(job.comment) is not None:
        return newcomer(job, seen, now)
    return (
        f"job {job_id} ({job.state.value}) is not adaptive: submit it by pollux sbatch; a job of plain "
        "sbatch whose script calls pollux run, and that finds a store, becomes adaptive when it starts"
    )
