"""Play one stage of a rehearsal: run the script by `pollux run`, and stop it as a cluster would."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.agent.launch.node_processes import die_with_parent
from pollux_slurm.agent.rehearsal_protocol import RUN_PLAN_VARIABLE, RunPlan, Stop

Event = Mapping[str, Any]

# Not `python -m`: that would look for modules among the user's own files first.
_RUN = "import sys; sys.path[:1] == [''] and sys.path.pop(0); from pollux_slurm.cli.app import main; main()"
_FOREIGN = ("SLURM_", "SLURMD_", "POLLUX_")
_KILL_WAIT_S = 30.0
_STALL_S = 60.0
_LOOK_EVERY_S = 0.05


class RunOutcome(enum.Enum):
    """How a run ended. `OUT_OF_TIME`: it was stopped because the rehearsal's time was up."""

    STOPPED = "stopped"
    FINISHED = "finished"
    FAILED = "failed"
    HUNG = "hung"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """One run of the script. `events` are those of each rank in order; `ended_at` is as `time.time()`."""

    number: int
    num_processes: int
    stop: Stop | None
    varies_batch: bool
    outcome: RunOutcome
    exit_code: int
    wall_s: float
    ended_at: float
    events: tuple[tuple[Event, ...], ...]
    log: Path

    def of(self, *kinds: str, rank: int = 0) -> Iterator[Event]:
        """Yield a rank's events of some kinds."""
        if rank < len(self.events):
            yield from (event for event in self.events[rank] if event["kind"] in kinds)

    def first(self, kind: str) -> Event | None:
        """Return rank 0's first event of a kind."""
        return next(self.of(kind), None)

    def tail(self, num_lines: int) -> str:
        """Return the last lines that the script has printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])


def run_script(
    command: Sequence[str],
    *,
    number: int,
    num_processes: int,
    stop: Stop | None,
    varies_batch: bool,
    chain: Path,
    environ: Mapping[str, str],
    limit_s: float,
    progress: Callable[[Event], None],
    raise_if_interrupted: Callable[[], None],
) -> ScriptRun:
    """Run `command` once, for `limit_s` at most. Runs with one `chain` folder go on from each other.

    None of its processes is left, also where `raise_if_interrupted`, called now and then, raises.
    """
    folder = chain / f"run-{number}"
    folder.mkdir(parents=True)
    stage_file, log = folder / "stage.json", folder / "output.log"
    RunPlan(folder=folder, varies_batch=varies_batch, stop=stop).write(stage_file)
    own = {key: value for key, value in environ.items() if not key.startswith(_FOREIGN)}
    own |= {
        RUN_PLAN_VARIABLE: str(stage_file),
        "POLLUX_STRICT": "1",
        "POLLUX_AGENT_POLL_INTERVAL_S": str(_LOOK_EVERY_S),
        "POLLUX_CHECKPOINT_DIR": str(chain / "job"),
        "SLURM_RESTART_COUNT": str(number),
        # What was printed before a kill is to be seen.
        "PYTHONUNBUFFERED": "1",
    }
    arguments = ["run", f"--nproc-per-node={num_processes}", "--kill-after=2", "--", *command]
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _RUN, *arguments],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    try:
        asked_at, has_stalled = _watch(process, folder, started + limit_s, progress, raise_if_interrupted)
    finally:
        _end(process)
    now = time.monotonic()
    events = tuple(tuple(_read(folder / f"events-{rank}.jsonl")) for rank in range(num_processes))
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    told = {event["kind"] for rank in events for event in rank}
    return ScriptRun(
        number=number,
        num_processes=num_processes,
        stop=stop,
        varies_batch=varies_batch,
        outcome=RunOutcome.HUNG if has_stalled else _outcome(code, told, was_asked=asked_at is not None),
        exit_code=code,
        wall_s=now - started,
        ended_at=time.time(),
        events=events,
        log=log,
    )


def _outcome(code: int, told: set[str], *, was_asked: bool) -> RunOutcome:
    """Return how a run ended that exited with `code`; `was_asked`: it got SIGTERM from outside."""
    if "killed" in told:
        return RunOutcome.STOPPED
    is_ended_by_signal = code == 143 or (was_asked and code == 137)
    if "stop" in told and (is_ended_by_signal or (code == 0 and "finished" not in told)):
        return RunOutcome.STOPPED
    if code == 0:
        return RunOutcome.FINISHED
    return RunOutcome.OUT_OF_TIME if was_asked and is_ended_by_signal else RunOutcome.FAILED


def _watch(
    process: subprocess.Popen[bytes],
    folder: Path,
    deadline: float,
    progress: Callable[[Event], None],
    raise_if_interrupted: Callable[[], None],
) -> tuple[float | None, bool]:
    """Wait for the end; send SIGTERM when a request is confirmed or the time is up.

    Returns when SIGTERM was sent, and whether it had to be killed though it had told of nothing for long.
    """
    file, seen = folder / "events-0.jsonl", 0
    asked_at: float | None = None
    told_at = time.monotonic()
    while not _has_ended(process):
        raise_if_interrupted()
        now = time.monotonic()
        events, seen = _read_on(file, seen)
        for event in events:
            told_at = now
            progress(event)
            is_answered = event["kind"] == "confirmed" and event["request"] is not None
            if asked_at is None and is_answered:
                process.send_signal(signal.SIGTERM)
                asked_at = now
        if asked_at is None and now >= deadline:
            process.send_signal(signal.SIGTERM)
            asked_at = now
        if asked_at is not None and now - asked_at >= _KILL_WAIT_S:
            return asked_at, now - told_at >= _STALL_S
        time.sleep(_LOOK_EVERY_S)
    return asked_at, False


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Look without reaping: until then the number of its session cannot belong to another."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let no process outlive the run: `pollux run`, the training processes, or what these have started."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while (alive := _members(process.pid)) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_EVERY_S)
    process.wait()


def _members(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything: state, parent, group, session.
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
                found.append(int(folder.name))
    return found


def _read_on(file: Path, offset: int) -> tuple[list[Event], int]:
    """Return the whole lines from `offset` on, and where the next begins."""
    if not file.exists():
        return [], offset
    with file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


def _read(file: Path) -> list[Event]:
    return _read_on(file, 0)[0]
