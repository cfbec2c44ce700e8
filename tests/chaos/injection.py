"""What each kind of fault is made of: a target, and how the fault is undone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from pollux_slurm.model import JobState, SlurmJob
from tests.chaos.schedule import Planned
from tests.chaos.site import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """How a fault is undone: `act` is called after `after_s` seconds, and repeated until it returns True."""

    after_s: float
    act: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """An injected fault: its target, and how it is undone (None: nothing to undo)."""

    detail: str
    undo: Undo | None = None


# Returns None when there is no target now: another kind comes first.
Inject = Callable[[Site, Planned, random.Random], "Injected | None"]


def jobs_in(site: Site, *states: JobState) -> list[SlurmJob]:
    ours = {job.job_id for job in site.jobs if not job.cancelled} - site.held_externally - site.reserved
    return [job for job in site.user.slurm.snapshot().jobs if job.job_id in ours and job.state in states]
