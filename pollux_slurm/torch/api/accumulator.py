"""`Accumulator`: sums over all replicas, all batches and all restarts."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from pollux_slurm.errors import UsageError
from pollux_slurm.torch.session.current_session import current_session


class Accumulator(MutableMapping[str, Any]):
    """Add up values by key: each replica adds its own part, and `synchronized()` shows the total.

    Outside of `synchronized()` it takes `acc[key] += value`, `acc[key] -= value`, `acc += mapping`,
    `acc -= mapping`, `update` and `subtract`, and reads as if it were empty. What is added during padding
    (see `AdaptiveDataLoader.is_padding`) does not count: it belongs to no example.

    Inside of `with acc.synchronized():` it is an ordinary dict, the same on every replica, and every
    replica must change it in the same way. After a restart in the middle of an epoch, the blocks that the
    epoch had already run see the same sums as the first time.

    Args:
        name: Its name in checkpoints; None: one by the order in which accumulators are made.

    Raises:
        UsageError: Outside of `synchronized()`, a value is set and not added, or a key is deleted.

    Examples:
        >>> sums = pollux.Accumulator()
        >>> for inputs, targets in pollux.AdaptiveDataLoader(dataset, batch_size=32):
        ...     sums["loss"] += loss_fn(model(inputs), targets).item() * len(inputs)
        ...     sums["examples"] += len(inputs)
        >>> with sums.synchronized():
        ...     mean_loss = sums["loss"] / sums["examples"]
        ...     print(sums.get("examples"))
        ...     sums.clear()
        64
    """

    def __init__(self, *, name: str | None = None) -> None:
        session = current_session()
        self.name = name or session.next_default_name("accumulator")
        self._totals: dict[str, Any] = {}
        # What this replica has added in adaptive loops, and outside of them within `_outside_epoch`. A
        # restart in that epoch runs the code outside again. So that part is in no checkpoint before the epoch
        # has ended or a synchronized block has shown it.
        self._local: dict[str, Any] = {}
        self._outside: dict[str, Any] = {}
        self._outside_epoch = -1
        self._is_open = False
        # For the epoch `_epoch`: what each synchronized block saw on entry.
        self._epoch = -1
        self._seen: list[dict[str, Any]] = []
        self._num_entered = 0
        session.register(self)

    # -------------------------------------------------------------------------------------------- summing

    def add(self, key: str, value: Any) -> None:
        """Add to the sum of a key, as `acc[key] += value` does.

        Args:
            key: The sum's name.
            value: A number, or a tensor of any shape, the same one in each call.

        Examples:
            >>> sums = pollux.Accumulator()
            >>> sums.add("examples", 32)
        """
        if self._is_open:
            _add(self._totals, key, value)
        elif not current_session().loops.is_padding:
            value = value.detach().clone() if isinstance(value, torch.Tensor) else value
            self._settle()
            in_loop = current_session().loops.outermost is not None
            if not in_loop:
                current_session().regrouping.replay.note("its script adds to an Accumulator outside of loops")
            _add(self._local if in_loop else self._outside, key, value)

    def update(self, *others: Any, **values: Any) -> None:
        """Add every value of a mapping, or, inside of `synchronized()`, set them as a dict does.

        Args:
            *others: At most one mapping of keys to values.
            **values: Further values by key.

        Examples:
            >>> sums = pollux.Accumulator()
            >>> sums.update({"loss": 1.5}, examples=32)
        """
        if self._is_open:
            self._totals.update(*others, **values)
            return
        for key, value in dict(*others, **values).items():
            self.add(key, value)

    def subtract(self, *others: Any, **values: Any) -> None:
        """Subtract every value of a mapping.

        Args:
            *others: At most one mapping of keys to values.
            **values: Further values by key.

        Examples:
            >>> sums = pollux.Accumulator()
            >>> sums.subtract(examples=2)
        """
        for key, value in dict(*others, **values).items():
            self.add(key, -value)

    def __iadd__(self, other: Mapping[str, Any]) -> Accumulator:
        for key, value in dict(other).items():
            self.add(key, value)
        return self

    def __isub__(self, other: Mapping[str, Any]) -> Accumulator:
        self.subtract(other)
        return self

    @contextlib.contextmanager
    def synchronized(self) -> Iterator[Accumulator]:
        """Sum over the replicas and open the dict. Every replica must enter it at the same place.

        Raises:
            UsageError: It is open already: blocks cannot be nested.
        """
        if self._is_open:
            raise UsageError("this accumulator is already synchronized: blocks cannot be nested")
        self._enter_epoch()
        # Not blocks inside of a loop: when it goes on after a restart, earlier ones do not run again.
        is_counted = not current_session().loops.is_running
        index = self._num_entered
        self._num_entered += is_counted
        is_replayed = is_counted and index < len(self._seen)
        if is_replayed:
            now, self._totals = self._totals, copy.deepcopy(self._seen[index])
            # The code before the block has run again, and added what the block's sums already have.
            self._outside = {}
        else:
            self._settle(everything=True)
            if is_counted:
                current_session().same_calls.add_up(repr(self.name))
            self.sync()
            if is_counted:
                self._seen.append(copy.deepcopy(self._totals))
        self._is_open = True
        try:
            yield self
        finally:
            self._is_open = False
            if is_replayed:
                # The block ran before the restart: the checkpoint's sums have its effect.
                self._totals = now

    def _enter_epoch(self) -> None:
        epoch = current_session().progress_state.epoch_key
        if epoch != self._epoch:
            self._epoch, self._seen, self._num_entered = epoch, [], 0

    # -------------------------------------------------------------------------------------------- as a dict

    def __getitem__(self, key: str) -> Any:
        return self._totals[key] if self._is_open else _Sum()

    def __contains__(self, key: object) -> bool:
        return self._is_open and key in self._totals

    def get(self, key: str, default: Any = None) -> Any:
        """Return the sum of a key; `default` where there is none, or outside of `synchronized()`.

        Args:
            key: The sum's name.
            default: What is returned instead.
        """
        return self._totals.get(key, default) if self._is_open else default

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Set a missing key, as a dict does; inside of `synchronized()` only.

        Args:
            key: The sum's name.
            default: Its value where there is none.

        Raises:
            UsageError: It is not open.

        Examples:
            >>> sums = pollux.Accumulator()
            >>> with sums.synchronized():
            ...     sums.setdefault("examples", 0)
            0
        """
        if key not in self:
            self[key] = default
        return self[key]

    def __setitem__(self, key: str, value: Any) -> None:
        if self._is_open:
            self._totals[key] = value
        elif isinstance(value, _Sum):
            for part in value.parts:
                self.add(key, part)
        else:
            raise UsageError("outside of synchronized() an accumulator takes acc[key] += value only")

    def __delitem__(self, key: str) -> None:
        if not self._is_open:
            raise UsageError("an accumulator is changed inside of synchronized() only")
        del self._totals[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._totals if self._is_open else ())

    def __len__(self) -> int:
        return len(self._totals) if self._is_open else 0

    def __repr__(self) -> str:
        if self._is_open:
            return f"Accumulator({self._totals})"
        own = dict(self._local)
        for key, value in self._outside.items():
            _add(own, key, value)
        return f"Accumulator({self._totals}, added here since: {own})"

    def clear(self) -> None:
        """Forget all sums; inside of `synchronized()` only.

        Raises:
            UsageError: It is not open.
        """
        if not self._is_open:
            raise UsageError("an accumulator is cleared inside of synchronized() only")
        self._totals.clear()

    # ----------------------------------------------------------------------------------------- checkpointed

    def sync(self) -> None:
        """Add what each replica has added to the totals of all."""
        self._settle()
        for part in current_session().side_channel.gather(self._local):
            for key, value in part.items():
                _add(self._totals, key, value)
        self._local = {}

    def _settle(self, *, everything: bool = False) -> None:
        """Count what was added outside of loops, once no restart can run its code again."""
        epoch = current_session().progress_state.epoch_key
        if everything or epoch != self._outside_epoch:
            for key, value in self._outside.items():
                _add(self._local, key, value)
            self._outside, self._outside_epoch = {}, epoch

    def state_dict(self) -> Mapping[str, Any]:
        return {"totals": self._totals, "epoch": self._epoch, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._totals, self._epoch, self._seen = state["totals"], state["epoch"], state["seen"]
        self._num_entered = 0


def _add(sums: dict[str, Any], key: str, value: Any) -> None:
    sums[key] = sums[key] + value if key in sums else value


class _Sum:
    """The value of `acc[key]` outside of `synchronized()`: it collects the operands of `+=` and `-=`."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Any, ...] = ()) -> None:
        self.parts = parts

    def __add__(self, value: Any) -> _Sum:
        return _Sum((*self.parts, value))

    def __sub__(self, value: Any) -> _Sum:
        return _Sum((*self.parts, -value))
