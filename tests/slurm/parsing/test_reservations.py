from __future__ import annotations

from datetime import timedelta

import pytest

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.slurm.parsing.reservations import reserved_from
from tests.daemon.builders import NOON

# As 22.05 prints them, some fields left out.
LINE = (
    "ReservationName={name} StartTime=2026-01-01T{start} EndTime=2026-01-01T{end} Duration=01:00:00 "
    "Nodes={nodes} NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=(null) Flags=MAINT,SPEC_NODES "
    "TRES=cpu=8 Users=root Accounts=(null) Licenses=(null) State=INACTIVE"
)


def line(start: str, end: str, nodes: str = "n[0-1]", name: str = "maint") -> str:
    return LINE.format(name=name, start=start, end=end, nodes=nodes)


def test_that_each_node_has_the_start_of_its_first_reservation_that_is_not_over() -> None:
    lines = [
        line("11:00:00", "11:30:00"),
        line("15:00:00", "16:00:00"),
        line("14:00:00", "15:00:00", "n1"),
        line("10:00:00", "23:00:00", "n3"),
        line("10:00:00", "23:00:00", "(null)"),
        line("10:00:00", "23:00:00", ""),
        # The daemon's own, while a job moves.
        line("10:00:00", "23:00:00", "n[0-4]", "pollux_17_3"),
    ]
    found = reserved_from(lines, now=NOON)
    hours = {name: (at - NOON) / timedelta(hours=1) for name, at in found.items()}
    assert hours == {"n0": 3, "n1": 2, "n3": -2}
    assert reserved_from(["No reservations in the system"], now=NOON) == {}


@pytest.mark.parametrize("text", [line("x", "16:00:00"), line("15:00:00", "16:00:00", "n[0"), LINE[:40]])
def test_that_a_reservation_that_cannot_be_parsed_is_an_error(text: str) -> None:
    with pytest.raises(SlurmReadError, match="reservation"):
        reserved_from([text], now=NOON)
