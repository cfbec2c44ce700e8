"""Which connections go while there are too many that have proved nothing."""

from __future__ import annotations

import pytest

from pollux_slurm.system.unproved_connections import MOST, MOST_OF_ADDRESS, WITHIN_S, UnprovedConnections


class Port:
    """Has `ended` connections, and a clock."""

    def __init__(self) -> None:
        self.now_s, self.ended, self.num_opened = 0.0, list[str](), 0
        self.connections = UnprovedConnections[str](self.ended.append, monotonic=lambda: self.now_s)

    def open(self, address: str, number: int = 1) -> list[str]:
        names = [f"{address} {index}" for index in range(self.num_opened, self.num_opened + number)]
        self.num_opened += number
        for name in names:
            self.connections.add(name, address)
        return names


def test_that_above_a_few_an_address_closes_its_own_oldest_and_nobody_elses() -> None:
    port = Port()
    port.open("10.0.0.2")
    names = port.open("10.0.0.1", MOST_OF_ADDRESS + 3)
    assert port.ended == names[:3]


def test_that_the_oldest_goes_where_many_addresses_have_too_many() -> None:
    port = Port()
    for host in range(MOST + 2):
        port.open(f"10.0.0.{host}")
    assert port.ended == ["10.0.0.0 0", "10.0.0.1 1"]


def test_that_one_that_has_proved_itself_is_not_counted_and_never_closed() -> None:
    port = Port()
    (wing,) = port.open("10.0.0.1")
    port.connections.remove(wing)
    names = port.open("10.0.0.1", MOST_OF_ADDRESS + 1)
    assert port.ended == names[:1]
    port.now_s = 2 * WITHIN_S
    port.connections.close_late()
    assert wing not in port.ended


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1", "127.1.2.3"], ["::1", "::ffff:127.0.0.9"], ["10.0.0.1", "::ffff:10.0.0.1"]]
)
def test_that_other_names_of_an_address_are_no_other_address(addresses: list[str]) -> None:
    port = Port()
    for address in addresses:
        port.open(address, MOST_OF_ADDRESS // 2)
    assert not port.ended
    port.open(f"{addresses[0]}", 1)
    assert len(port.ended) == 1


def test_that_each_has_ten_seconds() -> None:
    port = Port()
    (first,) = port.open("10.0.0.1")
    port.now_s = WITHIN_S
    (second,) = port.open("10.0.0.2")
    port.connections.close_late()
    assert port.ended == []
    port.now_s += 1.0
    port.connections.close_late(keeps=lambda name: name == first)
    assert port.ended == []
    port.connections.close_late()
    assert port.ended == [first]
    assert second not in port.ended
