"""`State`: a part of the user's own program that is saved in its checkpoints."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch

from pollux_slurm.torch.coordination.plain_data import to_plain
from pollux_slurm.torch.session.current_session import current_session


class _RegisteredWhenMade(type):
    """Registers (and so restores) an object after its whole `__init__` ran, its subclass's part included."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        state = super().__call__(*args, **kwargs)
        current_session().register(_AsCheckpointable(state), is_rank_0s=True)
        return state


class State(metaclass=_RegisteredWhenMade):
    """An object that is saved with each checkpoint, and restored as soon as the script makes it again.

    Override `state_dict` and `load_state_dict` (plain data: numbers, texts, tensors, lists and dicts of
    them), or `save` and `load`, which write to and read from a file. `sync` is called on every replica
    just before rank 0 saves: combine the replicas' parts there.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as plain data."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither state_dict nor save")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither load_state_dict nor load")

    def save(self, fileobj: BinaryIO) -> None:
        """Write the state to a file."""
        torch.save(to_plain(self.state_dict(), self.name), fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        """Read what `save` wrote."""
        self.load_state_dict(torch.load(fileobj, map_location="cpu", weights_only=True))

    def sync(self) -> None:
        """Combine the replicas' parts. Called on all of them; does nothing unless overridden."""


class _AsCheckpointable:
    """Adapts a `State` for the checkpointer: its state is plain data, whichever methods it overrides."""

    def __init__(self, state: State) -> None:
        self._state, self.name = state, state.name
        self._as_file = type(state).save is not State.save

    def sync(self) -> None:
        self._state.sync()

    def state_dict(self) -> Mapping[str, Any]:
        if not self._as_file:
            return self._state.state_dict()
        buffer = io.BytesIO()
        self._state.save(buffer)
        return {
            "file": torch.frombuffer(bytearray(buffer.getvalue() or b"\0"), dtype=torch.uint8),
            "size": len(buffer.getvalue()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not self._as_file:
            self._state.load_state_dict(state)
            return
        self._state.load(io.BytesIO(state["file"].numpy().tobytes()[: state["size"]]))
