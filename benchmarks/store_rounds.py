"""A round's reads and writes, timed part by part, with the statements that each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone

from sqlalchemy import event

from pollux_slurm.model import Decision, Problem
from pollux_slurm.store.contract.interface import JobObservation, JobRegistration, Store
from tests.store.builders import decision_of, observation, problem_of, registration, report, token_of

GPUS_PER_NODE = 4


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _registrations(jobs: int) -> list[JobRegistration]:
    return [registration(n, submitted_at=_now()) for n in range(1, jobs + 1)]


def _observations(jobs: int, moved: int = 0) -> list[JobObservation]:
    """Return what Slurm shows: each job on a node of its own; every tenth on another one after `moved`."""
    return [
        observation(n, gpus={f"n{n + (moved if n % 10 == 0 else 0)}": GPUS_PER_NODE})
        for n in range(1, jobs + 1)
    ]


def start_jobs(store: Store, jobs: int) -> None:
    """Register `jobs` jobs and let them run."""
    store.jobs.register(_registrations(jobs), at=_now())
    observe_all(store, jobs)


def observe_all(store: Store, jobs: int) -> None:
    """Let the store see that all jobs run where they did."""
    store.jobs.observe(_observations(jobs), at=_now())


def report_once(store: Store, jobs: int) -> None:
    """Let each job report once, so that a round finds all that it reads of one."""
    for number in range(1, jobs + 1):
        store.agent.report(token_of(number), report(1, num_steps=10), at=_now())


def decided(jobs: int) -> tuple[Problem, Decision]:
    """Return a problem of `jobs` jobs and a decision about it."""
    numbers = list(range(1, jobs + 1))
    return problem_of(numbers), replace(decision_of(numbers), excluded=())


def timed_round(store: Store, jobs: int) -> Iterator[tuple[str, float, int]]:
    """Hold a round as the daemon does, twice, and give (part, seconds, statements) of the second."""
    problem, decision = decided(jobs)
    registrations = _registrations(jobs)
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("lease", lambda: store.lease.acquire("daemon", ttl_s=60, at=_now())),
        ("register_jobs, all known", lambda: store.jobs.register(registrations, at=_now())),
        ("active_jobs", lambda: store.jobs.active()),
        ("observe_jobs, a tenth moved", lambda: store.jobs.observe(_observations(jobs, 1), at=_now())),
        ("active_jobs, again", lambda: store.jobs.active()),
        ("rounds.record", lambda: store.rounds.record(problem, decision, shadow=False, at=_now())),
        ("open_reallocations", lambda: store.journal.open_reallocations()),
    )
    for _, act in parts:
        act()
    store.jobs.observe(_observations(jobs), at=_now())
    total, all_statements = 0.0, 0
    for name, act in parts:
        with _counted(store) as count:
            began = time.perf_counter()
            act()
            seconds = time.perf_counter() - began
        total, all_statements = total + seconds, all_statements + len(count)
        yield name, seconds, len(count)
    yield "all of it", total, all_statements


class _counted:  # noqa: N801 - used as a function
    """Gather the statements that are sent while a block runs."""

    def __init__(self, store: Store) -> None:
        self._engine = store.database.engine  # type: ignore[attr-defined]
        self._sent: list[str] = []

    def _note(self, _connection, _cursor, statement, _parameters, _context, _many) -> None:  # type: ignore[no-untyped-def]
        self._sent.append(statement)

    def __enter__(self) -> list[str]:
        event.listen(self._engine, "before_cursor_execute", self._note)
        return self._sent

    def __exit__(self, *_: object) -> None:
        event.remove(self._engine, "before_cursor_execute", self._note)
