"""What counts against the daemon on a hostile site, and what does not: by looks and journals made by hand."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from pollux_slurm.model import Allocation, JobState, SlurmAnswer, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import Reallocation, Refusal
from tests.daemon.builders import NOON, job, reallocation
from tests.site.places import HELD_S, Places, tried_again

ON = {"n0": 2}


def stops(*looks: SlurmJob | None) -> list[tuple[float, Allocation | None]]:
    """Look each second at a job, None where Slurm has none; return how long each stop lasted."""
    places = Places()
    for at_s, look in enumerate(looks):
        places.look(float(at_s), [] if look is None else [look], {"1"}, set())
    places.end()
    return [(stop.lasted_s, stop.after) for stop in places.stops]


def test_that_a_stop_lasts_from_the_first_look_without_gpus_to_the_next_with_some() -> None:
    runs, waits = job("1", on=ON), job("1", JobState.PENDING)
    assert stops(waits, waits, runs, runs) == [], "it never had any"
    assert stops(runs, waits, waits, runs) == [(2.0, Allocation.of(ON))]
    assert stops(runs, waits, None, waits) == [(2.0, None)], "it waits until the end"
    assert stops(runs, waits, job("1", JobState.CANCELLED)) == [], "it ended"
    assert stops(runs, job("1", JobState.COMPLETING), runs) == [(1.0, Allocation.of(ON))]


def test_that_a_hold_counts_that_no_move_explains_and_that_lasts() -> None:
    held = job("1", JobState.PENDING, held=True)
    for moving, released, expected in (
        (set(), False, {"1"}),
        ({"1"}, False, set()),
        (set(), True, set()),
    ):
        places = Places()
        places.look(0.0, [held], (), moving)
        places.look(HELD_S / 2, [job("1", JobState.PENDING)] if released else [held], (), moving)
        places.look(HELD_S + 1, [held], (), moving)
        assert places.held == expected


def move(number: int, minutes: float, target: dict[str, int], *, refused: bool = False) -> Reallocation:
    made = reallocation(number, "1", Step.FAILED, source={"n0": 1}, target=target)
    at = NOON + timedelta(minutes=minutes)
    refusal = Refusal(
        allocation=Allocation.of(target), answer=SlurmAnswer.NEVER, at=at, reason="PartitionNodeLimit"
    )
    return dataclasses.replace(made, times=((Step.PLANNED, at),), refusal=refusal if refused else None)


def test_that_what_was_never_runnable_must_not_be_tried_again_soon() -> None:
    first = move(1, 0, {"n0": 1, "n1": 1}, refused=True)
    (text,) = tried_again([first, move(2, 5, {"n0": 1, "n1": 1})])
    assert "n0:1+n1:1 in move 2" in text
    assert len(tried_again([first, move(2, 5, {"n0": 2, "n1": 1})])) == 1, "more on the same nodes"
    assert tried_again([first, move(2, 11, {"n0": 1, "n1": 1})]) == []
    assert tried_again([first, move(2, 5, {"n0": 2}), move(3, 6, {"n0": 1, "n2": 1})]) == []
    other = dataclasses.replace(move(2, 5, {"n0": 1, "n1": 1}), slurm_job_id="2")
    assert tried_again([first, other]) == []
    assert first.refusal is not None
    not_now = dataclasses.replace(first.refusal, answer=SlurmAnswer.NOT_NOW)
    assert tried_again([dataclasses.replace(first, refusal=not_now), move(2, 5, {"n0": 1, "n1": 1})]) == []
