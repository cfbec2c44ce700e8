"""Whether Slurm's limits on numbers of jobs have room for a job in place: an anchor and its wings."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass

from pollux_slurm.config import MovesConfig
from pollux_slurm.errors import SlurmError
from pollux_slurm.slurm.commands.job_limits import JobRoom, Submitter, least_room
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.sbatch.request import SbatchRequest

MIN_JOBS = 3
"""The anchor, the wing that a start begins with, and one that joins: with fewer it never grows in place."""


@dataclass(frozen=True, slots=True)
class RoomForWings:
    """Asks Slurm once for each submission in place."""

    runner: CommandRunner
    moves: MovesConfig

    def __call__(self, request: SbatchRequest) -> str | None:
        """Return why there is no room, None where there is, or where Slurm does not tell."""
        if request.given("clusters"):
            return None
        asked = [*(request.value("partition") or "").split(","), self.moves.anchor_partition]
        try:
            room = least_room(
                self.runner,
                Submitter(
                    user_name=pwd.getpwuid(os.getuid()).pw_name,
                    account=request.value("account"),
                    qos=request.value("qos"),
                    partitions=tuple(name for name in asked if name),
                ),
            )
        except (SlurmError, KeyError):
            return None
        return None if room is None else no_room(room)


def no_room(room: JobRoom) -> str | None:
    """Return why there is too little room; None where there is enough."""
    if room.jobs >= MIN_JOBS:
        return None
    return f"it takes {MIN_JOBS} jobs at least, and {room.limit} leaves {room.jobs}"
