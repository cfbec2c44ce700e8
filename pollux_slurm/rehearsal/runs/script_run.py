"""One run of the script: start it with `pollux run`, and stop it as a cluster would."""

from __future__ import annotations

import contextlib
import enum
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pollux_slurm.agent.exit_codes import STOPPED_BY_SIGTERM
from pollux_slurm.agent.rehearsal_protocol import (
    NO_EPOCH,
    RUN_PLAN_VARIABLE,
    RunPlan,
    Stop,
    StopMethod,
    StopMoment,
    events_file,
)
from pollux_slurm.json_texts import parse_json
from pollux_slurm.launch.node.watched_processes import die_with_parent

Event = Mapping[str, Any]

# Not `python -m`: that would import modules from the working directory, from the user's own files.
_POLLUX_PROGRAM = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); from pollux_slurm.cli.app import main; main()"
)
_INHERITED_PREFIXES = ("SLURM_", "SLURMD_", "POLLUX_")
_PLAN_FILE = "run-plan.json"
_KILL_WAIT_S = 30.0
_STALL_S = 60.0
_POLL_S = 0.05


class RunOutcome(enum.Enum):
    """How a run ended. `OUT_OF_TIME`: it was stopped at the end of the rehearsal's time.

    `REGROUPED`: it went on as the next one, with other processes. `OUT_OF_MEMORY`: `pollux run` has started
    the next one, with smaller micro-batches.
    """

    STOPPED = "stopped"
    REGROUPED = "regrouped"
    OUT_OF_MEMORY = "out of memory"
    FINISHED = "finished"
    FAILED = "failed"
    HUNG = "hung"
    OUT_OF_TIME = "out of time"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRun:
    """One run of the script that has ended, with the events of each rank; `ended_at` is as `time.time()`.

    What was regrouped, or started again for a lack of memory, counts as several runs, with the exit code,
    log and times of the whole.
    """

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
    regroups: Sequence[Stop] = (),
    out_of_memory: Stop | None = None,
    repeats: bool = False,
    reverses: bool = False,
) -> tuple[ScriptRun, ...]:
    """Run `command` once, for `limit_s` at most. Runs with the same `chain` folder resume from each other.

    Returns a run, and one more for each of `regroups` that was carried out, or for which a process was
    started that failed before it could join, and for each start after a lack of memory. With `repeats` it
    draws the random numbers that the run before would have drawn, with `reverses` it adds up in another
    order. All its processes end, also when `raise_if_interrupted`, which is called repeatedly, raises.
    """
    folder = chain / f"run-{number}"
    folder.mkdir(parents=True)
    log = folder / "output.log"
    RunPlan(
        folder=folder,
        varies_batch=varies_batch,
        stop=stop,
        regroups=tuple(regroups),
        out_of_memory=out_of_memory,
        repeats=chain / f"run-{number - 1}" if repeats else None,
        reverses=reverses,
    ).write(folder / _PLAN_FILE)
    options = [f"--nproc-per-node={num_processes}", "--kill-after=2", *["--in-place"] * bool(regroups)]
    started = time.monotonic()
    process = _start(["run", *options, "--", *command], environ, number, chain, log)
    try:
        sigterm_at, has_stalled = _watch(process, folder, started + limit_s, progress, raise_if_interrupted)
    finally:
        _end(process)
    now = time.monotonic()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    kinds = {event["kind"] for file in folder.glob("events-*.jsonl") for event in _read(file)}
    run = ScriptRun(
        number=number,
        num_processes=num_processes,
        stop=stop,
        varies_batch=varies_batch,
        outcome=RunOutcome.HUNG
        if has_stalled
        else outcome_of(code, kinds, got_sigterm=sigterm_at is not None),
        exit_code=code,
        wall_s=now - started,
        ended_at=time.time(),
        events=_events(folder, 0, num_processes),
        log=log,
    )
    return tuple(
        start
        for part in _by_generation(run, folder, regroups)
        for start in split_by_start(part, out_of_memory)
    )


