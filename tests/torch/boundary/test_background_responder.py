"""Checkpoint requests between two adaptive loops."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pollux_slurm.model import JobWarning
from pollux_slurm.store.contract.interface import RunPhase
from pollux_slurm.torch.boundary.background_responder import GRACE_S, BackgroundResponder
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.checkpoint_file import WriteResult
from tests.torch.boundary.test_step_boundary import Reporting
from tests.waiting import wait_until

pytestmark = pytest.mark.torch


class Responder:
    """A background responder, its store, its clock, and the number of files it has written."""

    def __init__(self, *, answered: int | None = None) -> None:
        self.now, self.num_clock_reads, self.num_written = 0.0, 0, 0
        self.waiting_request: int | None = None
        self.is_disk_full = False
        self.reporting, self.stop = Reporting(), StopFlag()
        self.responder = BackgroundResponder(
            reporter=self.reporting,  # type: ignore[arg-type]
            report_builder=self.reporting,  # type: ignore[arg-type]
            stop=self.stop,
            answered=answered,
            should_wait=lambda request: request == self.waiting_request,
            write=self._write,
            monotonic=self._monotonic,
        )

    def _monotonic(self) -> float:
        now = self.now
        self.num_clock_reads += 1
        return now

    def _write(self) -> WriteResult:
        self.num_written += 1
        return WriteResult(size_bytes=9, is_disk_full=self.is_disk_full)

    def confirmed(self) -> list[int | None]:
        return [one.request_id for one in self.reporting.confirmed]

    def await_confirmed(self, expected: list[int | None]) -> None:
        wait_until(lambda: self.confirmed() == expected, timeout_s=120, what=f"{expected} to be confirmed")


@pytest.fixture
def case() -> Iterator[Responder]:
    one = Responder()
    yield one
    one.responder.release()


def test_that_a_confirmed_request_stands_and_the_run_waits(case: Responder) -> None:
    case.reporting.checkpoint_request = 5
    case.await_confirmed([5])
    case.responder.release()
    assert case.responder.confirmed is not None
    assert case.responder.confirmed.request_id == 5
    assert case.reporting.phases == [RunPhase.WAITING]


def test_that_a_withdrawn_request_is_forgotten_after_the_grace_period_and_another_is_answered_too(
    case: Responder,
) -> None:
    case.reporting.checkpoint_request = 5
    case.await_confirmed([5])
    case.reporting.checkpoint_request = None
    # The clock is read once the withdrawal is seen.
    wait_until(lambda: case.num_clock_reads > 0, timeout_s=120, what="the withdrawal to be seen")
    assert case.reporting.phases == [RunPhase.WAITING]
    case.now += GRACE_S
    wait_until(lambda: len(case.reporting.phases) == 2, timeout_s=120, what="the run to count as training")
    assert case.reporting.phases == [RunPhase.WAITING, RunPhase.TRAINING]
    assert (case.responder.confirmed, case.responder.answered) == (None, 5)
    case.reporting.checkpoint_request = 6
    case.await_confirmed([5, 6])
    # The copy has not changed meanwhile, nor has its file.
    assert case.num_written == 1


def test_that_a_disk_that_is_full_after_an_answer_is_a_warning_to_the_owner(case: Responder) -> None:
    case.is_disk_full = True
    case.reporting.checkpoint_request = 5
    case.await_confirmed([5])
    assert set(case.reporting.warnings) == {JobWarning.DISK_FULL}


def test_that_sigterm_is_answered_once_and_drops_no_confirmation(case: Responder) -> None:
    case.stop.is_set = True
    case.await_confirmed([None])
    case.reporting.checkpoint_request = 5
    case.await_confirmed([None, 5])
    case.responder.release()
    assert case.confirmed() == [None, 5]
    assert case.num_written == 1


def test_that_a_request_answered_before_is_not_answered_again() -> None:
    case = Responder(answered=5)
    case.reporting.checkpoint_request = 5
    case.stop.is_set = True
    case.await_confirmed([None])
    case.responder.release()
    assert case.confirmed() == [None]


def test_that_a_request_that_waits_for_the_epochs_end_is_answered_once_the_wait_is_over() -> None:
    case = Responder()
    case.waiting_request = case.reporting.checkpoint_request = 5
    # SIGTERM does not wait, and once it is answered the request has been looked at, too.
    case.stop.is_set = True
    case.await_confirmed([None])
    case.waiting_request = None
    case.await_confirmed([None, 5])
    case.responder.release()
