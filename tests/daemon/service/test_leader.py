"""One leader: a daemon that is suspended at any point, and continues beside another one, does no harm."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.service.metrics import totals
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import SchemaVersionError, StoreUnavailable
from pollux_slurm.model import Allocation, Decision, JobState, Problem, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.access.parts import StorePart
from pollux_slurm.store.schema import REVISIONS, VERSION_TABLE
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.crashing import MUTATING, Killed
from tests.daemon.harness import CONFIG, Harness
from tests.store_fixtures import wipe

# More than any lease of the harness.
_LONG_S = CONFIG.lease_ttl_s + 1


def started(harness: Harness, *, owner: str = "first") -> str:
    job_id = harness.submit()
    harness.run_until(harness.daemon(owner=owner), until=lambda: harness.has_stepped(job_id), seconds=8)
    assert harness.job(job_id).state is JobState.RUNNING
    return job_id


def arrived(harness: Harness, job_id: str, gpus_by_node: dict[str, int]) -> Callable[[], bool]:
    return lambda: harness.job(job_id).allocation == Allocation.of(gpus_by_node) and not harness.open_moves()


class StoppedAt:
    """Passes calls on; just before the `at`-th that changes anything, `interrupt` is called, once."""

    def __init__(self, target: Any, counter: Iterator[int], at: int, interrupt: Callable[[], None]) -> None:
        self._target, self._counter, self._at, self._while_deciding = target, counter, at, interrupt

    def guarded(self, guard: Callable[[], None]) -> StoppedAt:
        return StoppedAt(self._target.guarded(guard), self._counter, self._at, self._while_deciding)

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] | StorePart = getattr(self._target, name)
        if isinstance(method, StorePart):
            return StoppedAt(method, self._counter, self._at, self._while_deciding)
        if name not in MUTATING:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            if next(self._counter) == self._at:
                self._while_deciding()
            return method(*args, **kwargs)

        return call


# Every call in turn, as in enact/test_state_machine.py, is in `make test-full`; here every third.
@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_that_a_leader_stopped_before_any_call_does_no_harm_when_it_continues(
    clean_store: SqlStore, every: int
) -> None:
    """It finds the lease lost before the command, so the job is requeued only once."""
    for at in itertools.count(step=every):
        wipe(clean_store)
        harness = Harness(clean_store)
        job_id = started(harness)
        harness.targets = {job_id: {"n1": 2}}
        done = arrived(harness, job_id, {"n1": 2})
        successor, stops = harness.daemon(owner="second"), []

        def take_over(
            harness: Harness = harness,
            done: Callable[[], bool] = done,
            stops: list[int] = stops,
            at: int = at,
        ) -> None:
            stops.append(at)
            harness.clock.advance(_LONG_S)
            harness.run_until(successor, until=done, seconds=40)  # noqa: B023 - called within this turn

        counter = itertools.count()
        first = harness.daemon(
            owner="first",
            slurm=StoppedAt(harness.slurm, counter, at, take_over),  # type: ignore[arg-type]
            store=StoppedAt(harness.store, counter, at, take_over),  # type: ignore[arg-type]
        )
        harness.run_until(first, until=done, seconds=30)
        first.tick()  # it continues where it was suspended
        harness.run_until(successor, until=done, seconds=30)
        job = harness.job(job_id)
        assert (job.state, job.held, job.restart_count) == (JobState.RUNNING, False, 1), f"call {at}"
        assert done(), f"call {at}"
        if not stops:
            assert at > 9, "too few calls were tried"
            break


@pytest.mark.parametrize("method", ["requeue_hold", "reshape", "release"])
def test_that_a_command_that_reaches_slurm_too_late_leaves_no_job_held(harness: Harness, method: str) -> None:
    """The daemon is suspended between its check of the lease and the command."""
    job_id, target = started(harness), {"n1": 2}
    harness.targets = {job_id: target}
    done = arrived(harness, job_id, target)
    first, second = harness.daemon(owner="first"), harness.daemon(owner="second")
    stops = []

    def stop(command: str) -> None:
        if command == method and not stops:
            stops.append(command)
            harness.clock.advance(_LONG_S)
            harness.run_until(second, until=done, seconds=40)

    harness.slurm.on_command = stop
    harness.run_until(first, until=lambda: bool(stops), seconds=30)
    assert stops == [method]
    for _ in range(8):  # both are alive, the first without the lease
        first.tick()
        harness.run_until(second, seconds=4)
    job = harness.job(job_id)
    assert (job.state, job.held) == (JobState.RUNNING, False)
    assert harness.open_moves() == 0


def test_that_a_job_held_too_late_is_brought_back_through_the_journal(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    done = arrived(harness, job_id, {"n1": 2})
    first, second = harness.daemon(owner="first"), harness.daemon(owner="second")

    def stop(command: str) -> None:
        if command == "requeue_hold":
            harness.slurm.on_command = lambda _: None
            harness.clock.advance(_LONG_S)
            harness.run_until(second, until=done, seconds=40)

    harness.slurm.on_command = stop
    harness.run_until(first, until=lambda: harness.job(job_id).restart_count == 2, seconds=30)
    harness.clock.advance(1)
    second.tick()
    assert harness.job(job_id).held
    first.tick()
    (late,) = harness.store.journal.open_reallocations()
    assert (late.step, late.cause) == (Step.RESHAPED, ReallocationCause.LATE_COMMAND)
    harness.run_until(second, until=done, seconds=20)
    assert done()


def held_by_one_that_dies(harness: Harness, job_id: str, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """Stop the first daemon before its requeue, let the second move the job, continue the first: it dies."""
    done = arrived(harness, job_id, harness.targets[job_id])
    first, second = harness.daemon(owner="first"), harness.daemon(owner="second")
    acquire = harness.store.lease.acquire

    def die(owner: str, **kwargs: Any) -> bool:
        if owner == "first":
            raise Killed
        return acquire(owner, **kwargs)

    def stop(given: str) -> None:
        if given == "requeue_hold":
            harness.slurm.on_command = lambda _: None
            harness.clock.advance(_LONG_S)
            harness.run_until(second, until=done, seconds=40)
            monkeypatch.setattr(harness.store.lease, "acquire", die)

    harness.slurm.on_command = stop
    with pytest.raises(Killed):
        harness.run_until(first, seconds=30)
    return second


def test_that_the_next_leader_releases_a_job_held_by_a_daemon_that_died_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, target = started(harness), {"n1": 2}
    harness.targets = {job_id: target}
    second = held_by_one_that_dies(harness, job_id, monkeypatch)
    harness.clock.advance(1)
    assert harness.job(job_id).held
    harness.run_until(second, until=arrived(harness, job_id, target), seconds=40)
    assert arrived(harness, job_id, target)()
    assert not harness.job(job_id).held


def test_that_it_is_undone_once_and_a_later_external_hold_stays(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    second = held_by_one_that_dies(harness, job_id, monkeypatch)
    harness.run_until(second, until=arrived(harness, job_id, {"n1": 2}), seconds=40)
    harness.slurm.requeue_hold(job_id)
    harness.run_until(second, seconds=20)
    assert harness.job(job_id).held
    assert harness.open_moves() == 0


def moved_by_two(harness: Harness, job_id: str, *, first: str, second: str, command_happens: bool) -> Daemon:
    """Let the first daemon die at its requeue, and the second continue the move."""
    harness.targets = {job_id: {"n1": 2}}
    if command_happens:
        harness.run_until(harness.daemon(owner=first), until=lambda: harness.job(job_id).held, seconds=30)
    else:

        def die(command: str) -> None:
            if command == "requeue_hold":
                raise Killed

        harness.slurm.on_command = die
        with pytest.raises(Killed):
            harness.run_until(harness.daemon(owner=first), seconds=30)
        harness.slurm.on_command = lambda _: None
    harness.clock.advance(_LONG_S)
    successor = harness.daemon(owner=second)
    harness.run_until(successor, until=arrived(harness, job_id, {"n1": 2}), seconds=40)
    assert arrived(harness, job_id, {"n1": 2})()
    return successor


@pytest.mark.parametrize(
    ("first", "command_happens", "passes_s"),
    [
        ("elsewhere:1:a", False, 601),  # too long ago
        ("elsewhere:1:a", True, 0),  # the effect of its command was seen
        ("here:999999999:a", False, 0),  # there is no such process on this host
    ],
)
def test_that_an_external_hold_after_a_takeover_stays_where_no_late_command_can_explain_it(
    harness: Harness, first: str, command_happens: bool, passes_s: float
) -> None:
    job_id = started(harness, owner=first)
    daemon = moved_by_two(harness, job_id, first=first, second="here:1:b", command_happens=command_happens)
    (move,) = harness.store.journal.reallocations(job_id)
    assert (move.taken_over, move.reason) == (passes_s > 0, None)
    harness.clock.advance(passes_s)
    harness.slurm.requeue_hold(job_id)
    harness.run_until(daemon, seconds=20)
    assert harness.job(job_id).held
    assert harness.open_moves() == 0


def test_that_a_second_daemon_takes_over_within_two_intervals(harness: Harness) -> None:
    """The first stops renewing the lease; the second tries often enough, and the lease is short enough."""
    harness.daemon(owner="first").round()
    began = harness.clock()
    passed: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            harness.clock.advance(timeout or 0.0)
            if harness.store.lease.is_held_by("second", at=harness.clock()):
                passed.append((harness.clock() - began).total_seconds())
                self.set()
            return self.is_set()

    harness.daemon(owner="second", stop=Stop()).run()
    assert passed
    assert passed[0] <= 2 * CONFIG.interval_s


def test_that_moves_go_on_and_the_lease_is_kept_while_a_decision_is_searched_for(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    began, found = threading.Event(), threading.Event()

    def slow(problem: Problem) -> Decision:
        if began.is_set():
            found.wait(600)
        began.set()
        return harness.decide(problem)

    class Time(Notifier):
        """At each tick the agents act; once the job has moved, the solver returns."""

        def alive(self) -> None:
            if not began.is_set():
                return
            assert harness.store.lease.is_held_by("first", at=harness.clock())
            for agent in harness.agents.values():
                agent.act()
            harness.clock.advance(CONFIG.tick_s)
            if arrived(harness, job_id, {"n1": 2})():
                found.set()

    daemon = harness.daemon(
        owner="first",
        decide=slow,
        config=dataclasses.replace(CONFIG, tick_s=0.01),
        notifier=Time({}, monotonic=lambda: 0.0),
    )
    daemon.round()
    assert harness.open_moves() == 1
    assert daemon.round().skipped is None
    assert found.is_set()
    assert arrived(harness, job_id, {"n1": 2})()


def test_that_a_stop_does_not_wait_for_a_decision(harness: Harness) -> None:
    found = threading.Event()

    def endless(problem: Problem) -> Decision:
        harness.stop.set()
        found.wait(600)
        return harness.decide(problem)

    daemon = harness.daemon(owner="first", decide=endless)
    try:
        result = daemon.round()
    finally:
        found.set()
    assert result.skipped is not None
    assert "stopped" in result.skipped


def test_that_what_the_search_raises_skips_the_round(harness: Harness) -> None:
    def broken(_problem: Problem) -> Decision:
        raise RuntimeError("a bug in a solver")

    daemon = harness.daemon(owner="first", decide=broken)
    assert daemon.round().skipped == "bug: a bug in a solver"
    assert totals(daemon.metrics.skipped)["bug",] == 1


def test_that_a_store_that_stops_answering_after_a_command_is_no_lost_lease(harness: Harness) -> None:
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    calls = []
    acquire = harness.store.lease.acquire

    def flaky(*args: Any, **kwargs: Any) -> bool:
        if calls and calls[-1] == "requeue_hold":
            calls.append("silent")
            raise StoreUnavailable("the database cannot be reached")
        return acquire(*args, **kwargs)

    harness.slurm.on_command = calls.append
    harness.store.lease.acquire = flaky  # type: ignore[method-assign]
    harness.run_until(harness.daemon(owner="first"), until=arrived(harness, job_id, {"n1": 2}), seconds=30)
    assert "silent" in calls
    assert len(harness.store.journal.reallocations(job_id)) == 1
    assert harness.job(job_id).restart_count == 1


def test_that_the_store_has_the_intervals_of_the_running_daemon(harness: Harness) -> None:
    harness.daemon(owner="first").round()
    seen = harness.store.lease.daemon_status()
    assert seen.interval_s == CONFIG.interval_s
    assert seen.watch_s == min(CONFIG.watch_s, CONFIG.interval_s)


@contextlib.contextmanager
def upgraded(store: SqlStore) -> Iterator[None]:
    """Let the store have a later release's schema for a while."""

    def write(version: str) -> None:
        with store.database.write() as connection:
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")

    write("9999")
    try:
        yield
    finally:
        write(REVISIONS[-1])


def test_that_daemons_end_once_another_release_has_upgraded_the_store(clean_store: SqlStore) -> None:
    """In the middle of a move, which the next daemon continues. Nobody had stopped them before."""
    harness = Harness(clean_store)
    job_id = started(harness)
    harness.targets = {job_id: {"n1": 2}}
    first, second = harness.daemon(owner="first"), harness.daemon(owner="second")
    harness.run_until(first, until=lambda: harness.job(job_id).held, seconds=30)
    num_commands = len(harness.slurm.calls)
    with upgraded(clean_store):
        harness.clock.advance(_LONG_S)
        for act in (first.tick, first.run, second.run):
            with pytest.raises(SchemaVersionError, match="made by a newer release"):
                act()
    assert len(harness.slurm.calls) == num_commands
    assert harness.job(job_id).held
    next_daemon = harness.daemon(owner="next")
    harness.run_until(next_daemon, until=arrived(harness, job_id, {"n1": 2}), seconds=40)
    job = harness.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.RUNNING, False, 1)
    assert not harness.open_moves()
