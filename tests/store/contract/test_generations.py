"""The guarantees about generations, the memberships of a training that goes on, on every backend."""

from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.errors import ReportRefusedError, StoreError, UnknownJobError, UsageError
from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import GenerationMember, GenerationState, Store
from tests.store.builders import at, observation, plan_generation, registration, token_of

State = GenerationState
MEETING = "10.0.0.7:41213"


@pytest.fixture
def running(any_store: Store) -> Store:
    """A store in which jobs 1 and 2 (another user's) run."""
    any_store.jobs.register([registration(1), registration(2, user_id=1002, user_name="grace")], at=at(0))
    any_store.jobs.observe([observation(n, gpus={"n0": 2}, started_at=at(2)) for n in (1, 2)], at=at(5))
    return any_store


def advance(store: Store, state: State, number: int = 1, *, token: str = "", **changes: Any) -> bool:
    """Advance a generation of job 1, with what belongs to the state."""
    said: dict[str, Any] = {
        State.COMMITTED: {"meeting": MEETING},
        State.REGROUPED: {"standstill_s": 0.25},
        State.REFUSED: {"reason": "it keeps world_size"},
    }[state]
    values = {"restart_count": 0, "at": at(50), **said, **changes}
    return store.agent.advance_generation(token or token_of(1), number, state, **values)


def seen(store: Store, after: int = 0, restart_count: int = 0) -> tuple[int, State] | None:
    """Return what job 1 sees."""
    found = store.agent.generation(token_of(1), after=after, restart_count=restart_count)
    return None if found is None else (found.number, found.state)


def test_that_job_and_daemon_see_the_same_plan(running: Store) -> None:
    planned = plan_generation(running, at_s=20)
    assert (planned.number, planned.state, planned.at) == (1, State.PLANNED, at(20))
    assert [member.id for member in planned.members] == ["base.0", "wing7.0"]
    assert not planned.is_ready
    assert running.agent.generation(token_of(1), after=0, restart_count=0) == planned
    assert running.generations.open_generations() == running.generations.of_job("1") == (planned,)
    assert seen(running, after=1) is None


def test_that_a_newcomer_is_ready_once_it_has_said_so(running: Store) -> None:
    plan_generation(running)
    for unknown in ("base.0", "wing8.0", "'; --"):
        running.agent.report_ready(token_of(1), unknown, number=1, restart_count=0)
    running.agent.report_ready(token_of(1), "wing7.0", number=2, restart_count=0)
    running.agent.report_ready(token_of(1), "wing7.0", number=1, restart_count=1)
    (found,) = running.generations.open_generations()
    assert not found.is_ready
    for _ in range(2):
        running.agent.report_ready(token_of(1), "wing7.0", number=1, restart_count=0)
    (found,) = running.generations.open_generations()
    assert found.is_ready
    assert found.state is State.PLANNED


def test_that_a_generation_goes_its_way_once(running: Store) -> None:
    plan_generation(running, is_ready=True)
    assert not advance(running, State.REGROUPED), "it is not committed"
    assert advance(running, State.COMMITTED, at=at(30))
    assert running.generations.of_job("1")[0].at == at(30)
    assert advance(running, State.COMMITTED, at=at(40)), "asked again, because the answer was lost"
    assert not advance(running, State.COMMITTED, meeting="10.0.0.8:1"), "its members meet elsewhere"
    assert not advance(running, State.REFUSED)
    found = running.agent.generation(token_of(1), after=0, restart_count=0)
    assert found is not None
    assert (found.state, found.meeting, found.at) == (State.COMMITTED, MEETING, at(30))
    for _ in range(2):
        assert advance(running, State.REGROUPED)
    assert advance(running, State.COMMITTED), "it was, before the first step"
    (found,) = running.generations.of_job("1")
    assert (found.state, found.meeting, found.standstill_s) == (State.REGROUPED, MEETING, 0.25)
    assert running.generations.open_generations() == ()


