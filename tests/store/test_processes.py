"""Real processes at one store: many writers, races, kills, forks."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Store
from tests.store import workers
from tests.store.builders import at, observation, registration, report, token_of
from tests.store.connections import await_ends, connections
from tests.store.workers import DEADLINE_S

# Each process is a fork of a server that has imported everything once.
SPAWN = multiprocessing.get_context("forkserver")
SPAWN.set_forkserver_preload(["tests.store.workers", "pollux_slurm.store.sql_store"])


def run_together(tasks: list[tuple[Callable[..., None], tuple[Any, ...]]], url: str) -> list[Any]:
    """Start one process per task, all behind one barrier; return what each returned.

    Raises `EOFError` when a process ends without a word: its own traceback is in the output.
    """
    barrier = SPAWN.Barrier(len(tasks))
    pipes, processes = [], []
    try:
        for function, arguments in tasks:
            mine, theirs = SPAWN.Pipe(duplex=False)
            process = SPAWN.Process(target=function, args=(url, barrier, theirs, *arguments))
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(mine)
        outcomes = []
        for pipe in pipes:
            assert pipe.poll(DEADLINE_S), "a process did not finish in time"
            outcomes.append(pipe.recv())
        return outcomes
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()
                process.join(timeout=DEADLINE_S)
            process.close()
        for pipe in pipes:
            pipe.close()


def test_that_eight_agents_and_a_daemon_at_once_lose_nothing(any_store_url: str, any_store: Store) -> None:
    agents, reports, rounds = 8, 6, 4
    any_store.jobs.register([registration(number) for number in range(agents)], at=at(0))
    any_store.jobs.observe(
        [observation(number, gpus={f"n{number}": 1}) for number in range(agents)], at=at(0)
    )
    tasks = [(workers.send_reports, (number, reports)) for number in range(agents)]
    tasks.append((workers.hold_rounds, (agents, rounds)))
    assert run_together(tasks, any_store_url) == ["reported"] * agents + ["decided"]
    for number in range(agents):
        assert [s.progress for s in any_store.history.samples(str(number))] == [
            8.0 * sequence for sequence in range(1, reports + 1)
        ]
        assert len(any_store.history.allocations(str(number))) == rounds


def test_that_many_processes_can_create_the_store_at_once(any_empty_url: str) -> None:
    assert run_together([(workers.make_store, ())] * 4, any_empty_url) == ["made"] * 4
    store = open_store(any_empty_url)
    assert store.jobs.all() == ()
    store.close()


def test_that_exactly_one_of_racing_daemons_gets_the_lease(any_store_url: str) -> None:
    rounds = 10
    tasks = [(workers.race_for_lease, (f"daemon-{name}", rounds)) for name in range(3)]
    won = run_together(tasks, any_store_url)
    assert sorted(turn for turns in won for turn in turns) == list(range(rounds))


def test_that_a_killed_writer_leaves_whole_reports_and_loses_no_acknowledged_one(
    any_store_url: str, any_store: Store
) -> None:
    any_store.jobs.register([registration(number) for number in range(4)], at=at(0))
    any_store.jobs.observe([observation(number, gpus={"n0": 1}) for number in range(4)], at=at(0))
    for number in range(4):
        acknowledged = kill_while_reporting(any_store_url, number, after=5 * number + 3)
        samples = any_store.history.samples(str(number))
        record = any_store.jobs.get(str(number))
        assert record.run is not None
        assert record.model is not None
        assert acknowledged <= len(samples) <= acknowledged + 1
        assert record.model.max_gpus_seen == len(samples), "the model of the last whole report"
        assert record.run.num_steps == 10 * len(samples)
        # The store still works: the next run reports.
        any_store.agent.report(token_of(number), report(1, run_number=1), at=at(1))


def kill_while_reporting(url: str, number: int, *, after: int) -> int:
    """Kill (SIGKILL) a process while it reports; return the last acknowledged sequence number."""
    others = connections(url)
    mine, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=workers.report_for_ever, args=(url, theirs, number))
    process.start()
    theirs.close()
    try:
        while _next(mine) < after:
            pass
    finally:
        process.kill()
        process.join(timeout=DEADLINE_S)
        process.close()
    last = after
    while mine.poll(5):
        try:
            last = mine.recv()
        except EOFError:
            break
    mine.close()
    await_ends(url, but=others)
    return last


def _next(pipe: Connection) -> int:
    assert pipe.poll(DEADLINE_S), "the process stopped reporting"
    return int(pipe.recv())


FORK = """
import os, pathlib, socket, sys
from pollux_slurm.store import open_store
from tests.store.builders import at, registration, report, token_of
store = open_store(sys.argv[1])
store.jobs.register([registration(1)], at=at(0))     # leaves a connection in the pool
connections = [int(entry.name) for entry in pathlib.Path("/proc/self/fd").iterdir()
    if int(entry.name) > 2 and entry.is_socket()]
child = os.fork()
if child == 0:
    # In the place of the parent's connection: whatever the child says there can be read.
    inside, outside = socket.socketpair()
    outside.shutdown(socket.SHUT_WR)
    for number in connections:
        os.dup2(inside.fileno(), number)
for sequence in range(1, 20):
    if child:
        store.agent.report(token_of(1), report(sequence, run_number=1), at=at(1))
    assert [job.slurm_job_id for job in store.jobs.active()] == ["1"]
if child == 0:
    outside.setblocking(False)
    try:
        said = outside.recv(1000)
    except BlockingIOError:
        os._exit(0)
    print("on the parent's connection:", said, file=sys.stderr, flush=True)
    os._exit(1)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert len(store.history.samples("1")) == 19
store.close()
"""


def test_that_a_fork_uses_connections_of_its_own(any_store_url: str) -> None:
    code = [sys.executable, "-W", "error", "-c", FORK, any_store_url]
    done = subprocess.run(code, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("module", ["pollux_slurm.store", "pollux_slurm.store.contract.interface"])
def test_that_the_database_library_is_not_imported_before_it_is_needed(module: str) -> None:
    code = f"import {module}, sys; print(sorted({{'sqlalchemy', 'alembic', 'jinja2'}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.strip() == "[]"


def test_that_opening_a_store_imports_neither_alembic_nor_another_driver(store_url: str) -> None:
    code = (
        "import sys; from pollux_slurm.store import open_agent_store; "
        f"open_agent_store({store_url!r}).close(); "
        "print(sorted({'alembic', 'jinja2', 'psycopg', 'torch', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.strip() == "[]"
