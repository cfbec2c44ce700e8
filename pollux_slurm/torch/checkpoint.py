"""The job's state as one file: who contributes to it, how it is written and read.

A checkpoint is what `torch.load(weights_only=True)` takes: `{"format": 1, "states": {name: plain data}}`.
Any number of replicas can read it.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from pollux_slurm.agent.lineage import Lineage
from pollux_slurm.errors import (
    CheckpointError,
    DamagedCheckpointError,
    SupersededRunError,
    UsageError,
)
from pollux_slurm.torch.control import Control
from pollux_slurm.torch.plain import to_plain

_LOG = logging.getLogger(__name__)
_FORMAT = 1


class Checkpointable(Protocol):
    """A named part of the job's state. `sync` is called on every rank before rank 0 saves."""

    name: str

    def sync(self) -> None: ...

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of one checkpoint, the same on every rank. `error` is None when it is on disk."""

    size_bytes: int
    blocked_s: float
    error: str | None


class Checkpointer:
    """The registered states of one run. `lineage` is there on rank 0 of a run with a checkpoint directory."""

    def __init__(
        self, *, control: Control[Any], lineage: Lineage | None, is_kept: bool, loaded: Mapping[str, Any]
    ) -> None:
        self._control, self._lineage = control, lineage
        self._states: dict[str, Checkpointable] = {}
        self._loaded = dict(loaded)
        self.is_kept = is_kept

    def register(self, state: Checkpointable) -> None:
        """Add a state, and load what the checkpoint holds for it. Names are unique within a run."""
        if state.name in self._states:
            raise UsageError(f"two states are named {state.name!r}: give one of them another name")
        self._states[state.name] = state
        if state.name in self._loaded:
            saved = self._loaded.pop(state.name)
            try:
                state.load_state_dict(saved)
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise CheckpointError(
                    f"the checkpoint's {state.name!r} does not fit this script: {error}; if the script has "
                    "changed, begin anew with another checkpoint directory"
                ) from error

    def write(self) -> Written:
        """Write a checkpoint of all states, called on all ranks at the same step boundary.

        Raises `SupersededRunError` on every rank when a newer run has taken over.
        """
        started = time.perf_counter()
        for state in self._states.values():
            state.sync()
        outcome: dict[str, Any] = {}
        if self._lineage is not None:
            outcome = self._write(self._lineage)
        outcome = self._control.broadcast(outcome)
        if outcome.get("superseded"):
            raise SupersededRunError(outcome["superseded"])
        if outcome.get("error"):
            _LOG.error("no checkpoint was written: %s", outcome["error"])
        return Written(
            size_bytes=outcome.get("size_bytes", 0),
            blocked_s=time.perf_counter() - started,
            error=outcome.get("error"),
        )

    def _write(self, lineage: Lineage) -> dict[str, Any]:
        try:
            # A state that the script has not made yet is carried on as it was.
            states = dict(self._loaded)
            for name, state in self._states.items():
                states[name] = to_plain(state.state_dict(), name)
            content = {"format": _FORMAT, "states": states}
            written = lineage.write(lambda file: torch.save(content, file))
        except SupersededRunError as error:
            return {"superseded": str(error)}
        except CheckpointError as error:
            return {"error": str(error)}
        return {"size_bytes": written.size_bytes}


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the states in a checkpoint file, tensors on the CPU."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DamagedCheckpointError(f"{path}: cannot be read as a checkpoint: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise CheckpointError(f"{path}: written by another version of pollux_slurm; use that version")
    states: dict[str, Any] = content["states"]
    return states
