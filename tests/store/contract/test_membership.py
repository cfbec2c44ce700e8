"""The guarantees of `Membership`, over a launcher's folder and over the store on each backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from pollux_slurm.agent.membership.folder import FolderMembership, MembershipFolder
from pollux_slurm.agent.membership.generation import Generation, Member, Membership
from pollux_slurm.agent.membership.store import StoreMembership
from pollux_slurm.errors import StoreUnavailable
from pollux_slurm.store import open_agent_store
from pollux_slurm.store.contract.interface import GenerationMember, GenerationState, Store
from tests.store.builders import at, observation, registration, token_of
from tests.store.postgres import PostgresServer
from tests.waiting import wait_until


class Planner(Protocol):
    """Who says who belongs: a launcher or the daemon."""

    def process(self, member: str, *, joins: int | None = None) -> Membership: ...

    def plan(self, *members: str, newcomers: tuple[str, ...] = ()) -> int:
        """Plan a generation for the present members and newcomers; return its number."""

    def withdraw(self, number: int) -> bool: ...

    def fail(self, number: int) -> None:
        """Give up a committed generation: one of its members has ended."""

    def advance(self) -> None:
        """Do what the planner does again and again."""

    def outcome(self, number: int) -> str | float | None:
        """Return the reason for which the script refused, or the standstill; None before that."""


class Launcher:
    """Plans in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = MembershipFolder(folder), 0
        self._plan: tuple[Generation, tuple[str, ...]] | None = None

    def process(self, member: str, *, joins: int | None = None) -> Membership:
        return FolderMembership(self._folder.folder, member, joins=joins)

    def plan(self, *members: str, newcomers: tuple[str, ...] = ()) -> int:
        self._number += 1
        named = tuple(Member(id=one, node="here") for one in (*members, *newcomers))
        self._plan = Generation(number=self._number, members=named), newcomers
        self.advance()
        return self._number

    def withdraw(self, number: int) -> bool:
        self._plan = None
        return self._folder.withdraw(number)

    def fail(self, number: int) -> None:
        self._folder.give_up(number)

    def advance(self) -> None:
        if self._plan is not None and all(self._folder.is_ready(self._number, one) for one in self._plan[1]):
            self._folder.write_plan(self._plan[0])
            self._plan = None

    def outcome(self, number: int) -> str | float | None:
        return self._folder.refusal(number) or self._folder.standstill_s(number)


class Daemon:
    """Plans in a store; the processes have the login of jobs."""

    def __init__(self, store: Store, url: str, stack: contextlib.ExitStack) -> None:
        self._store, self._url, self._stack = store, url, stack
        store.jobs.register([registration(1)], at=at(0))
        store.jobs.observe([observation(1, gpus={"n0": 1})], at=at(1))

    def process(self, member: str, *, joins: int | None = None) -> StoreMembership:
        made = StoreMembership(
            lambda: open_agent_store(self._url),
            token_of(1),
            member,
            host="127.0.0.1",
            joins=joins,
            restart_count=0,
            poll_interval_s=0.02,
            commit_timeout_s=60.0,
        )
        self._stack.callback(made.close, timeout_s=60.0)
        return made

    def plan(self, *members: str, newcomers: tuple[str, ...] = ()) -> int:
        named = [GenerationMember(id=one, node_name="n0", is_ready=True) for one in members]
        named += [GenerationMember(id=one, node_name="n1") for one in newcomers]
        return self._store.generations.plan("1", named, restart_count=0, at=at(2)).number

    def withdraw(self, number: int) -> bool:
        return self._store.generations.end(
            "1", number, GenerationState.WITHDRAWN, at=at(3), reason="no GPU was free"
        )

    def fail(self, number: int) -> None:
        assert self._store.generations.end("1", number, GenerationState.FAILED, at=at(3), reason="it ended")

    def advance(self) -> None:
        pass

    def outcome(self, number: int) -> str | float | None:
        (found,) = (one for one in self._store.generations.of_job("1") if one.number == number)
        return found.reason or found.standstill_s


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as opened:
        yield opened


