from __future__ import annotations

import dataclasses
import os
import signal
import uuid
from pathlib import Path

import pytest

from pollux_slurm.system.process_control import (
    ProcessRecord,
    identify,
    is_running,
    processes_with_environ,
    send_signal,
    spawn,
    stop_all,
)
from tests.waiting import wait_until


def started(tmp_path: Path, script: str, **environ: str) -> ProcessRecord:
    path = {"PATH": os.environ["PATH"]}
    return spawn("a", ["/bin/sh", "-c", script], environ=path | environ, output=tmp_path / "out")


def test_that_a_process_is_started_in_its_own_session_and_stopped(tmp_path: Path) -> None:
    record = started(tmp_path, "echo $MARK; echo oops >&2; exec sleep 600", MARK="hello")
    wait_until(lambda: "oops" in (tmp_path / "out").read_text(), timeout_s=120, what="its output")
    assert (tmp_path / "out").read_text() == "hello\noops\n"
    assert os.getsid(record.pid) == record.pid
    assert is_running(record)
    assert stop_all([record], term_timeout_s=5) == ()
    assert not is_running(record)


def test_that_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    record = started(tmp_path, "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    wait_until(lambda: "ready" in (tmp_path / "out").read_text(), timeout_s=120, what="its trap")
    assert stop_all([record], term_timeout_s=0.2) == ()
    assert not is_running(record)


def test_that_one_that_ended_and_was_not_reaped_is_not_running(tmp_path: Path) -> None:
    record = started(tmp_path, "exit 3")
    wait_until(lambda: not is_running(record), timeout_s=120, what="its end")
    assert not send_signal(record, signal.SIGTERM)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_that_another_process_with_the_same_id_is_not_signalled(
    tmp_path: Path, change: dict[str, object]
) -> None:
    record = started(tmp_path, "exec sleep 600")
    stale = dataclasses.replace(record, **change)  # type: ignore[arg-type]
    assert not is_running(stale)
    assert not send_signal(stale, signal.SIGKILL)
    assert stop_all([stale], term_timeout_s=1) == ()
    assert is_running(record)
    stop_all([record], term_timeout_s=5)


def test_that_open_files_are_not_inherited(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    record = started(tmp_path, "exec sleep 600")
    os.close(writing)
    assert os.read(reading, 1) == b""  # the end of the pipe: nobody else holds it open
    os.close(reading)
    stop_all([record], term_timeout_s=5)


def test_that_processes_are_found_by_their_environment(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    both = started(tmp_path, "exec sleep 600", MARK=mark, ALSO="x")
    one = started(tmp_path, "exec sleep 600", MARK=mark)
    other = started(tmp_path, "exec sleep 600", MARK=mark + "x", ALSO="x")

    def found(*present: str) -> set[tuple[int, str]]:
        return {(record.pid, record.name) for record in processes_with_environ({"MARK": mark}, present)}

    # Until then each is still the shell that becomes it.
    wanted = {(both.pid, "sleep"), (one.pid, "sleep")}
    wait_until(lambda: found() == wanted, timeout_s=120, what="both to show their environment")
    assert found("ALSO") == {(both.pid, "sleep")}
    stop_all([both, one, other], term_timeout_s=5)


def test_that_a_free_process_id_has_no_record() -> None:
    assert identify("x", 2**22 + 1) is None
    me = identify("me", os.getpid())
    assert me is not None
    assert is_running(me)
