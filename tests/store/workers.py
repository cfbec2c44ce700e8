"""What the other processes do in `test_processes`: module-level functions, so that processes find them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import TypeVar

from pollux_slurm.errors import StoreUnavailable
from pollux_slurm.model import GoodputModel, JobState
from pollux_slurm.store import open_agent_store, open_store
from tests.store.builders import (
    MODEL,
    T0,
    at,
    confirmation,
    decision_of,
    observation,
    problem_of,
    report,
    token_of,
)

T = TypeVar("T")
DEADLINE_S = 300


def insistently(call: Callable[[], T]) -> T:
    """Call until the store is not busy with others, as the reporter's thread and the daemon's rounds do.

    On a busy machine one of many writers may find an SQLite file locked for longer than it waits.
    """
    for _ in range(10):
        try:
            return call()
        except StoreUnavailable:
            continue
    return call()


def make_store(url: str, barrier: Barrier, outcome: Connection) -> None:
    barrier.wait(DEADLINE_S)
    open_store(url, create=True).close()
    outcome.send("made")


def send_reports(url: str, barrier: Barrier, outcome: Connection, number: int, reports: int) -> None:
    """Report and poll as fast as it goes, through a store opened once."""
    store = open_agent_store(url)
    barrier.wait(DEADLINE_S)
    for sequence in range(1, reports + 1):
        insistently(functools.partial(store.report, token_of(number), report(sequence), at=at(sequence)))
        insistently(functools.partial(store.poll, token_of(number), 0, at=at(sequence)))
    store.close()
    outcome.send("reported")


def hold_rounds(url: str, barrier: Barrier, outcome: Connection, jobs: int, rounds: int) -> None:
    """Observe, read and decide about `jobs` jobs, as the daemon does."""
    store = open_store(url)
    numbers = list(range(jobs))
    barrier.wait(DEADLINE_S)
    for turn in range(rounds):
        gpus = [{f"n{number}": turn % 4 + 1} for number in numbers]
        observations = [observation(n, JobState.RUNNING, g) for n, g in zip(numbers, gpus, strict=True)]
        insistently(functools.partial(store.jobs.observe, observations, at=at(turn)))
        assert len(insistently(store.jobs.active)) == jobs
        problem, decision = problem_of(numbers), decision_of(numbers)
        insistently(functools.partial(store.rounds.record, problem, decision, shadow=False, at=at(turn)))
    store.close()
    outcome.send("decided")


def race_for_lease(url: str, barrier: Barrier, outcome: Connection, owner: str, rounds: int) -> None:
    """Return in which of the rounds, each after a barrier, this owner got the lease."""
    store = open_store(url)
    won = []
    for turn in range(rounds):
        barrier.wait(DEADLINE_S)
        if insistently(functools.partial(store.lease.acquire, owner, ttl_s=10, at=at(100 * turn))):
            won.append(turn)
    store.close()
    outcome.send(won)


def report_for_ever(url: str, outcome: Connection, number: int) -> None:
    """Send reports that each write to four tables; return the acknowledged sequence numbers."""
    store = open_agent_store(url)
    for sequence in itertools.count(1):
        model = GoodputModel(limits=MODEL.limits, statistics=MODEL.statistics, max_gpus_seen=sequence)
        store.report(token_of(number), confirmation(None, sequence=sequence, model=model), at=T0)
        outcome.send(sequence)