@pytest.fixture(params=["folder", "sqlite", "postgresql"])
def planner(request: pytest.FixtureRequest, stack: contextlib.ExitStack) -> Planner:
    """Return who plans, once for each place of the membership."""
    if request.param == "folder":
        return Launcher(request.getfixturevalue("tmp_path"))
    if request.param == "sqlite":
        url = request.getfixturevalue("sqlite_url")
        return Daemon(request.getfixturevalue("sqlite_store"), url, stack)
    server: PostgresServer = request.getfixturevalue("postgres")
    request.getfixturevalue("postgres_url")
    store = request.getfixturevalue("postgres_store")
    return Daemon(store, server.url("store", login="jobs"), stack)


def awaited(planner: Planner, read: Callable[[], Generation | None]) -> Generation:
    """Return what a process reads once it is there."""
    found: list[Generation] = []

    def look() -> bool:
        planner.advance()
        found.extend(one for one in [read()] if one is not None)
        return bool(found)

    wait_until(look, timeout_s=120, what="the generation")
    return found[0]


def test_that_members_join_once_they_are_ready_and_all_meet_in_one_place(planner: Planner) -> None:
    a = planner.process("a")
    number = planner.plan("a", newcomers=("b",))
    b = planner.process("b", joins=number)
    assert a.planned(0) is None
    assert b.committed(number) is None
    assert not b.is_given_up(number)
    b.report_ready()
    plan = awaited(planner, lambda: a.planned(0))
    assert [one.id for one in plan.members] == ["a", "b"]
    assert (plan.rank_of("b"), plan.rank_of("c")) == (1, None)
    address = None if a.host is None else f"{a.host}:4711"
    for _ in range(2):
        assert a.commit(number, address)
    meetings = {awaited(planner, lambda one=one: one.committed(number)).meeting for one in (a, b)}  # type: ignore[misc]
    assert len(meetings) == 1
    assert address in (None, *meetings)
    assert not planner.withdraw(number)
    a.report_regrouped(number, standstill_s=0.5)
    wait_until(lambda: planner.outcome(number) == 0.5, timeout_s=120, what="the first step")
    assert a.planned(number) is None
    assert not a.is_given_up(number)
    following = planner.plan("b", "a")
    assert awaited(planner, lambda: a.planned(number)).number == following


def test_that_a_plan_is_withdrawn_or_committed(planner: Planner) -> None:
    a = planner.process("a")
    number = planner.plan("a", newcomers=("b",))
    b = planner.process("b", joins=number)
    b.report_ready()
    awaited(planner, lambda: a.planned(0))
    assert planner.withdraw(number)
    address = None if a.host is None else f"{a.host}:4711"
    assert not a.commit(number, address)
    wait_until(lambda: b.is_given_up(number), timeout_s=120, what="b's being told")
    assert b.committed(number) is None
    following = planner.plan("a")
    assert awaited(planner, lambda: a.planned(0)).number == following
    assert a.commit(following, address)


def test_that_all_learn_that_a_member_of_a_committed_generation_has_ended(planner: Planner) -> None:
    a, b = planner.process("a"), planner.process("b")
    number = planner.plan("b", "a")
    awaited(planner, lambda: a.planned(0))
    assert a.commit(number, None if a.host is None else f"{a.host}:4711")
    assert not b.is_given_up(number)
    planner.fail(number)
    for one in (a, b):
        wait_until(lambda one=one: one.is_given_up(number), timeout_s=120, what="being told")  # type: ignore[misc]


def test_that_the_planner_learns_why_a_script_cannot_regroup(planner: Planner) -> None:
    a = planner.process("a")
    number = planner.plan("a")
    awaited(planner, lambda: a.planned(0))
    a.refuse(number, "it keeps world_size = 2 in a variable")
    wait_until(lambda: planner.outcome(number) is not None, timeout_s=120, what="the reason")
    assert planner.outcome(number) == "it keeps world_size = 2 in a variable"


def test_that_an_outage_of_the_server_delays_a_regroup_and_nothing_else(
    postgres: PostgresServer, postgres_store: Store, postgres_url: str, stack: contextlib.ExitStack
) -> None:
    daemon = Daemon(postgres_store, postgres.url("store", login="jobs"), stack)
    a, number = daemon.process("a"), daemon.plan("a")
    awaited(daemon, lambda: a.planned(0))
    postgres.stop()
    try:
        with pytest.raises(StoreUnavailable):
            a.commit(number, "127.0.0.1:4711")
        assert a.planned(0) is None, "no boundary waits for it again"
    finally:
        postgres.start()
    assert awaited(daemon, lambda: a.planned(0)).number == number
    assert a.commit(number, "127.0.0.1:4711")
