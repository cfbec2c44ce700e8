"""What `pollux sbatch` says of a new job with a moment."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import pytest

from pollux_slurm.model import PromiseState
from pollux_slurm.now.promises import wait_for_answer
from pollux_slurm.store.contract.interface import PromiseRecord, Store
from tests.store.builders import registration, token_of

BY = datetime(2036, 3, 1, 9, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("promise", "text"),
    [
        (
            PromiseRecord(state=PromiseState.UNKNOWN, reason="no step of it has been measured"),
            "not known yet: no step of it has been measured; later: pollux explain 1",
        ),
        (
            PromiseRecord(state=PromiseState.REFUSED, finish_at=BY + timedelta(hours=1)),
            "does not fit: earliest 2036-03-01 10:00:00 UTC",
        ),
    ],
)
def test_that_an_answer_that_comes_later_has_the_command_that_tells_it(
    store: Store, promise: PromiseRecord, text: str
) -> None:
    store.jobs.register([registration(1, terms={"finish_by": BY})], at=BY - timedelta(hours=8))
    store.jobs.record_promises({"1": promise})
    said = wait_for_answer(store.agent, token_of(1), BY, "1", wait_s=30.0)
    assert said == f"by 2036-03-01 09:00:00 UTC: {text}"


def test_that_an_answer_that_does_not_come_is_none(store: Store) -> None:
    for _ in range(2):
        assert wait_for_answer(store.agent, token_of(1), BY, "1", wait_s=0.0) is None
        store.jobs.register([registration(1, terms={"finish_by": BY})], at=BY - timedelta(hours=8))


def test_that_an_answer_that_comes_a_moment_later_is_waited_for(store: Store) -> None:
    refused = PromiseRecord(state=PromiseState.REFUSED, reason="its time limit ends it")

    def answer() -> None:
        store.jobs.register([registration(1, terms={"finish_by": BY})], at=BY - timedelta(hours=8))
        store.jobs.record_promises({"1": refused})

    timer = threading.Timer(0.2, answer)
    timer.start()
    said = wait_for_answer(store.agent, token_of(1), BY, "1", wait_s=120.0)
    timer.join()
    assert said == "by 2036-03-01 09:00:00 UTC: does not fit: its time limit ends it"
