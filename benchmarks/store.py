"""The load that a store takes: agents that report and poll, a round's reads and writes, the reporting views.

    python -m benchmarks.store agents sqlite --agents 200
    python -m benchmarks.store agents postgresql --agents 100 --poll-s 2
    python -m benchmarks.store agents postgresql --agents 2000 --poll-s 2 --pgbouncer
    python -m benchmarks.store round postgresql --jobs 2000
    python -m benchmarks.store views sqlite --jobs 100000 --plans
    python -m benchmarks.store pages sqlite --jobs 2000

Each starts from an empty store: a file in a temporary folder, or a PostgreSQL of its own from Debian,
with PostgreSQL's own settings. `agents` times a call from the moment at which it was due, so that waiting is
included; a daemon's rounds read and write meanwhile. On a busy machine, look at the CPU times.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import store_agents, store_history, store_pages, store_rounds, store_views
from pollux_slurm.store import open_store
from pollux_slurm.store.access.opening import open_database
from pollux_slurm.store.maintenance.administration import add_login, init_store
from tests.store.pgbouncer import PgBouncerMissingError
from tests.store.postgres import PostgresServer, running_postgres


@contextlib.contextmanager
def empty_store(backend: str) -> Iterator[tuple[str, PostgresServer | None]]:
    """Make an empty store, and remove it at the end."""
    if backend == "sqlite":
        with tempfile.TemporaryDirectory(prefix="pollux-bench-") as folder:
            url = f"sqlite:///{folder}/pollux.db"
            init_store(url)
            yield url, None
        return
    with running_postgres(max_connections="100") as server:
        url = server.create_database("pollux")
        init_store(url)
        yield url, server


def cpu_s(server: PostgresServer | None) -> float:
    """Return the CPU time of the server and its ended processes, or of this process."""
    if server is None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime
    pid = int((server.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
    total = _cpu_of(pid, children=True)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            total += _cpu_of(int(child), children=False)
    return total


def _cpu_of(pid: int, *, children: bool) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = sum(int(field) for field in fields[11 : 15 if children else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def through_server(server: PostgresServer, options: argparse.Namespace) -> store_agents.Calls:
    """Let agents call PostgreSQL, over a connection for each call or through PgBouncer."""
    times = {"report_s": options.report_s, "poll_s": options.poll_s, "for_s": options.seconds}
    if not options.pgbouncer:
        return store_agents.through_pgbench(server, options.agents, **times)
    with store_agents.pooled(server) as (pooler, where, environment):
        calls = store_agents.through_pgbench(
            server, options.agents, **times, where=where, environment=environment
        )
        pooler_s = _cpu_of(pooler.process.pid, children=False)
        print(
            f"PgBouncer used {pooler_s:.1f} s of CPU: {1000 * pooler_s / max(calls.count, 1):.2f} ms a call"
        )
        return calls


def bench_agents(options: argparse.Namespace) -> None:
    """Print how long reports and polls of many agents take while rounds run."""
    with empty_store(options.backend) as (url, server):
        jobs = options.agents
        store = open_store(url)
        store_rounds.start_jobs(store, jobs)
        if server is not None:
            add_login(
                url,
                store_agents.LOGIN,
                shared=True,
                connections=store_agents.CLIENTS + 4,
                roles=("pollux_agent",),
            )
        daemon = store_agents.RoundsInBetween(url, jobs, every_s=options.round_s)
        before, began = cpu_s(server), time.perf_counter()
        with daemon:
            if server is None:
                calls = store_agents.through_python(
                    url, jobs, report_s=options.report_s, poll_s=options.poll_s, for_s=options.seconds
                )
            else:
                calls = through_server(server, options)
        used, took_s = cpu_s(server) - before, time.perf_counter() - began
        store.close()
    whose = "this process (the agents)" if server is None else "PostgreSQL"
    held = f"{daemon.rounds} rounds in between of {daemon.mean_s:.2f} s, {daemon.failures} failed"
    print(
        f"{options.backend}{', through PgBouncer' if options.pgbouncer else ''}: {jobs} agents,"
        f" a report every {options.report_s:g} s, a poll every {options.poll_s:g} s,"
        f" for {options.seconds:g} s; {held}; load {os.getloadavg()[0]:.1f}"
    )
    for name, latencies in calls.latencies.items():
        print(f"  {name:6} {store_agents.words(latencies)}")
    print(f"  refused or failed: {calls.failures}")
    share, each_ms = used / took_s, 1000 * used / max(calls.count, 1)
    print(f"  {whose} used {used:.1f} s of CPU in {took_s:.0f} s, {share:.2f} cores: {each_ms:.2f} ms a call")


def bench_round(options: argparse.Namespace) -> None:
    """Print how long a round's reads and writes take."""
    with empty_store(options.backend) as (url, _):
        store = open_store(url)
        store_rounds.start_jobs(store, options.jobs)
        store_rounds.report_once(store, options.jobs)
        print(f"{options.backend}: a round of {options.jobs} jobs; load {os.getloadavg()[0]:.1f}")
        for name, seconds, statements in store_rounds.timed_round(store, options.jobs):
            print(f"  {name:28} {seconds * 1000:8.1f} ms {statements:4} statements")
        store.close()


