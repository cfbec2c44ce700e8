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
    """Keep a part of the script in its checkpoints, and restore it as soon as the script makes it again.

    A subclass overrides `state_dict` and `load_state_dict` (plain data: numbers, texts, tensors, lists and
    dicts of them), or `save` and `load`, which write to and read from a file. `sync` is called on every
    replica just before rank 0 saves: combine the replicas' parts there.

    Args:
        name: Its name in checkpoints, another one for each state.

    Examples:
        >>> class BestLoss(pollux.State):
        ...     def __init__(self):
        ...         super().__init__("best-loss")
        ...         self.value = float("inf")
        ...
        ...     def state_dict(self):
        ...         return {"value": self.value}
        ...
        ...     def load_state_dict(self, state):
        ...         self.value = state["value"]
        >>> best = BestLoss()  # after a move, with the value that it had
        >>> best.value = min(best.value, 0.5)
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as plain data.

        Raises:
            NotImplementedError: The subclass overrides neither this nor `save`.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither state_dict nor save")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned.

        Args:
            state: The plain data of the checkpoint; its tensors are on the CPU.

        Raises:
            NotImplementedError: The subclass overrides neither this nor `load`.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither load_state_dict nor load")

    def save(self, fileobj: BinaryIO) -> None:
        """Write the state to a file. Override it, and `load`, for data that is not plain.

        Args:
            fileobj: A binary file that is open for writing.

        Examples:
            >>> class Notes(pollux.State):
            ...     text = b""
            ...
            ...     def save(self, fileobj):
            ...         fileobj.write(self.text)
            ...
            ...     def load(self, fileobj):
            ...         self.text = fileobj.read()
            >>> notes = Notes("notes")
        """
        torch.save(to_plain(self.state_dict(), self.name), fileobj)

    def load(self, fileobj: BinaryIO) -> None:
        """Read what `save` wrote.

        Args:
            fileobj: A binary file that is open for reading.
        """
        self.load_state_dict(torch.load(fileobj, map_location="cpu", weights_only=True))

    def sync(self) -> None:
        """Combine the replicas' parts. It is called on all of them; does nothing unless overridden.

        Examples:
            >>> class Seen(pollux.State):
            ...     def __init__(self):
            ...         super().__init__("seen")
            ...         self.own, self.total = torch.zeros(1), torch.zeros(1)
            ...
            ...     def sync(self):
            ...         torch.distributed.all_reduce(self.own)
            ...         self.total += self.own
            ...         self.own = torch.zeros(1)
            ...
            ...     def state_dict(self):
            ...         return {"total": self.total}
            ...
            ...     def load_state_dict(self, state):
            ...         self.total = state["total"]
            >>> seen = Seen()
        """


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
