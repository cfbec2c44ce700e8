"""Start long-lived processes and end exactly those, later and from another process.

The kernel reuses process ids. So each process is recorded with its id, its start time in clock ticks and the
machine's boot id, and is signalled only while all three match.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_POLL_S = 0.05
# A process may take long to end after SIGKILL: it needs the CPU, and may wait for a disk.
_KILL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """One process: `name` is chosen by the caller, `start_ticks` and `boot_id` are the kernel's."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str


def spawn(
    name: str,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    output: Path,
    error_output: Path | None = None,
) -> ProcessRecord:
    """Start `argv` in its own session, with its output appended to `output`, and do not wait for it.

    Its stderr goes to `error_output`, or to `output` as well.

    It inherits no other open file: else a lock or pipe of the caller would stay open as long as it runs.
    """
    inherited = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_inheritable(fd)]  # noqa: PTH208
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    to_stderr: tuple[Any, ...] = (os.POSIX_SPAWN_DUP2, 1, 2)
    if error_output is not None:
        to_stderr = (os.POSIX_SPAWN_OPEN, 2, str(error_output), flags, 0o644)
    pid = os.posix_spawn(
        argv[0],
        list(argv),
        dict(environ),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), flags, 0o644),
            to_stderr,
            *((os.POSIX_SPAWN_CLOSE, fd) for fd in inherited),
        ],
        setsid=True,
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE],
        setsigmask=[],
    )
    return ProcessRecord(name=name, pid=pid, start_ticks=_start_ticks(pid) or 0, boot_id=_boot_id())


def identify(name: str, pid: int) -> ProcessRecord | None:
    """Return the record of a running process; None if there is none with this id."""
    ticks = _start_ticks(pid)
    if ticks is None:
        return None
    return ProcessRecord(name=name, pid=pid, start_ticks=ticks, boot_id=_boot_id())


def is_running(record: ProcessRecord) -> bool:
    """Tell whether the recorded process still runs; a zombie does not."""
    with contextlib.suppress(ChildProcessError):  # reap it, in case this process is its parent
        os.waitpid(record.pid, os.WNOHANG)
    return record.boot_id == _boot_id() and _start_ticks(record.pid) == record.start_ticks


def send_signal(record: ProcessRecord, signum: int) -> bool:
    """Signal the recorded process; False when it has ended."""
    if not is_running(record):
        return False
    try:
        os.kill(record.pid, signum)
    except ProcessLookupError:
        return False
    return True


def stop_all(records: Iterable[ProcessRecord], *, term_timeout_s: float) -> tuple[ProcessRecord, ...]:
    """End processes with SIGTERM, then with SIGKILL; return those that are left even then."""
    alive = [record for record in records if send_signal(record, signal.SIGTERM)]
    alive = _wait_gone(alive, term_timeout_s)
    for record in alive:
        send_signal(record, signal.SIGKILL)
    return tuple(_wait_gone(alive, _KILL_TIMEOUT_S))


def processes_with_environ(wanted: Mapping[str, str], present: Iterable[str] = ()) -> list[ProcessRecord]:
    """Return the processes with these environment variables, and with `present` set to any value.

    Only processes whose environment this user may read are found.
    """
    settings = {f"{key}={value}".encode() for key, value in wanted.items()}
    names = tuple(f"{key}=".encode() for key in present)
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        record = identify("", int(entry.name))
        try:
            environ = set((entry / "environ").read_bytes().split(b"\0"))
            command = (entry / "comm").read_text(errors="replace").strip()
        except OSError:
            continue
        has_names = all(any(item.startswith(name) for item in environ) for name in names)
        if record is not None and settings <= environ and has_names:
            found.append(
                ProcessRecord(
                    name=command, pid=record.pid, start_ticks=record.start_ticks, boot_id=record.boot_id
                )
            )
    return found


def _wait_gone(records: list[ProcessRecord], timeout_s: float) -> list[ProcessRecord]:
    deadline = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() >= deadline
        records = [record for record in records if is_running(record)]
        if not records or is_last:
            return records
        time.sleep(_POLL_S)


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:  # the descriptor with which the folder was read
        return False


def _start_ticks(pid: int) -> int | None:
    """Return when the process started, None if it is gone or a zombie (field 22 of proc(5) stat)."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may contain spaces and parentheses
    if fields[0] in ("Z", "X", "x"):
        return None
    return int(fields[19])


def _boot_id() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
