"""Many agents at once: through this package on SQLite, through pgbench on PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import subprocess
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.store_rounds import decided, observe_all
from pollux_slurm.errors import StoreError
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.agent_api.postgresql_api import report_json
from tests.store.builders import report, token_of
from tests.store.pgbouncer import Pooler, running_pgbouncer
from tests.store.postgres import PostgresServer

CLIENTS = 16
LOGIN = "jobs"
_PASSWORD = "of the benchmark"
THREADS = 8


@dataclass(slots=True, kw_only=True)
class Calls:
    """What came of the agents' calls: seconds from when each was due until it was answered, by kind."""

    latencies: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return sum(len(found) for found in self.latencies.values())


def words(latencies: list[float]) -> str:
    """Return the quantiles of latencies in a line, in milliseconds."""
    ordered = sorted(latencies)
    if not ordered:
        return "none"
    parts = [
        f"{name} {1000 * ordered[min(int(part * len(ordered)), len(ordered) - 1)]:.1f} ms"
        for name, part in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1.0))
    ]
    return f"{len(ordered)} calls: " + ", ".join(parts)


class RoundsInBetween:
    """A daemon's reads and writes, in a process of its own, at an interval, while a block runs."""

    def __init__(self, url: str, jobs: int, *, every_s: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ready, self._stop, self._told = context.Event(), context.Event(), context.SimpleQueue()
        self._process = context.Process(
            target=_run_rounds, args=(url, jobs, every_s, self._ready, self._stop, self._told)
        )
        self.failures, self._times = 0, [0.0]

    @property
    def rounds(self) -> int:
        return len(self._times)

    @property
    def mean_s(self) -> float:
        return sum(self._times) / max(len(self._times), 1)

    def __enter__(self) -> RoundsInBetween:
        self._process.start()
        self._ready.wait(timeout=120)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._process.join(timeout=120)
        if self._process.exitcode == 0:
            self._times, self.failures = self._told.get()


def _run_rounds(url: str, jobs: int, every_s: float, ready: Any, stop: Any, results: Any) -> None:
    problem, decision = decided(jobs)
    store = open_store(url)
    times: list[float] = []
    failures = 0
    ready.set()
    while not stop.is_set():
        began = time.monotonic()
        try:
            store.jobs.active()
            observe_all(store, jobs)
            store.jobs.active()
            store.rounds.record(problem, decision, shadow=False, at=_now())
        except StoreError:
            failures += 1
        times.append(time.monotonic() - began)
        stop.wait(max(every_s - times[-1], 0.0))
    store.close()
    results.put((times, failures))


def _now() -> datetime:
    return datetime.now(timezone.utc)


def through_python(url: str, agents: int, *, report_s: float, poll_s: float, for_s: float) -> Calls:
    """Let agents call through `open_agent_store`, at even moments, from a few threads."""
    calls = Calls()
    lock = threading.Lock()
    due = [("report", i * report_s / agents) for i in range(int(for_s / report_s * agents))]
    due += [("poll", i * poll_s / agents) for i in range(int(for_s / poll_s * agents))]
    due.sort(key=lambda call: call[1])
    turns: Counter[str] = Counter()
    stores = threading.local()
    opened = []
    begin = time.monotonic() + 1.0

    def call(kind: str, number: int, sequence: int, at_s: float) -> None:
        if not hasattr(stores, "store"):
            stores.store = open_agent_store(url)
            opened.append(stores.store)
        token = token_of(number)
        try:
            if kind == "report":
                stores.store.report(token, report(sequence, num_steps=10 * sequence), at=_now())
            else:
                stores.store.poll(token, 0, at=_now())
        except StoreError as error:
            with lock:
                calls.failures[f"{type(error).__name__}: {error}"[:80]] += 1
        with lock:
            calls.latencies[kind].append(time.monotonic() - begin - at_s)

    pause = threading.Event()
    with ThreadPoolExecutor(THREADS) as pool:
        for kind, at_s in due:
            pause.wait(max(begin + at_s - time.monotonic(), 0.0))
            turn = turns[kind]
            turns[kind] += 1
            pool.submit(call, kind, 1 + turn % agents, 1 + turn // agents, at_s)
    for store in opened:
        store.close()
    return calls


@contextlib.contextmanager
def pooled(server: PostgresServer) -> Iterator[tuple[Pooler, list[str], dict[str, str]]]:
    """Run PgBouncer in front of `server`; give it, and what leads pgbench to it.

    Raises `PgBouncerMissingError`.
    """
    server.sql(f"ALTER ROLE {LOGIN} PASSWORD '{_PASSWORD}'")
    with running_pgbouncer(server, "pollux", {LOGIN: server.secret_of(LOGIN)}) as pooler:
        yield (
            pooler,
            ["-h", "127.0.0.1", "-p", str(pooler.port)],
            {"PGPASSWORD": _PASSWORD, "PGSSLMODE": "require"},
        )


def through_pgbench(
    server: PostgresServer,
    agents: int,
    *,
    report_s: float,
    poll_s: float,
    for_s: float,
    where: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Calls:
    """Let pgbench call the two functions with the login that jobs share.

    Without `where` and `environment`, which lead to a pooler, each call is a connection to the server; with
    them, each agent keeps one to the pooler.

    It begins calls at the wanted rate whether or not those before have ended, each job's as often as the
    others'. Its log has the times at which each call was due and ended.
    """
    text = report_json(report(1)).replace("'", "''")
    sequence = '"sequence":1,'
    assert json.loads(text)["sequence"] == 1
    assert sequence in text
    clients = agents if where else CLIENTS
    job = f"\\set n :n + 1\n\\set job 1 + mod(:client_id + :n * {clients}, {agents})\n"
    # As `token_of` has it.
    asked = "'1001-' || encode(sha256(convert_to('token of job ' || :job, 'UTF8')), 'hex')"
    # A report's number need only grow within its job: the milliseconds do.
    numbered = "'\"sequence\":' || floor(extract(epoch FROM clock_timestamp()) * 100)::bigint || ','"
    rate = agents / report_s + agents / poll_s
    calls_each = round(for_s * rate / clients)  # not by time, of which many clients need some to connect
    how = ["--no-vacuum", "-D", "n=0", "-c", str(clients), "-j", "2"]
    where = [*where] if where else ["--connect", "-h", str(server.folder)]
    with tempfile.TemporaryDirectory(prefix="pollux-bench-") as folder:
        scripts = {
            "report": f"{job}SELECT pollux_report({asked}, replace('{text}', '{sequence}', {numbered}));\n",
            "poll": f"{job}SELECT pollux_poll({asked}, 0);\n",
        }
        weights = {"report": 1000, "poll": round(1000 * report_s / poll_s)}
        files = []
        for name, script in scripts.items():
            (Path(folder) / f"{name}.sql").write_text(script)
            files += ["-f", f"{folder}/{name}.sql@{weights[name]}"]
        done = subprocess.run(
            [
                server.bin_dir / "pgbench", *how, "-R", f"{rate:.3f}", "-t", str(calls_each), "--log",
                "--log-prefix", f"{folder}/log", *files, *where, "-U", LOGIN, "pollux",
            ],
            capture_output=True,
            text=True,
            timeout=for_s + 300,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        calls = Calls()
        names = list(scripts)
        for log in Path(folder).glob("log*"):
            for line in log.read_text().splitlines():
                parts = line.split()
                if parts[2].isdigit():
                    calls.latencies[names[int(parts[3])]].append(int(parts[2]) / 1e6)
                else:
                    calls.failures[parts[2]] += 1
        for line in done.stderr.splitlines():
            if "ERROR" in line:
                calls.failures[line[:160]] += 1
    if done.returncode or not calls.count:
        raise SystemExit(f"pgbench failed: {done.stderr[-800:]}")
    return calls
