"""The daemon's own reservations do not make their nodes unavailable to it, and hide nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.errors import SlurmCommandError
from pollux_slurm.slurm.own_reservations import OwnReservations
from pollux_slurm.slurm.parsing.node_json import parse_node
from tests.fakes.slurm import FakeClock, FakeSlurm
from tests.slurm.parsing.test_node_json import node


@pytest.fixture
def inner() -> FakeSlurm:
    """A node as Slurm shows it under a reservation."""
    return shown()


def shown(*flags: str, gres: str = "gpu:t4:4") -> FakeSlurm:
    read = parse_node(node(state="idle", state_flags=["RESERVED", *flags], gres=gres))
    return FakeSlurm([read], clock=FakeClock())


def without_its_text() -> FakeSlurm:
    """A node whose state does not name the problem with its resources."""
    slurm = shown(gres="gpu:t4:2,gpu:a100:2")
    slurm.nodes["n0"] = dataclasses.replace(slurm.nodes["n0"], state="idle+reserved")
    return slurm


def is_available(client: OwnReservations) -> bool:
    return client.snapshot().nodes[0].available


def test_that_a_node_is_available_while_the_reservation_is_ours(inner: FakeSlurm) -> None:
    client = OwnReservations(inner)
    assert not is_available(client), "a reservation of somebody else"
    client.guarded(lambda: None).create_reservation("pollux_1_1", ["n0"], minutes=2)
    assert is_available(client)
    assert client.refresh(frozenset()).nodes[0].available, "so in the reads of a tick"
    client.delete_reservation("pollux_1_1")
    assert not is_available(client)


@pytest.mark.parametrize(
    "inner",
    [
        shown("DRAIN"),
        shown("MAINTENANCE"),
        shown(gres="gpu:t4:2,gpu:a100:2"),
        shown(gres="gpu:t4:a:b"),
        without_its_text(),
    ],
    ids=["draining", "in maintenance", "two types", "unreadable", "two types, unsaid"],
)
def test_that_what_else_stands_against_a_node_still_counts(inner: FakeSlurm) -> None:
    client = OwnReservations(inner)
    client.create_reservation("pollux_1_1", ["n0"], minutes=2)
    assert not is_available(client)


def test_that_one_that_ended_by_itself_is_not_taken_for_ours_for_ever(inner: FakeSlurm) -> None:
    client = OwnReservations(inner)
    client.create_reservation("pollux_1_1", ["n0"], minutes=2)
    inner.reservations.clear()
    with pytest.raises(SlurmCommandError):
        client.delete_reservation("pollux_1_1")
    assert not is_available(client)
