"""Which wings a planned generation lacks, and which are wanted no more."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from pollux_slurm.launch.anchor.link import Link
from pollux_slurm.launch.anchor.newcomers import Newcomers
from pollux_slurm.launch.anchor.start import Start, Wing
from pollux_slurm.store.contract.membership import GenerationMember, GenerationRecord, GenerationState

STAYS = GenerationMember(id="0.0.n0.0", node_name="n0", is_ready=True)
JOIN_ON_N1 = (
    GenerationMember(id="0.9.n1.0", node_name="n1"),
    GenerationMember(id="0.9.n1.1", node_name="n1"),
)
FIRST = GenerationRecord(
    slurm_job_id="1",
    number=4,
    state=GenerationState.PLANNED,
    at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    restart_count=0,
    members=(STAYS, *JOIN_ON_N1),
)
SECOND = replace(FIRST, number=5, members=(STAYS, GenerationMember(id="0.12.n2.0", node_name="n2")))


@pytest.fixture
def newcomers(link: Link) -> Newcomers:
    """A start that trains in wing 10; generation 4 is planned, and wing 11 waits for it."""
    start = Start(0, members=frozenset({STAYS.id}))
    start.wings["10"] = Wing("10", 0, link=link, members=start.members)
    made = Newcomers(start)
    made.note(FIRST, 100.0)
    assert made.lacking == {(9, "n1"): 2}
    del made.lacking[9, "n1"]
    start.wings["11"] = Wing("11", 9)
    return made


@pytest.fixture
def link() -> Link:
    import socket

    ours, theirs = socket.socketpair()
    theirs.close()
    made = Link(ours)
    made.close()
    return made


def unwanted(newcomers: Newcomers, record: GenerationRecord) -> list[str]:
    newcomers.note(record, 100.0)
    return [wing.job_id for wing in newcomers.unwanted(record)]


@pytest.mark.parametrize(
    "state", [GenerationState.REFUSED, GenerationState.WITHDRAWN, GenerationState.FAILED]
)
@pytest.mark.parametrize("has_come", [False, True])
def test_that_the_wings_of_a_plan_that_is_given_up_are_unwanted(
    newcomers: Newcomers, link: Link, state: GenerationState, has_come: bool
) -> None:
    newcomers._start.wings["11"].link = link if has_come else None
    assert unwanted(newcomers, FIRST) == []
    assert unwanted(newcomers, replace(FIRST, state=state)) == ["11"]


def test_that_a_plan_that_was_replaced_before_it_was_seen_to_be_withdrawn_lacks_and_wants_nothing(
    newcomers: Newcomers,
) -> None:
    newcomers.lacking[9, "n3"] = 1
    assert unwanted(newcomers, SECOND) == ["11"]
    assert newcomers.lacking == {(12, "n2"): 1}


def test_that_processes_that_have_come_see_for_themselves_that_their_plan_was_replaced(
    newcomers: Newcomers, link: Link
) -> None:
    """They may have joined meanwhile: a generation may also be reached and replaced between two reads."""
    newcomers._start.wings["11"].link = link
    assert unwanted(newcomers, SECOND) == []
    assert unwanted(newcomers, replace(SECOND, state=GenerationState.WITHDRAWN)) == []


def test_that_a_generation_that_was_reached_has_the_members(newcomers: Newcomers) -> None:
    reached = replace(FIRST, state=GenerationState.REGROUPED)
    assert unwanted(newcomers, reached) == []
    assert newcomers._start.members == {member.id for member in FIRST.members}


def test_that_a_plan_without_all_of_its_wings_is_refused_after_ten_minutes(newcomers: Newcomers) -> None:
    assert newcomers.late(FIRST, 699.0) is None
    assert newcomers.late(FIRST, 701.0) == "wing 11 has not come within 10 minutes"
    newcomers.note_refusal()
    assert newcomers.late(FIRST, 702.0) is None


def test_that_a_plan_without_a_wing_in_the_queue_is_refused_after_ten_minutes(newcomers: Newcomers) -> None:
    """slurmctld did not answer."""
    del newcomers._start.wings["11"]
    newcomers.lacking[9, "n1"] = 2
    assert newcomers.late(FIRST, 701.0) == "no wing within 10 minutes"


def test_that_a_plan_whose_wings_have_come_is_left_to_the_daemon(newcomers: Newcomers, link: Link) -> None:
    newcomers._start.wings["11"].link = link
    assert newcomers.late(FIRST, 1e6) is None
