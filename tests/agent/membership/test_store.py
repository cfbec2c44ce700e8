"""A process's view of its generations in a real store, where calls are lost or late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pollux_slurm.agent.membership.store import StoreMembership
from pollux_slurm.errors import StoreUnavailable
from pollux_slurm.store import open_agent_store
from pollux_slurm.store.access.opening import unchecked_database
from pollux_slurm.store.access.url import parse_store_url
from pollux_slurm.store.contract.interface import GenerationRecord, GenerationState, MembershipStore, Store
from tests.store.builders import at, observation, plan_generation, registration, token_of
from tests.waiting import wait_until

State = GenerationState
MEETING = "10.0.0.7:41213"


class FlakyStore:
    """A real store; the next commit, or its answer, is lost on the way."""

    def __init__(self, url: str, *, loses: str) -> None:
        self._store, self._loses = open_agent_store(url), loses

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        return self._store.generation(token, after=after, restart_count=restart_count)

    def report_ready(self, token: str, member: str, *, number: int, restart_count: int) -> None:
        self._store.report_ready(token, member, number=number, restart_count=restart_count)

    def advance_generation(self, token: str, number: int, state: State, **said: Any) -> bool:
        loses, self._loses = self._loses, ""
        if loses == "the commit":
            raise StoreUnavailable("the connection is lost")
        answer = self._store.advance_generation(token, number, state, **said)
        if loses == "its answer":
            raise StoreUnavailable("the connection is lost")
        return answer

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def planned(store: Store) -> Store:
    """A store with a planned generation of job 1, whose newcomer is ready."""
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 1})], at=at(1))
    plan_generation(store, is_ready=True)
    return store


@contextmanager
def membership(
    url: str, member: str = "base.0", *, joins: int | None = None, **changes: Any
) -> Iterator[StoreMembership]:
    """Yield the view of a process, with a store of its own."""
    values: dict[str, Any] = {
        "host": "10.0.0.7",
        "restart_count": 0,
        "poll_interval_s": 0.02,
        "commit_timeout_s": 60.0,
        "open_store": lambda: open_agent_store(url),
    }
    made = StoreMembership(token=token_of(1), member=member, joins=joins, **{**values, **changes})
    yield made
    made.close(timeout_s=60.0)


def await_plan(one: StoreMembership) -> None:
    wait_until(lambda: one.planned(0) is not None, timeout_s=60, what="the plan")


@pytest.mark.parametrize("lost", ["the commit", "its answer"])
def test_that_what_became_of_a_commit_is_known_later(planned: Store, store_url: str, lost: str) -> None:
    store = FlakyStore(store_url, loses=lost)
    with membership(store_url, open_store=lambda: store) as base:
        await_plan(base)
        with pytest.raises(StoreUnavailable, match="not known"):
            base.commit(1, MEETING)
        has_arrived = lost == "its answer"
        assert planned.generations.of_job("1")[0].state is (State.COMMITTED if has_arrived else State.PLANNED)
        await_plan(base)
        assert base.commit(1, MEETING)
    assert planned.generations.of_job("1")[0].meeting == MEETING


def test_that_a_plan_is_announced_before_its_newcomers_are_ready(planned: Store, store_url: str) -> None:
    planned.generations.end("1", 1, State.WITHDRAWN, at=at(30), reason="another comes")
    plan_generation(planned, is_ready=False)
    with membership(store_url) as base:
        wait_until(lambda: base.planned(0) or base.announced(0), timeout_s=60, what="the plan")
        announced = base.announced(0)
        assert base.planned(0) is None
        assert announced is not None
        assert announced.number == 2
        assert base.announced(2) is None
        base.refuse(2, "it keeps its rank")
        wait_until(lambda: planned.generations.of_job("1")[1].reason, timeout_s=60, what="the refusal")
        wait_until(lambda: base.planned(0) or not base.announced(0), timeout_s=60, what="no plan")


def test_that_an_announced_plan_is_looked_at_more_often_than_the_poll_interval(
    planned: Store, store_url: str
) -> None:
    planned.generations.end("1", 1, State.WITHDRAWN, at=at(30), reason="another comes")
    plan_generation(planned, is_ready=False)
    with (
        membership(store_url, poll_interval_s=600.0) as base,
        membership(store_url, "wing7.0", joins=2) as wing,
    ):
        wait_until(lambda: base.planned(0) or base.announced(0), timeout_s=60, what="the plan")
        wing.report_ready()
        await_plan(base)


def test_that_a_plan_can_be_withdrawn_while_no_commit_arrives(planned: Store, store_url: str) -> None:
    with membership(store_url, open_store=lambda: FlakyStore(store_url, loses="the commit")) as base:
        await_plan(base)
        with pytest.raises(StoreUnavailable):
            base.commit(1, MEETING)
        assert planned.generations.end("1", 1, State.WITHDRAWN, at=at(30), reason="it took too long")
        wait_until(lambda: base.is_given_up(1), timeout_s=60, what="the withdrawal")
        assert base.planned(0) is None


def test_that_a_late_commit_is_carried_out_and_found(planned: Store, store_url: str) -> None:
    database = unchecked_database(parse_store_url(store_url), create=False)
    with membership(store_url, commit_timeout_s=0.2) as base:
        await_plan(base)
        with database.write():
            with pytest.raises(StoreUnavailable, match="not known after"):
                base.commit(1, MEETING)
            assert base.planned(0) is None
        await_plan(base)
        wait_until(
            lambda: planned.generations.of_job("1")[0].state is State.COMMITTED,
            timeout_s=60,
            what="the commit",
        )
    database.close()


def test_that_a_refused_plan_is_not_planned_any_more(planned: Store, store_url: str) -> None:
    with membership(store_url) as base:
        await_plan(base)
        base.refuse(1, "it keeps rank")
        assert base.planned(0) is None
        wait_until(lambda: base.is_given_up(1), timeout_s=60, what="the refusal")
    assert planned.generations.of_job("1")[0].reason == "it keeps rank"


def test_that_a_script_that_cannot_regroup_refuses_a_plan_before_its_newcomers_are_ready(
    store: Store, store_url: str
) -> None:
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 1})], at=at(1))
    with membership(store_url) as base:
        base.refuse(0, "it owns its process group")
        plan_generation(store)
        wait_until(
            lambda: base.planned(0) is None and store.generations.of_job("1")[0].state is State.REFUSED,
            timeout_s=60,
            what="the refusal",
        )
    assert store.generations.of_job("1")[0].reason == "it owns its process group"


def test_that_what_is_to_be_said_is_said_before_the_end(planned: Store, store_url: str) -> None:
    with membership(store_url) as base:
        await_plan(base)
        assert base.commit(1, MEETING)
        base.report_regrouped(1, standstill_s=0.25)
    assert planned.generations.of_job("1")[0].standstill_s == 0.25


def test_that_a_generation_that_another_followed_is_given_up(planned: Store, store_url: str) -> None:
    with membership(store_url, "wing7.0", joins=1) as wing:
        planned.generations.end("1", 1, State.WITHDRAWN, at=at(30), reason="no GPU")
        plan_generation(planned, is_ready=True)
        wing.report_ready()
        wait_until(lambda: wing.is_given_up(1), timeout_s=60, what="the later plan")
        assert wing.committed(1) is None


def test_that_a_meeting_is_over_before_a_member_asks_the_store(store_url: str) -> None:
    opened: list[MembershipStore] = []

    def open_store() -> MembershipStore:
        opened.append(open_agent_store(store_url))
        return opened[-1]

    with membership(store_url, open_store=open_store, poll_interval_s=600.0) as base:
        for _ in range(50):
            assert not base.is_given_up(1)
            time.sleep(0.01)
        assert any(thread.name == "pollux-membership" for thread in threading.enumerate())
    assert opened == []


def test_that_one_thread_is_enough_and_ends_when_nobody_asks(planned: Store, store_url: str) -> None:
    now = [0.0]
    with membership(store_url, monotonic=lambda: now[0], poll_interval_s=0.0) as base:
        await_plan(base)
        for _ in range(3):
            base.planned(0)
            base.committed(1)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("pollux-membership") == 1
        now[0] += 60.0
        wait_until(
            lambda: "pollux-membership" not in [thread.name for thread in threading.enumerate()],
            timeout_s=60,
            what="the thread's end",
        )
        await_plan(base)