def test_that_nothing_is_committed_before_all_newcomers_are_ready(running: Store) -> None:
    plan_generation(running)
    assert not advance(running, State.COMMITTED)
    running.agent.report_ready(token_of(1), "wing7.0", number=1, restart_count=0)
    assert advance(running, State.COMMITTED)


def test_that_a_refusal_ends_it_with_its_reason(running: Store) -> None:
    plan_generation(running)
    for _ in range(2):
        assert advance(running, State.REFUSED, reason="it keeps rank\0" + "x" * 2000)
    assert not advance(running, State.COMMITTED)
    (found,) = running.generations.of_job("1")
    assert found.state is State.REFUSED
    assert found.reason is not None
    assert found.reason.startswith("it keeps rank")
    assert len(found.reason) == 1024


def test_that_it_is_withdrawn_or_committed_and_never_both(running: Store) -> None:
    plan_generation(running, is_ready=True)
    assert not running.generations.end("1", 1, State.FAILED, at=at(21), reason="a member ended")
    for _ in range(2):
        assert running.generations.end("1", 1, State.WITHDRAWN, at=at(22), reason="no GPU was free")
    assert not advance(running, State.COMMITTED)
    plan_generation(running, is_ready=True)
    assert advance(running, State.COMMITTED, 2)
    assert not running.generations.end("1", 2, State.WITHDRAWN, at=at(23), reason="too late")
    for _ in range(2):
        assert running.generations.end("1", 2, State.FAILED, at=at(24), reason="a member ended")
    assert not advance(running, State.REGROUPED, 2)
    assert [(one.number, one.state, one.reason) for one in running.generations.of_job("1")] == [
        (1, State.WITHDRAWN, "no GPU was free"),
        (2, State.FAILED, "a member ended"),
    ]
    assert seen(running) == (2, State.FAILED)


def test_that_one_generation_at_a_time_is_open(running: Store) -> None:
    plan_generation(running, is_ready=True)
    with pytest.raises(StoreError, match="generation 1 is planned; end it"):
        plan_generation(running)
    advance(running, State.COMMITTED)
    with pytest.raises(StoreError, match="generation 1 is committed; end it"):
        plan_generation(running)
    advance(running, State.REGROUPED)
    assert plan_generation(running).number == 2
    assert plan_generation(running, 2).number == 1, "each job counts its own"


@pytest.mark.parametrize(
    "members",
    [
        (),
        (GenerationMember(id="a", node_name="n0"),),
        (GenerationMember(id="a", node_name="n0", is_ready=True),) * 2,
        (GenerationMember(id="b", node_name="n1"), GenerationMember(id="a", node_name="n0", is_ready=True)),
    ],
    ids=["none", "nobody stays", "one twice", "a newcomer first"],
)
def test_that_an_impossible_plan_is_refused(running: Store, members: tuple[GenerationMember, ...]) -> None:
    with pytest.raises(StoreError, match="each member once, and first one or more"):
        running.generations.plan("1", members, restart_count=0, at=at(20))
    assert running.generations.of_job("1") == ()


def test_that_an_unknown_job_has_no_generations(running: Store) -> None:
    with pytest.raises(UnknownJobError):
        plan_generation(running, 404)
    assert running.generations.of_job("404") == ()
    assert not running.generations.end("404", 1, State.WITHDRAWN, at=at(1), reason="")
    with pytest.raises(StoreError, match="not as refused"):
        running.generations.end("1", 1, State.REFUSED, at=at(1), reason="")
    with pytest.raises(UsageError, match="zone"):
        advance(running, State.REFUSED, at=at(1).replace(tzinfo=None))


def test_that_another_start_of_the_job_neither_sees_nor_changes_it(running: Store) -> None:
    """A leftover of an earlier start must not commit what was planned for the present one."""
    plan_generation(running, restart_count=3, is_ready=True)
    for other in (2, 4):
        assert seen(running, restart_count=other) is None
        assert not advance(running, State.COMMITTED, restart_count=other)
        assert not advance(running, State.REFUSED, restart_count=other)
    assert seen(running, restart_count=3) == (1, State.PLANNED)


