"""The protocol between `pollux rehearse` and the script that it runs: a run plan, and events.

The script's processes write events, as lines of JSON, into the plan's folder. Rank 0's reporter uses a
`RehearsalStore` instead of a database, so requests and confirmations take the same way as in a job.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

from pollux_slurm.errors import ConfigError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.store.contract.interface import Move, Poll, Report

RUN_PLAN_VARIABLE = "POLLUX_REHEARSAL"
"""The environment variable with the path of the run plan; only `pollux rehearse` sets it."""

NO_EPOCH = -1
"""The epoch number of loops outside of `remaining_epochs_until`."""

_REQUEST_ID = 1
_FLUSH_EVERY_S = 0.2


class StopMoment(str, Enum):
    """When a run is stopped, or regrouped.

    `STEP` is the first step boundary at or after a position in a loop. `AFTER_LOOP` is between a loop's last
    step and the end of the epoch: once its states are saved, the run is killed, as Slurm does after KillWait.
    `EPOCH_END` is the boundary at which an epoch is counted.
    """

    STEP = "step"
    AFTER_LOOP = "after_loop"
    EPOCH_END = "epoch_end"


class StopMethod(str, Enum):
    """How a run is stopped: by a checkpoint request, then SIGTERM once confirmed, or by SIGTERM alone.

    With `REGROUP` it is not stopped: processes join and leave while it trains. `OUT_OF_MEMORY` is an error
    that each process's model raises: `pollux run` starts the script again, with smaller micro-batches.
    """

    REQUEST = "request"
    SIGTERM = "sigterm"
    REGROUP = "regroup"
    OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A planned stop in `epoch`, at `position` (in examples) of the loop number `loop` over `loader`.

    A `STEP` without a loader is the first step after `epoch`; outside of epochs, after the loop with that
    number. After a `REGROUP` there are `num_processes`, without those that had the ranks `leaves`.
    """

    moment: StopMoment
    method: StopMethod
    epoch: int
    loader: str = ""
    loop: int = 0
    position: int = 0
    num_processes: int = 0
    leaves: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What one run does. With `varies_batch` the batch size changes every few steps, else it stays M0.

    `regroups` come before `stop`, one after the other, and so does `out_of_memory`. With `repeats`, the
    folder of the run before, random numbers go on as there. With `reverses` the examples of each micro-batch
    are in the reverse order, so that sums over them are rounded otherwise.
    """

    folder: Path
    varies_batch: bool
    stop: Stop | None
    regroups: tuple[Stop, ...] = ()
    out_of_memory: Stop | None = None
    repeats: Path | None = None
    reverses: bool = False

    def write(self, path: Path) -> None:
        """Write the plan to a file."""
        repeats = None if self.repeats is None else str(self.repeats)
        data = {**asdict(self), "folder": str(self.folder), "repeats": repeats}
        path.write_text(json.dumps(data), encoding="utf-8")


def read_run_plan(environ: Mapping[str, str]) -> RunPlan | None:
    """Return the run plan that the environment names; None outside of a rehearsal."""
    name = environ.get(RUN_PLAN_VARIABLE)
    if not name:
        return None
    try:
        data = parse_json(Path(name).read_text(encoding="utf-8"))
        return RunPlan(
            folder=Path(data["folder"]),
            varies_batch=bool(data["varies_batch"]),
            stop=None if data["stop"] is None else _stop(data["stop"]),
            regroups=tuple(map(_stop, data["regroups"])),
            out_of_memory=None if data["out_of_memory"] is None else _stop(data["out_of_memory"]),
            repeats=None if data["repeats"] is None else Path(data["repeats"]),
            reverses=bool(data["reverses"]),
        )
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{RUN_PLAN_VARIABLE}={name}: {error}; it is set by `pollux rehearse` alone"
        ) from None


def _stop(data: Mapping[str, Any]) -> Stop:
    enums = {"moment": StopMoment(data["moment"]), "method": StopMethod(data["method"])}
    return Stop(**{**data, **enums, "leaves": tuple(data["leaves"])})


def events_file(folder: Path, *, generation: int, rank: int) -> Path:
    """Return the file with the events of a rank: of the run's first processes, or after so many regroups."""
    return folder / f"events-{generation}-{rank}.jsonl"


class EventLog:
    """The files of one process's events, a line of JSON each. Thread-safe.

    A process that is started again, after a lack of memory, adds to the file of the one before.
    """

    def __init__(self, folder: Path, rank: int, *, generation: int) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._generation = generation
        self._file = self._open(rank)
        self._flushed_at = time.monotonic()

    def _open(self, rank: int) -> TextIO:
        file = events_file(self._folder, generation=self._generation, rank=rank)
        return file.open("a", encoding="utf-8")

    def begin_generation(self, generation: int, rank: int) -> None:
        """Go on in another file, unless this process has waited for that generation."""
        with self._lock:
            if generation != self._generation:
                self._generation = generation
                self._file.close()
                self._file = self._open(rank)

    def write(self, kind: str, **fields: Any) -> None:
        """Write an event with the current time."""
        line = json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n"
        with self._lock:
            self._file.write(line)
            now = time.monotonic()
            if kind != "micro_batch" or now - self._flushed_at >= _FLUSH_EVERY_S:
                self._file.flush()
                self._flushed_at = now


class RehearsalStore:
    """An `AgentStore` in the script's own process, with at most one checkpoint request."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._request: int | None = None
        self._confirmed = threading.Event()

    def request_checkpoint(self) -> None:
        """Let `poll` return a checkpoint request from now on."""
        self._request = _REQUEST_ID

    def wait_for_confirmation(self, timeout_s: float) -> bool:
        """Wait until a report confirms a checkpoint; False when none does in time."""
        return self._confirmed.wait(timeout_s)

    def report(self, token: str, report: Report, *, at: datetime) -> None:
        """Write an event if the report confirms a checkpoint."""
        del token, at
        if report.checkpoint is not None:
            self._events.write("confirmed", request=report.checkpoint.request_id)
            self._confirmed.set()

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        """Return the request, if any."""
        del token, run_number, at
        return Poll(checkpoint_request=self._request)

    def move(self, token: str, request_id: int) -> Move | None:
        """Return None: no daemon has planned a move."""
        del token, request_id
        return None

    def close(self) -> None:
        """There is nothing to close."""
