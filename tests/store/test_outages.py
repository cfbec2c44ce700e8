"""Full disks and killed processes: acknowledged writes stay, and no client crashes."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.errors import StoreError, StoreUnavailable
from pollux_slurm.store import open_agent_store, open_store
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Report, Store
from tests.store.builders import (
    Step,
    advance,
    at,
    confirmation,
    decision_of,
    observation,
    plan,
    problem_of,
    registration,
    report,
    token_of,
)
from tests.store.connections import await_ends, connections
from tests.store.postgres import PostgresMissingError, PostgresServer, postgres_of_test
from tests.waiting import wait_until

can_mount = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount a disk of so many megabytes at `folder`; skip where root may not mount."""
    folder.mkdir(exist_ok=True)
    size = f"size={megabytes}m"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False, timeout=120)
    if done.returncode:
        pytest.skip("this machine lets nobody mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=120)


def fill_up(store: Store, words: str = "is full: make room") -> tuple[int, int]:
    """Report and decide until the disk is full; return what was acknowledged: (reports, rounds).

    The error must be one that is worth trying again, at each of several tries, and have `words`.
    """
    reports = rounds = 0
    numbers = list(range(1, 31))
    for turn in itertools.count(1):
        try:
            store.agent.report(token_of(1), report(reports + 1), at=at(turn))
            reports += 1
            store.rounds.record(problem_of(numbers), decision_of(numbers), shadow=False, at=at(turn))
            rounds += 1
        except StoreUnavailable as error:
            message = str(error)
            break
    assert words in message
    for _ in range(3):
        with contextlib.suppress(StoreUnavailable):
            store.rounds.record(problem_of(numbers), decision_of(numbers), shadow=False, at=at(turn))
            rounds += 1
    return reports, rounds


def check_all(store: Store, reports: int, rounds: int) -> None:
    """Check that what was acknowledged is stored, and that more can be written."""
    assert len(store.history.samples("1")) == reports
    problem, decision = store.rounds.problem()
    assert (problem, decision) == (problem_of(list(range(1, 31))), decision_of(list(range(1, 31))))
    store.agent.report(token_of(1), report(reports + 1), at=at(10_000))
    last = store.rounds.record(problem_of([]), decision_of([]), shadow=True, at=at(10_001))
    assert last > rounds
    assert len(store.history.samples("1")) == reports + 1


def test_that_a_full_sqlite_file_loses_nothing_acknowledged(store_url: str) -> None:
    store = open_store(store_url)
    engine = store.database.engine  # type: ignore[attr-defined]
    limits = {"pages": 0}

    def bound(connection, _record) -> None:  # type: ignore[no-untyped-def]
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        limits["pages"] = limits["pages"] or pages + 120
        connection.execute(f"PRAGMA max_page_count = {limits['pages']}")

    event.listen(engine, "connect", bound)
    engine.dispose()
    store.jobs.register([registration(n) for n in range(1, 31)], at=at(0))
    reports, rounds = fill_up(store)
    assert reports > 1
    assert store.jobs.active() != (), "reading goes on"
    event.remove(engine, "connect", bound)
    engine.dispose()  # somebody made room
    check_all(store, reports, rounds)
    store.close()


@can_mount
def test_that_a_full_disk_under_sqlite_loses_nothing_acknowledged(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 3) as disk:
        store = open_store(f"sqlite:///{disk / 'pollux.db'}", create=True)
        store.jobs.register([registration(n) for n in range(1, 31)], at=at(0))
        ballast = disk / "ballast"
        ballast.write_bytes(b"\0" * 2**20)
        reports, rounds = fill_up(store)
        ballast.unlink()
        check_all(store, reports, rounds)
        store.close()


@can_mount
def test_that_a_full_disk_under_postgresql_loses_nothing_acknowledged(postgres: PostgresServer) -> None:
    """Only the tables are on a small disk: without room for its log the server would stop."""
    with small_disk(postgres.folder / "disk", 24) as disk:
        os.chown(disk, *owner_of(postgres.folder))
        postgres.sql(f"CREATE TABLESPACE small LOCATION '{disk}'")
        postgres.sql("CREATE DATABASE small TABLESPACE small")
        try:
            store = open_store(postgres.url("small"), create=True)
            store.jobs.register([registration(n) for n in range(1, 31)], at=at(0))
            ballast = disk / "ballast"
            ballast.write_bytes(b"\0" * (free_bytes(disk) - 2**20))
            reports, rounds = fill_up(store)
            ballast.unlink()
            check_all(store, reports, rounds)
            store.close()
        finally:
            postgres.drop_database("small")
            postgres.sql("DROP TABLESPACE small")


@can_mount
# A minute: the server goes down and recovers. What its tables do on a full disk is tested above.
@pytest.mark.full
def test_that_a_full_disk_under_postgresqls_log_loses_nothing_acknowledged() -> None:
    """Without room for its log the server stops; it starts again once there is room."""
    with (
        postgres_of_test("--wal-segsize=1", min_wal_size="2MB", fsync="off") as server,
        small_disk(server.folder / "log_disk", 12) as disk,
    ):
        store = open_store(server.create_database("store"), create=True)
        store.jobs.register([registration(n) for n in range(1, 31)], at=at(0))
        server.stop()
        log = server.folder / "data" / "pg_wal"
        shutil.copytree(log, disk / "pg_wal")
        shutil.rmtree(log)
        log.symlink_to(disk / "pg_wal")
        for path in (disk, disk / "pg_wal", *(disk / "pg_wal").rglob("*")):
            os.chown(path, *owner_of(server.folder))
        server.start()
        wait_until(lambda: is_there(store), timeout_s=120, what="the store")
        (disk / "ballast").write_bytes(b"\0" * (free_bytes(disk) - 2**19))
        reports, rounds = fill_up(store, "")
        assert "PANIC" in (server.folder / "log").read_text()
        (disk / "ballast").unlink()
        with contextlib.suppress(PostgresMissingError):
            server.stop()  # where it tried to recover, and waits
        # Its last processes may outlive it briefly, and another server cannot start until they end.
        wait_until(lambda: starts(server), timeout_s=120, what="the server to start")
        wait_until(lambda: is_there(store), timeout_s=120, what="the store")
        assert rounds > 0
        check_all(store, reports, rounds)
        store.close()


def starts(server: PostgresServer) -> bool:
    try:
        server.start()
    except PostgresMissingError:
        return False
    return True


def is_there(store: Store) -> bool:
    try:
        return store.jobs.active() != ()
    except StoreUnavailable:
        return False


def owner_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


DAEMON = """
import sys
from tests.store.builders import *
from pollux_slurm.store import open_store
store = open_store(sys.argv[1])
step = int(sys.argv[2])
turn = 0
while True:
    turn += 1
    gpus = [{"n0": turn % 4 + 1}, {"n1": 1}]
    store.jobs.observe([observation(n, gpus=g) for n, g in zip((1, 2), gpus)], at=at(turn))
    number = store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(turn))
    moved = plan(store, 1, seconds=turn, round_id=number)
    for where in (Step.REQUEUED, Step.RUNNING, Step.CONFIRMED):
        advance(store, moved, (where, turn))
    print(number, moved.id, flush=True)
"""


@pytest.mark.parametrize("after", [1, 4])
def test_that_a_daemon_killed_between_two_statements_leaves_whole_rounds(
    any_store_url: str, any_store: Store, after: int
) -> None:
    any_store.jobs.register([registration(1), registration(2)], at=at(0))
    others = connections(any_store_url)
    process = subprocess.Popen(
        [sys.executable, "-c", DAEMON, any_store_url, str(after)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(after):
        acknowledged = process.stdout.readline().split()
    process.send_signal(signal.SIGKILL)
    acknowledged = (process.stdout.read().splitlines() or [" ".join(acknowledged)])[
        -1
    ].split() or acknowledged
    process.wait(timeout=120)
    process.stdout.close()
    await_ends(any_store_url, but=others)
    last_round, last_move = int(acknowledged[0]), int(acknowledged[-1])
    moves = any_store.journal.reallocations("1")
    assert {move.id for move in moves} >= set(range(1, last_move + 1))
    assert all(move.step is Step.CONFIRMED for move in moves if move.id <= last_move)
    for move in moves:
        steps = [step for step, _ in move.times]
        assert steps == [Step.PLANNED, Step.REQUEUED, Step.RUNNING, Step.CONFIRMED][: len(steps)]
        assert move.target.num_gpus == 4, "a plan comes with its nodes, or not at all"
    assert any_store.rounds.problem() == (problem_of([1, 2]), decision_of([1, 2]))
    assert any_store.rounds.problem(last_round)[0] == problem_of([1, 2])
    for move in any_store.journal.open_reallocations():
        assert any_store.journal.advance(move.id, Step.ROLLED_BACK, expected=move.step, at=at(999))
    assert any_store.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(999)) > last_round


def test_that_agent_and_rounds_continue_over_a_server_restart(
    postgres: PostgresServer, postgres_store: Store, postgres_url: str
) -> None:
    """A real reporter of a running job, with the jobs' login; it confirms a checkpoint during the outage."""
    store = postgres_store
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(1))

    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        if checkpoint is not None:
            return confirmation(checkpoint.request_id, sequence=sequence)
        return report(sequence)

    reporter = Reporter(
        open_store=lambda: open_agent_store(postgres.url("store", login="jobs")),
        token=token_of(1),
        run_number=0,
        compose=compose,
        report_interval_s=0.05,
        poll_interval_s=0.05,
    )
    reporter.start()
    try:
        wait_until(lambda: len(store.history.samples("1")) > 2, timeout_s=120, what="reports")
        planned = plan(store, 1)
        advance(store, planned, (Step.CHECKPOINT_REQUESTED, 21))
        wait_until(lambda: reporter.checkpoint_request == planned.id, timeout_s=120, what="the request")
        before = store.history.samples("1")
        postgres.stop()
        try:
            reporter.confirm(CheckpointConfirmation(request_id=planned.id, blocked_s=0.5, size_bytes=4096))
            with pytest.raises(StoreError):
                store.jobs.active()
            assert not reporter.is_confirmed(planned.id)
        finally:
            postgres.start()
        wait_until(lambda: reporter.is_confirmed(planned.id), timeout_s=120, what="the confirmation")
        (moved,) = store.journal.open_reallocations()
        assert moved.step is Step.CHECKPOINTED
        assert store.history.samples("1")[: len(before)] == before
        assert len(store.jobs.active()) == 1
        assert any(thread.name == "pollux-reporter" for thread in threading.enumerate())
    finally:
        reporter.close(timeout_s=120)