def _start(
    arguments: Sequence[str], environ: Mapping[str, str], number: int, chain: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start `pollux` as run `number` of a chain, with the variables of no other job; it prints to `log`."""
    own = {key: value for key, value in environ.items() if not key.startswith(_INHERITED_PREFIXES)}
    own |= {
        RUN_PLAN_VARIABLE: str(log.with_name(_PLAN_FILE)),
        "POLLUX_STRICT": "1",
        "POLLUX_AGENT_POLL_INTERVAL_S": str(_POLL_S),
        "POLLUX_CHECKPOINT_DIR": str(chain / "job"),
        "SLURM_RESTART_COUNT": str(number),
        # Else output before a kill is lost.
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-c", _POLLUX_PROGRAM, *arguments],
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )


def _events(folder: Path, generation: int, num_processes: int) -> tuple[tuple[Event, ...], ...]:
    files = (events_file(folder, generation=generation, rank=rank) for rank in range(num_processes))
    return tuple(tuple(_read(file)) for file in files)


def _by_generation(run: ScriptRun, folder: Path, regroups: Sequence[Stop]) -> Iterator[ScriptRun]:
    """Yield a run of each generation of a run's processes. The last one has its outcome.

    Processes that failed before they could join are a run that failed.
    """
    current = run
    for generation, planned in enumerate(regroups, start=1):
        events = _events(folder, generation, planned.num_processes)
        if events[0]:
            # A regroup may have waited for the end of its epoch.
            (*_, left) = (event for event in current.of("snapshot") if event["moment"] == "checkpoint")
            moment = StopMoment.STEP if left["in_loop"] else StopMoment.EPOCH_END
            yield replace(current, stop=replace(planned, moment=moment), outcome=RunOutcome.REGROUPED)
            current = replace(run, num_processes=planned.num_processes, events=events)
        elif current.first("regroup_failed") is not None:
            yield replace(current, stop=planned)
            yield replace(run, num_processes=planned.num_processes, events=events, outcome=RunOutcome.FAILED)
            return
        else:
            break
    yield current


def split_by_start(run: ScriptRun, planned: Stop | None) -> Iterator[ScriptRun]:
    """Yield a run of each start of a run's processes, which `pollux run` has made after a lack of memory."""
    starts = max((_num_starts(events) for events in run.events), default=0)
    for number in range(max(starts, 1)):
        events = tuple(_of_start(events, number) for events in run.events)
        if number == starts - 1 or starts < 2:
            yield replace(run, events=events)
        else:
            stop = planned or Stop(moment=StopMoment.STEP, method=StopMethod.OUT_OF_MEMORY, epoch=NO_EPOCH)
            yield replace(run, stop=stop, outcome=RunOutcome.OUT_OF_MEMORY, events=events)


def _num_starts(events: Sequence[Event]) -> int:
    return sum(event["kind"] == "start" for event in events)


def _of_start(events: Sequence[Event], number: int) -> tuple[Event, ...]:
    """Return a process's events from one start to the next; those before the first belong to it."""
    counted = itertools.accumulate(event["kind"] == "start" for event in events)
    return tuple(event for event, count in zip(events, counted, strict=True) if max(count - 1, 0) == number)


def outcome_of(code: int, kinds: set[str], *, got_sigterm: bool) -> RunOutcome:
    """Return how a run ended, by its exit code and events; `got_sigterm`: this process sent it SIGTERM."""
    if "killed" in kinds:
        return RunOutcome.STOPPED
    is_ended_by_signal = code == STOPPED_BY_SIGTERM or (got_sigterm and code == 137)
    if "stop" in kinds and (is_ended_by_signal or (code == 0 and "finished" not in kinds)):
        return RunOutcome.STOPPED
    if code == 0:
        return RunOutcome.FINISHED
    return RunOutcome.OUT_OF_TIME if got_sigterm and is_ended_by_signal else RunOutcome.FAILED


def _watch(
    process: subprocess.Popen[bytes],
    folder: Path,
    deadline: float,
    progress: Callable[[Event], None],
    raise_if_interrupted: Callable[[], None],
) -> tuple[float | None, bool]:
    """Wait for the end; send SIGTERM when a request is confirmed or the time is up.

    Returns when SIGTERM was sent, and whether the script hung: it did not end, and wrote no event for long.
    """
    generation, seen = 0, 0
    sigterm_at: float | None = None
    last_event_at = time.monotonic()
    while not _has_ended(process):
        raise_if_interrupted()
        now = time.monotonic()
        # Of rank 0, which may be another process after a regroup.
        events, seen = read_events(events_file(folder, generation=generation, rank=0), seen)
        if not events and events_file(folder, generation=generation + 1, rank=0).exists():
            generation, seen = generation + 1, 0
        for event in events:
            last_event_at = now
            progress(event)
            is_answered = event["kind"] == "confirmed" and event["request"] is not None
            if sigterm_at is None and is_answered:
                process.send_signal(signal.SIGTERM)
                sigterm_at = now
        if sigterm_at is None and now >= deadline:
            process.send_signal(signal.SIGTERM)
            sigterm_at = now
        if sigterm_at is not None and now - sigterm_at >= _KILL_WAIT_S:
            return sigterm_at, now - last_event_at >= _STALL_S
        time.sleep(_POLL_S)
    return sigterm_at, False


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell whether the process ended, without reaping it, so that its session id is not reused."""
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill all processes that are left: `pollux run`, the training processes and their children."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while (alive := _processes_of(process.pid)) and time.monotonic() < deadline:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    process.wait()


def _processes_of(session: int) -> list[int]:
    """Return the ids of a session's processes that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # After the name, which may contain any character: state, parent, group, session.
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
            if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
                found.append(int(folder.name))
    return found


def read_events(file: Path, offset: int) -> tuple[list[Event], int]:
    """Return the complete lines from `offset` on, and the offset of the next one."""
    if not file.exists():
        return [], offset
    with file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read()
    whole = data[: data.rfind(b"\n") + 1]
    return list(_decoded(whole.splitlines())), offset + len(whole)


def _decoded(lines: Sequence[bytes]) -> Iterator[Event]:
    """Yield the events of lines; a process that is killed, or a full disk, may leave a part of one."""
    for line in lines:
        with contextlib.suppress(ValueError):
            event = parse_json(line)
            if isinstance(event, dict) and "kind" in event:
                yield event


def _read(file: Path) -> list[Event]:
    return read_events(file, 0)[0]
