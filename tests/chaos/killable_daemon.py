"""The daemon as `pollux daemon` runs it, except that it kills itself at a call that a file names.

The file $CHAOS_KILL_FILE holds points, one a line, such as `before advance requeued` or `after scontrol
release`. When one is reached, it is written to `<file>.hit`, and the process sends itself
SIGKILL: nothing is flushed, closed or released.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pollux_slurm.cli import main
from pollux_slurm.model import ReallocationStep
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.commands.job_commands import SlurmJobCommands
from pollux_slurm.store.sql_store import SqlGenerations, SqlJobs, SqlJournal, SqlRounds

VARIABLE = "CHAOS_KILL_FILE"


def arm(file: Path, points: Iterable[str]) -> None:
    """Make the daemon die at the next of `points`."""
    draft = file.with_suffix(".new")
    draft.write_text("\n".join(points), encoding="utf-8")
    draft.replace(file)


def disarm(file: Path) -> None:
    """Remove all points."""
    file.unlink(missing_ok=True)


def taken_hit(file: Path) -> str | None:
    """Return the point at which a daemon died since the last call, None if it did not."""
    hit = file.with_suffix(".hit")
    try:
        point = hit.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    hit.unlink()
    return point


def make_killable(owner: type, name: str, label: Callable[..., str], file: Path) -> None:
    """Make calls of a method check for its points in `file`."""
    method = getattr(owner, name)

    def die_at(point: str) -> None:
        with contextlib.suppress(OSError):  # not armed, or not any more
            if point in file.read_text(encoding="utf-8").splitlines():
                file.with_suffix(".hit").write_text(point, encoding="utf-8")
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = label(*args, **kwargs)
        die_at(f"before {place}")
        answer = method(self, *args, **kwargs)
        die_at(f"after {place}")
        return answer

    setattr(owner, name, call)


def _advance(_number: int, step: ReallocationStep, **_: Any) -> str:
    return f"advance {step.value}"


def _command(_job_id: str, program: str, *arguments: str) -> str:
    return f"{program} {arguments[0]}"


def run(file: Path) -> None:
    """Run the daemon with this process's arguments."""
    make_killable(SqlJournal, "advance", _advance, file)
    make_killable(SqlJournal, "plan", lambda *_, **__: "plan", file)
    make_killable(SqlJournal, "request_regroup", lambda *_, **__: "regroup", file)
    make_killable(SqlGenerations, "end", lambda *_, **__: "end of generation", file)
    make_killable(SqlRounds, "record", lambda *_, **__: "record", file)
    make_killable(SqlJobs, "register", lambda *_, **__: "register", file)
    make_killable(CommandClient, "_change", _command, file)
    make_killable(SlurmJobCommands, "requeue_hold", lambda *_: "scontrol requeuehold", file)
    make_killable(SlurmJobCommands, "release", lambda *_: "scontrol release", file)
    make_killable(SlurmJobCommands, "cancel", lambda *_: "scancel", file)
    main()


if __name__ == "__main__":
    run(Path(os.environ[VARIABLE]))
