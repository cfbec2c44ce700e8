"""What Slurm's limits on jobs and on time leave a job in place: an anchor and its wings."""

from __future__ import annotations

import math
import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass

from pollux_slurm.config import MovesConfig
from pollux_slurm.errors import SlurmError
from pollux_slurm.slurm.commands.job_limits import (
    JobRoom,
    PartitionTimes,
    Submitter,
    SubmitterLimits,
    read_limits,
)
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.sbatch.request import SbatchRequest, time_limit_s

MIN_JOBS = 3
"""The anchor, the wing that a start begins with, and one that joins: with fewer it never grows in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What Slurm's limits leave a job in place; without values where there are none, or Slurm does not tell.

    `none_because` is why there is no room. `default_s` is the time limit of a training whose owner names
    none, `max_anchor_s` the highest that its anchor may have.
    """

    none_because: str | None = None
    default_s: float | None = None
    max_anchor_s: float | None = None


@dataclass(frozen=True, slots=True)
class RoomForWings:
    """Asks Slurm once for each submission in place."""

    runner: CommandRunner
    moves: MovesConfig

    def __call__(self, request: SbatchRequest) -> Room:
        """Return the room of a submission."""
        if request.given("clusters"):
            return Room()
        asked = [*_partitions(request), self.moves.anchor_partition]
        try:
            limits = read_limits(
                self.runner,
                Submitter(
                    user_name=pwd.getpwuid(os.getuid()).pw_name,
                    account=request.value("account"),
                    qos=request.value("qos"),
                    partitions=tuple(name for name in asked if name),
                ),
            )
        except (SlurmError, KeyError):
            return Room()
        return room(request, limits, self.moves)


def room(request: SbatchRequest, limits: SubmitterLimits, moves: MovesConfig) -> Room:
    """Return the room that limits leave a submission."""
    asked = _partitions(request)
    own = [one for one in limits.partitions if (one.name in asked if asked else one.is_default)]
    anchors = [one for one in limits.partitions if one.name == moves.anchor_partition] or own
    wall_s = math.inf if limits.max_wall_s is None else limits.max_wall_s
    default_s = min(wall_s, *(_or_infinite(one.default_s) for one in own), math.inf)
    training_s = _or_infinite(time_limit_s(request.value("time"))) if request.given("time") else default_s
    # Slurm takes one of several partitions: those that do not allow the training do not matter.
    allowing = [limit_s for one in anchors if (limit_s := _or_infinite(one.max_s)) >= training_s]
    none_because = None if limits.room is None else _no_room(limits.room)
    if anchors and not allowing:
        none_because = none_because or _too_short(anchors, training_s, trains_there=anchors is own)
    return Room(
        none_because=none_because,
        default_s=_or_none(default_s),
        max_anchor_s=_or_none(min(wall_s, *allowing, math.inf)),
    )


def _no_room(found: JobRoom) -> str | None:
    """Return why there is too little room; None where there is enough."""
    if found.jobs >= MIN_JOBS:
        return None
    return f"it takes {MIN_JOBS} jobs at least, and {found.limit} leaves {found.jobs}"


def _too_short(anchors: Sequence[PartitionTimes], training_s: float, *, trains_there: bool) -> str:
    longest = max(anchors, key=lambda one: _or_infinite(one.max_s))
    asked = "without a limit" if math.isinf(training_s) else f"of {math.ceil(training_s / 60)} minutes"
    most = f"partition {longest.name} allows {_or_infinite(longest.max_s) / 60:.0f} minutes"
    if trains_there:
        return f"{most}, and Slurm starts no training {asked} there: ask for less --time"
    return f"its anchor lasts as long as a training {asked}, and {most}"


def _partitions(request: SbatchRequest) -> list[str]:
    return [name for name in (request.value("partition") or "").split(",") if name]


def _or_infinite(limit_s: float | None) -> float:
    return math.inf if limit_s is None else limit_s


def _or_none(limit_s: float) -> float | None:
    return limit_s if math.isfinite(limit_s) else None
