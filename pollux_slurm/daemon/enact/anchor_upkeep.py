"""What a round asks of Slurm for anchors and wings outside of moves.

- A wing that waits while its anchor is over would never be told which processes to start: it is cancelled.
  One that runs ends by itself.
- An anchor that must leave its node and whose training waits for GPUs is requeued. One that trains is moved
  with a checkpoint (`maintenance`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime, timedelta

from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.errors import SlurmCommandError
from pollux_slurm.model import ClusterSnapshot, JobState
from pollux_slurm.slurm.client import SlurmClient

_log = logging.getLogger(__name__)

# The wings of an anchor that has just ended may be about to be cancelled by it.
_GRACE = timedelta(seconds=60)
# In one round: an owner may have thousands.
_MAX_CANCELLED = 20


def cancel_orphans(
    snapshot: ClusterSnapshot, slurm: SlurmClient, now: datetime, *, only_user_id: int | None
) -> None:
    """Cancel the wings that wait for an anchor that is over. `only_user_id`, if given, restricts them."""
    orphans = [
        wing
        for job in snapshot.jobs
        if job.state.is_over and job.ended_at is not None and now - job.ended_at > _GRACE
        for wing in job.wings
        if wing.state is JobState.PENDING and only_user_id in (None, wing.user_id)
    ]
    for wing in orphans[:_MAX_CANCELLED]:
        _log.warning("job %s is a wing whose anchor is over: it is cancelled", wing.job_id)
        try:
            slurm.cancel(wing.job_id)
        except SlurmCommandError as error:
            _log.warning("wing %s: %s", wing.job_id, error)


def requeue_waiting_anchors(managed: Iterable[ManagedJob], slurm: SlurmClient) -> None:
    """Requeue the anchors that must leave their nodes while their trainings wait for GPUs."""
    for job in managed:
        shown, record = job.slurm, job.record
        if shown.anchor_leaves_because is None or shown.state is not JobState.PENDING:
            continue
        # Its next wing would neither be held nor parked.
        if shown.held or record.paused_at is not None or record.open_reallocation is not None:
            continue
        _log.info("job %s: %s", shown.job_id, shown.anchor_leaves_because)
        try:
            slurm.requeue(shown.job_id, restart_count=shown.restart_count)
        except SlurmCommandError as error:
            _log.info("job %s: its anchor stays: %s", shown.job_id, error)
