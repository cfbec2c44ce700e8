"""Register the states of a training, write them as one checkpoint file, and restore them from one.

A checkpoint is what `torch.load(weights_only=True)` takes: `{"format": 2, "states": {name: plain data}}`.
Any number of replicas can read it.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from pollux_slurm.agent.checkpoints.lineage import Lineage
from pollux_slurm.errors import (
    CheckpointError,
    DamagedCheckpointError,
    DiskFullError,
    SupersededRunError,
    UsageError,
)
from pollux_slurm.text import bytes_text
from pollux_slurm.torch.checkpoint.default_names import without_own
from pollux_slurm.torch.coordination.plain_data import encode, to_plain
from pollux_slurm.torch.coordination.side_channel import SideChannel

_LOG = logging.getLogger(__name__)
_FORMAT = 2


class Checkpointable(Protocol):
    """A named part of the job's state. `sync` is called on every rank before rank 0 saves."""

    name: str

    def sync(self) -> None: ...

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """The result of writing one checkpoint. `error` is None when it is on disk, after `took_s`.

    `superseded` is the reason for which this run must not write, None when it may. With `is_disk_full`, there
    was no room for it, or there is none for the next one.
    """

    size_bytes: int = 0
    blocked_s: float = 0.0
    took_s: float = 0.0
    error: str | None = None
    superseded: str | None = None
    is_disk_full: bool = False