def bench_views(options: argparse.Namespace) -> None:
    """Print how long each view takes for a month of a year's history."""
    with empty_store(options.backend) as (url, server):
        database = open_database(url)
        began = time.perf_counter()
        with database.write() as connection:
            store_history.fill_history(connection, options.jobs)
        if server is not None:
            server.sql("VACUUM ANALYZE", database="pollux")  # as autovacuum does in time; SQLite goes without
        samples = options.jobs * store_history.NUM_SAMPLES
        print(
            f"{options.backend}: {options.jobs} jobs, {samples} samples over 12 months"
            f" (made in {time.perf_counter() - began:.0f} s); all of a month; load {os.getloadavg()[0]:.1f}"
        )
        for answer in store_views.answers(database, lambda: cpu_s(server)):
            print(
                f"  {answer.view:22} {answer.rows:8} rows {answer.first_s:7.2f} s,"
                f" again {answer.again_s:6.2f} s, of CPU {answer.cpu_s:5.2f} s",
                flush=True,
            )
            if options.plans:
                print("      " + answer.plan.replace("\n", "\n      "))
        database.close()


def bench_pages(options: argparse.Namespace) -> None:
    with empty_store(options.backend) as (url, _):
        with contextlib.closing(open_database(url)) as database, database.write() as connection:
            store_history.fill_history(connection, options.jobs, round_text_bytes=32)
        print(f"{options.backend}, {options.jobs} jobs in a year; seconds of this process's processor time")
        for page, seconds in store_pages.page_times(url, num_jobs=options.jobs):
            print(f"  {seconds:5.2f}  {page}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["agents", "round", "views", "pages"])
    parser.add_argument("backend", choices=["sqlite", "postgresql"])
    parser.add_argument("--agents", type=int, default=2000)
    parser.add_argument("--report-s", type=float, default=30.0)
    parser.add_argument("--poll-s", type=float, default=30.0)
    parser.add_argument("--round-s", type=float, default=30.0)
    parser.add_argument("--pgbouncer", action="store_true", help="agents: as docs/postgresql.md has it")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--jobs", type=int, default=None, help="views: 100000; else: 2000")
    parser.add_argument("--plans", action="store_true", help="views: show each plan")
    options = parser.parse_args(arguments)
    if options.jobs is None:
        options.jobs = 100_000 if options.what == "views" else 2000
    try:
        parts = {"agents": bench_agents, "round": bench_round, "views": bench_views, "pages": bench_pages}
        parts[options.what](options)
    except PgBouncerMissingError as error:
        print(f"skipped: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
