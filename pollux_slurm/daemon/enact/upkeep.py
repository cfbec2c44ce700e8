"""What a round asks of Slurm outside of moves.

- A wing that waits while its anchor is over would never be told which processes to start: it is cancelled.
  One that runs ends by itself.
- An anchor that must leave its node and whose training waits for GPUs is requeued. One that trains is moved
  with a checkpoint (`maintenance`).
- Jobs that wait until a begin time get a later one: paused jobs, and those that may have leftover processes.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from datetime import datetime, timedelta

from pollux_slurm.daemon.decide import problem_building
from pollux_slurm.daemon.observe import returned_nodes
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob, Picture
from pollux_slurm.errors import SlurmCommandError
from pollux_slurm.model import ClusterSnapshot, JobState
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import Store

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


def prolong_pauses(
    picture: Picture, slurm: SlurmClient, moved: Container[str], now: datetime, *, pause_ttl_s: float
) -> None:
    """Set later begin times for paused jobs whose begin time is near, or Slurm would start them."""
    soon = now + timedelta(seconds=pause_ttl_s / 2)
    for job in picture.managed:
        begins_at = job.slurm.begins_at
        if begins_at is None or begins_at > soon or not problem_building.is_parked(job, now):
            continue
        # An anchor that waits itself must return: it has no GPUs to be kept from.
        if job.slurm.job_id in moved or job.slurm.anchor_waits:
            continue
        try:
            slurm.set_begin_time(job.slurm.job_id, ahead_s=pause_ttl_s)
        except SlurmCommandError as error:
            _log.info("job %s: its pause is not prolonged: %s", job.slurm.job_id, error)


def delay_jobs_with_leftovers(
    picture: Picture, slurm: SlurmClient, store: Store, moved: Container[str], now: datetime
) -> None:
    """Set later begin times for jobs requeued off a lost node, which may still have processes there."""
    unsettled = returned_nodes.unsettled_nodes(picture.snapshot)
    for job in picture.managed if unsettled else ():
        shown = job.slurm
        may_start = not (shown.held or job.in_flight or shown.job_id in moved)
        if not (may_start and shown.restart_count and returned_nodes.may_start_too_soon(shown, now)):
            continue
        if problem_building.not_moved_because(job) is not None:
            continue
        ran_on = returned_nodes.last_allocation(store.history.allocations(shown.job_id))
        if not returned_nodes.may_have_leftover(ran_on, unsettled):
            continue
        _log.info("job %s: kept waiting, since it may still have processes on %s", shown.job_id, ran_on)
        try:
            slurm.set_begin_time(shown.job_id, ahead_s=returned_nodes.WAIT_S)
        except SlurmCommandError as error:
            _log.info("job %s: its begin time is not set: %s", shown.job_id, error)
