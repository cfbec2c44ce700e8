"""What a thread does when its store does not answer, by a store that fails as it is told to."""

from __future__ import annotations

import logging

import pytest

from pollux_slurm.agent.store_connection import StoreConnection
from pollux_slurm.errors import PolluxError, StaleRunError, StoreError, StoreUnavailable, UnknownJobError


class Opened:
    """A store that knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Opener:
    """Opens stores, and remembers them."""

    def __init__(self) -> None:
        self.opened: list[Opened] = []

    def __call__(self) -> Opened:
        self.opened.append(Opened())
        return self.opened[-1]


def fail(connection: StoreConnection[Opened], error: PolluxError) -> None:
    def work(_: Opened) -> None:
        raise error

    with pytest.raises(type(error)):
        connection.call(work)


def test_that_the_store_is_opened_once_while_it_answers_or_is_out_of_reach() -> None:
    opener = Opener()
    connection = StoreConnection(opener)
    first = connection.call(lambda store: store)
    for error in (StoreUnavailable("down"), UnknownJobError("new")):
        fail(connection, error)
        assert connection.call(lambda store: store) is first
    assert not first.is_closed


def test_that_a_store_is_opened_anew_after_another_error() -> None:
    opener = Opener()
    connection = StoreConnection(opener)
    fail(connection, StoreError("broken"))
    assert opener.opened[0].is_closed
    assert connection.call(lambda store: store) is opener.opened[1]
    connection.close()
    assert opener.opened[1].is_closed


def test_that_pauses_grow_with_each_failure_up_to_half_a_minute_and_begin_again() -> None:
    connection = StoreConnection(Opener())
    pauses = []
    for _ in range(5):
        fail(connection, StoreUnavailable("down"))
        pauses.append(connection.pause_s(2.0))
    assert pauses == [4.0, 8.0, 16.0, 30.0, 30.0]
    connection.call(lambda store: store)
    assert connection.num_failures == 0


def test_that_an_answer_is_no_failure_and_keeps_the_store_open() -> None:
    opener = Opener()
    connection = StoreConnection(opener, answers=(StaleRunError,))
    fail(connection, StaleRunError("a newer run"))
    assert connection.num_failures == 0
    assert not opener.opened[0].is_closed


def test_that_each_error_is_logged_once_and_a_missing_registration_never(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connection = StoreConnection(Opener())
    with caplog.at_level(logging.WARNING):
        for error in (StoreUnavailable("down"), UnknownJobError("new"), StoreUnavailable("down")):
            fail(connection, error)
        fail(connection, StoreUnavailable("another"))
    assert [one.getMessage() for one in caplog.records] == [
        "store: StoreUnavailable: down",
        "store: StoreUnavailable: another",
    ]
