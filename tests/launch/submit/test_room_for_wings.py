"""What limits of Slurm leave a job in place. Limits are in minutes here."""

from __future__ import annotations

import pytest

from pollux_slurm.config import MovesConfig
from pollux_slurm.launch.submit.room_for_wings import Room, room
from pollux_slurm.slurm.commands.job_limits import JobRoom, PartitionTimes, SubmitterLimits
from pollux_slurm.slurm.sbatch.options import parse_words
from pollux_slurm.slurm.sbatch.request import SbatchRequest


def partition(name: str, default: int | None = None, most: int | None = None) -> PartitionTimes:
    return PartitionTimes(
        name=name,
        is_default=name == "main",
        default_s=None if default is None else default * 60.0,
        max_s=None if most is None else most * 60.0,
    )


PARTITIONS = (
    partition("main", 10, 60),
    partition("long", None, None),
    partition("short", 5, 5),
    partition("cpu", 30, 120),
)


def found(*words: str, wall: int | None = None, anchor: str | None = None, jobs: int = 9) -> Room:
    return room(
        SbatchRequest.of(parse_words(words).options, {}, ()),
        SubmitterLimits(
            room=JobRoom(jobs, "MaxJobs=9 of ada"),
            max_wall_s=None if wall is None else wall * 60.0,
            partitions=PARTITIONS,
        ),
        MovesConfig(anchor_partition=anchor),
    )


@pytest.mark.parametrize(
    ("words", "wall", "anchor", "default", "most"),
    [
        ((), None, None, 10, 60),
        (("-plong",), None, None, None, None),
        (("-plong",), 20, None, 20, 20),
        (("--time=9",), 20, None, 10, 20),
        # Partitions that do not allow the training do not count.
        (("-pshort,main", "--time=30"), None, None, 5, 60),
        (("-plong,main", "--time=90"), None, None, 10, None),
        # The training's limit is of its own partition, the anchor's of that in which it stands.
        ((), None, "cpu", 10, 120),
        (("-pshort",), 60, "cpu", 5, 60),
    ],
)
def test_that_times_are_those_of_partitions_and_walls(
    words: tuple[str, ...], wall: int | None, anchor: str | None, default: int | None, most: int | None
) -> None:
    assert found(*words, wall=wall, anchor=anchor) == Room(
        default_s=None if default is None else default * 60.0,
        max_anchor_s=None if most is None else most * 60.0,
    )


@pytest.mark.parametrize(
    ("words", "because"),
    [
        (
            ("-plong", "--time=3:00:00"),
            "its anchor lasts as long as a training of 180 minutes, and partition cpu allows 120 minutes",
        ),
        (
            ("-plong",),
            "its anchor lasts as long as a training without a limit, and partition cpu allows 120 minutes",
        ),
    ],
)
def test_that_there_is_no_room_where_an_anchor_may_not_outlast_its_training(
    words: tuple[str, ...], because: str
) -> None:
    assert found(*words, anchor="cpu").none_because == because


def test_that_a_training_that_its_own_partition_does_not_allow_is_told_so() -> None:
    assert found("-pshort", "--time=3:00:00").none_because == (
        "partition short allows 5 minutes, and Slurm starts no training of 180 minutes there: "
        "ask for less --time"
    )


def test_that_three_jobs_are_the_least() -> None:
    assert found(jobs=3).none_because is None
    assert found(jobs=2).none_because == "it takes 3 jobs at least, and MaxJobs=9 of ada leaves 2"
