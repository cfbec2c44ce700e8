"""A checkpoint that is asked for while the script does something else than to train."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.torch.boundary.background_responder import GRACE_S, Standby
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.checkpoint_file import Written
from tests.torch.boundary.test_step_boundary import Office
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


class Watch:
    """A standby, the store it asks, the clock it reads, and the files it has written."""

    def __init__(self, *, answered: int | None = None) -> None:
        self.now, self.num_written = 0.0, 0
        self.awaited: int | None = None
        self.office, self.stop = Office(), StopFlag()
        self.standby = Standby(
            reporter=self.office,  # type: ignore[arg-type]
            report_builder=self.office,  # type: ignore[arg-type]
            stop=self.stop,
            answered=answered,
            is_awaited=lambda request: request == self.awaited,
            write=self._write,
            monotonic=lambda: self.now,
        )

    def _write(self) -> Written:
        self.num_written += 1
        return Written(size_bytes=9)

    def confirmed(self) -> list[int | None]:
        return [one.request_id for one in self.office.confirmed]

    def await_confirmed(self, expected: list[int | None]) -> None:
        wait_until(lambda: self.confirmed() == expected, timeout_s=120, what=f"{expected} to be confirmed")


@pytest.fixture
def watch() -> Iterator[Watch]:
    one = Watch()
    yield one
    one.standby.release()


def test_that_a_confirmed_request_stands_and_the_run_waits(watch: Watch) -> None:
    watch.office.checkpoint_request = 5
    watch.await_confirmed([5])
    watch.standby.release()
    assert watch.standby.confirmed is not None
    assert watch.standby.confirmed.request_id == 5
    assert watch.office.phases == [RunPhase.WAITING]


def test_that_a_withdrawn_request_is_forgotten_after_a_while_and_another_is_answered_too(
    watch: Watch,
) -> None:
    watch.office.checkpoint_request = 5
    watch.await_confirmed([5])
    watch.office.checkpoint_request = None
    wait_until(lambda: watch.standby._gone_at_s == 0.0, timeout_s=120, what="its absence to be seen")
    assert watch.office.phases == [RunPhase.WAITING]
    watch.now += GRACE_S
    wait_until(lambda: len(watch.office.phases) == 2, timeout_s=120, what="the run to count as training")
    assert watch.office.phases == [RunPhase.WAITING, RunPhase.TRAINING]
    assert (watch.standby.confirmed, watch.standby.answered) == (None, 5)
    watch.office.checkpoint_request = 6
    watch.await_confirmed([5, 6])
    # The copy has not changed meanwhile, nor has its file.
    assert watch.num_written == 1


def test_that_sigterm_is_answered_once_and_takes_no_confirmation_away(watch: Watch) -> None:
    watch.stop.is_set = True
    watch.await_confirmed([None])
    watch.office.checkpoint_request = 5
    watch.await_confirmed([None, 5])
    watch.standby.release()
    assert watch.confirmed() == [None, 5]
    assert watch.num_written == 1


def test_that_what_was_answered_before_is_not_answered_again() -> None:
    watch = Watch(answered=5)
    watch.office.checkpoint_request = 5
    watch.stop.is_set = True
    watch.await_confirmed([None])
    watch.standby.release()
    assert watch.confirmed() == [None]


def test_that_a_request_that_waits_for_the_epochs_end_is_answered_only_when_it_has_waited_enough() -> None:
    watch = Watch()
    watch.awaited = watch.office.checkpoint_request = 5
    # SIGTERM does not wait, and once it is answered the request has been looked at, too.
    watch.stop.is_set = True
    watch.await_confirmed([None])
    watch.awaited = None
    watch.await_confirmed([None, 5])
    watch.standby.release()