class Checkpointer:
    """The registered states of a training. `lineage` is None except on rank 0 with a checkpoint directory.

    A regroup begins another run, in which another rank may have it.
    `is_enabled` is True on all ranks where there is a checkpoint directory.
    """

    def __init__(
        self,
        *,
        side_channel: SideChannel[Any],
        lineage: Lineage | None,
        is_enabled: bool,
        loaded: Mapping[str, Any],
    ) -> None:
        self._side_channel, self.lineage = side_channel, lineage
        # Each as a reference, which is weak for temporary states: see `register`.
        self._states: dict[str, Callable[[], Checkpointable | None]] = {}
        self._loaded, self._saved, self._rank_0s = dict(loaded), tuple(loaded), set[str]()
        self._background: _BackgroundWrite | None = None
        self.is_enabled = is_enabled

    def register(
        self,
        state: Checkpointable,
        *,
        is_temporary: bool = False,
        is_rank_0s: bool = False,
        saved_as: str | None = None,
    ) -> None:
        """Add a state, and load it from the checkpoint, where its name is `saved_as` if given.

        Names are unique within a run. A temporary state is dropped when nothing else refers to it. One that
        is rank 0's may differ on other ranks.
        """
        if state.name in self._states and self._states[state.name]() is not None:
            raise UsageError(f"two states are named {state.name!r}: give one of them another name")
        self._states[state.name] = weakref.ref(state) if is_temporary else partial(_same, state)
        if is_rank_0s:
            self._rank_0s.add(state.name)
        self._load(state, state.name if saved_as is None else saved_as)

    def _load(self, state: Checkpointable, name: str) -> None:
        name = without_own(name, self._saved)
        if name in self._loaded:
            saved = self._loaded.pop(name)
            try:
                state.load_state_dict(saved)
            except (
                ArithmeticError,
                AttributeError,
                LookupError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:
                raise CheckpointError(
                    f"the checkpoint's {state.name!r} does not fit this script: {error}; if the script has "
                    "changed, begin anew with another checkpoint directory"
                ) from error

    def restore(self, states: Mapping[str, Any]) -> None:
        """Load states of a training that this process has joined, those registered already among them."""
        self._loaded, self._saved = dict(states), tuple(states)
        for name, find in list(self._states.items()):
            state = find()
            if state is not None:
                self._load(state, name)

    def take_over(self, states: Mapping[str, Any]) -> None:
        """Take over, from a rank 0 that leaves, its own states where they differ from this rank's."""
        for name in self._rank_0s & states.keys():
            state = self._states[name]()
            if state is not None and not torch.equal(encode(state.state_dict()), encode(states[name])):
                state.load_state_dict(states[name])

    @property
    def unrestored(self) -> Mapping[str, Any]:
        """The checkpoint's states that the script has not made yet, by name."""
        return self._loaded

    def forget(self, name: str) -> None:
        """Drop a state of the checkpoint that the script will not make again."""
        self._loaded.pop(name, None)

    def _sync(self) -> list[Checkpointable]:
        """Sync the states that all ranks have, and return what is kept in the order of the construction.

        A rank may have collected a temporary state, which is dropped then, or have joined after the others
        had made one, which is kept. Its sync would wait for ever for that rank.
        """
        alive = {name: state for name, find in self._states.items() if (state := find()) is not None}
        common = set.intersection(*(set(names) for names in self._side_channel.gather(list(alive))))
        for name, state in alive.items():
            if name in common:
                state.sync()
        return [
            state
            for name, state in alive.items()
            if name in common or not isinstance(self._states[name], weakref.ref)
        ]

    @property
    def is_writing(self) -> bool:
        """True on rank 0 from a `write_in_background` until `take_write_result` has returned its result."""
        return self._background is not None

    def write(self) -> WriteResult:
        """Write a checkpoint of all states and wait for it. Call it on all ranks at the same step boundary.

        The result is the same on every rank. Raises `SupersededRunError` on every rank when a newer run of
        the job has begun.
        """
        started = time.perf_counter()
        outcome: dict[str, Any] = {"size_bytes": 0, "error": None, "superseded": None}
        states = self._sync()
        if self.lineage is not None:
            # The write under way first: files of one run are numbered in the order of their states.
            self.wait()
            written = _write(self.lineage, lambda: self._content(states, copies=False))
            outcome = {
                "size_bytes": written.size_bytes,
                "error": written.error,
                "superseded": written.superseded,
                "is_disk_full": written.is_disk_full,
            }
        outcome = self._side_channel.broadcast(outcome)
        if outcome["superseded"] is not None:
            raise SupersededRunError(outcome["superseded"])
        took_s = time.perf_counter() - started
        return WriteResult(blocked_s=took_s, took_s=took_s, **outcome)

    def write_in_background(self) -> None:
        """Begin to write a checkpoint of all states. Call it on all ranks at the same step boundary.

        Training waits while the states are copied to the host's memory; a thread writes the copy.
        """
        started = time.perf_counter()
        states = self._sync()
        if self.lineage is None:
            return
        self.wait()
        try:
            content = self._content(states, copies=True)
        except CheckpointError as error:
            _LOG.error("no checkpoint was written: %s", error)
            self._background = _BackgroundWrite.failed(str(error))
            return
        self._background = _BackgroundWrite(self.lineage, content, started=started)

    def collect(self) -> dict[str, Any] | None:
        """Return, on rank 0, all states, valid until the next step. Called on all ranks at a boundary.

        Tensors on a device are copied to the host. Raises `CheckpointError` on all ranks where a state
        cannot be kept.
        """
        alive, states, error = self._sync(), None, None
        if self.lineage is not None:
            try:
                states = self._content(alive, copies=False)["states"]
            except CheckpointError as found:
                error = str(found)
        error = self._side_channel.broadcast(error)
        if error is not None:
            raise CheckpointError(error)
        return states

    def write_states(self, states: Mapping[str, Any]) -> None:
        """Write what `collect` has returned, in a process with a lineage, without the other ranks."""
        assert self.lineage is not None
        written = _write(self.lineage, lambda: {"format": _FORMAT, "states": dict(states)})
        if written.superseded is not None:
            raise SupersededRunError(written.superseded)

    def copy_states(self) -> Callable[[], WriteResult] | None:
        """Copy all states, on all ranks at the same boundary; rank 0 gets a function that writes it."""
        states = self._sync()
        lineage = self.lineage
        if lineage is None:
            return None
        try:
            content = self._content(states, copies=True)
        except CheckpointError as error:
            _LOG.error("no checkpoint could be written: %s", error)
            return None

        def write() -> WriteResult:
            self.wait()
            return _write(lineage, lambda: content)

        return write

    def take_write_result(self) -> WriteResult | None:
        """Return, once, the result of the last `write_in_background`; None while there is none."""
        if self._background is None or not self._background.is_done:
            return None
        behind, self._background = self._background, None
        return behind.join()

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        if self._background is not None:
            self._background.join()

    def _content(self, alive: Sequence[Checkpointable], *, copies: bool) -> dict[str, Any]:
        # A state that the script has not made yet is written again as it was.
        states = dict(self._loaded)
        for state in alive:
            states[state.name] = to_plain(state.state_dict(), state.name, copies=copies)
        return {"format": _FORMAT, "states": states}


def _same(state: Checkpointable) -> Checkpointable:
    return state


class _BackgroundWrite:
    """A checkpoint that a thread of its own writes. The interpreter waits for the thread before it exits."""

    def __init__(self, lineage: Lineage | None, content: dict[str, Any], *, started: float) -> None:
        self._written = WriteResult(error="the thread that wrote it did not end")
        self._blocked_s = time.perf_counter() - started
        self._started = started
        self._thread: threading.Thread | None = None
        if lineage is not None:
            self._thread = threading.Thread(
                target=self._run, args=(lineage, content), name="pollux-checkpoint", daemon=False
            )
            self._thread.start()

    @classmethod
    def failed(cls, error: str) -> _BackgroundWrite:
        """Return one that has failed already."""
        behind = cls(None, {}, started=time.perf_counter())
        behind._written = WriteResult(error=error)
        return behind

    @property
    def is_done(self) -> bool:
        return self._thread is None or not self._thread.is_alive()

    def join(self) -> WriteResult:
        if self._thread is not None:
            self._thread.join()
        return self._written

    def _run(self, lineage: Lineage, content: dict[str, Any]) -> None:
        try:
            written = _write(lineage, lambda: content)
        except Exception as error:
            _LOG.exception("no checkpoint was written")
            written = WriteResult(error=str(error))
        self._written = replace(
            written, blocked_s=self._blocked_s, took_s=time.perf_counter() - self._started
        )


def _write(lineage: Lineage, content: Callable[[], dict[str, Any]]) -> WriteResult:
    try:
        value = content()
        written = lineage.write(lambda file: torch.save(value, file))
    except SupersededRunError as error:
        return WriteResult(superseded=str(error))
    except CheckpointError as error:
        _LOG.error("no checkpoint was written: %s", error)
        return WriteResult(error=str(error), is_disk_full=isinstance(error, DiskFullError))
    if not written.has_room_for_next:
        _LOG.warning(
            "%s: there is no room for another checkpoint of %s, on the disk or in your quota: until there "
            "is, the job cannot be moved, and loses work where it is stopped",
            *(written.path.parent, bytes_text(written.size_bytes)),
        )
    return WriteResult(size_bytes=written.size_bytes, is_disk_full=not written.has_room_for_next)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the states in a checkpoint file, tensors on the CPU."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader ends with an error of any kind where bytes are wrong
        raise DamagedCheckpointError(f"{path}: cannot be read as a checkpoint: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(f"{path}: written by another version of pollux_slurm; use that version")
    states: dict[str, Any] | None = content.get("states")
    if not isinstance(states, dict):
        raise DamagedCheckpointError(f"{path}: cannot be read as a checkpoint: it has no states")
    return states