def test_that_jobs_neither_see_nor_change_each_others(running: Store) -> None:
    planned = plan_generation(running)
    other = token_of(2, 1002)
    assert running.agent.generation(other, after=0, restart_count=0) is None
    running.agent.report_ready(other, "wing7.0", number=1, restart_count=0)
    assert not advance(running, State.COMMITTED, token=other)
    assert not advance(running, State.REFUSED, token=other)
    assert running.generations.open_generations() == (planned,)


@pytest.mark.parametrize("token", ["", "other", token_of(1, 1002), "\udcff", "x" * 100_000], ids=repr)
def test_that_an_unknown_token_is_refused(running: Store, token: str) -> None:
    plan_generation(running)
    with pytest.raises(UnknownJobError):
        running.agent.generation(token, after=0, restart_count=0)
    with pytest.raises(UnknownJobError):
        running.agent.report_ready(token, "wing7.0", number=1, restart_count=0)
    with pytest.raises(UnknownJobError):
        running.agent.advance_generation(token, 1, State.REFUSED, restart_count=0, at=at(1), reason="no")


def test_that_the_generations_of_a_job_that_is_over_are_not_open(running: Store) -> None:
    plan_generation(running)
    running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(60))
    assert running.generations.open_generations() == ()
    assert len(running.generations.of_job("1")) == 1
    with pytest.raises(UnknownJobError, match="job 1 is over"):
        seen(running)


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 0},
        {"number": 2**63},
        {"number": True},
        {"restart_count": -1},
        {"restart_count": 1.5},
        {"state": State.WITHDRAWN, "meeting": None, "reason": "mine"},
        {"state": State.FAILED, "meeting": None, "reason": "mine"},
        {"state": State.PLANNED},
        {"state": "committed"},
        {"state": State.REGROUPED, "meeting": None},
        {"state": State.REGROUPED, "meeting": None, "standstill_s": float("nan")},
        {"state": State.REGROUPED, "meeting": None, "standstill_s": -1.0},
        {"state": State.REFUSED, "meeting": None, "reason": 1.5},
        {"state": State.REGROUPED, "meeting": None, "standstill_s": 1e300},
        {"state": State.REGROUPED, "standstill_s": 1.0},
        {"meeting": None},
        {"meeting": ""},
        {"meeting": "x" * 301},
        {"meeting": "a\0b"},
        {"meeting": "\udcff"},
        {"meeting": 7},
        {"reason": "both"},
    ],
    ids=repr,
)
def test_that_what_is_no_step_of_a_job_is_refused(running: Store, changes: dict[str, Any]) -> None:
    planned = plan_generation(running, is_ready=True)
    values: dict[str, Any] = {"number": 1, "state": State.COMMITTED, "restart_count": 0, "meeting": MEETING}
    with pytest.raises(ReportRefusedError):
        running.agent.advance_generation(token_of(1), at=at(1), **{**values, **changes})
    assert running.generations.open_generations() == (planned,)


@pytest.mark.parametrize("member", ["", "x" * 65, "a\0b", "\udcff", None])
def test_that_what_is_no_member_is_refused(running: Store, member: Any) -> None:
    plan_generation(running)
    with pytest.raises(ReportRefusedError, match="member"):
        running.agent.report_ready(token_of(1), member, number=1, restart_count=0)


def test_that_many_members_keep_their_order(running: Store) -> None:
    members = tuple(
        GenerationMember(id=f"job{number % 7}.{number}", node_name=f"n{number % 7}", is_ready=number < 3)
        for number in range(1000)
    )
    planned = running.generations.plan("1", members, restart_count=0, at=at(20))
    assert planned.members == members
    assert running.agent.generation(token_of(1), after=0, restart_count=0) == planned
