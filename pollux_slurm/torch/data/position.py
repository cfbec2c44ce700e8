"""Where a loader stands in its epoch, over loops, breaks and restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pollux_slurm.torch.data.sampling_order import Order


@dataclass(slots=True)
class Loop:
    """One loop over the loader: its number within the epoch, and where its next step begins.

    `is_replay` marks one that had been looked into before a restart, and is again: it counts no more.
    `order` is the order that a sampler of the user's own had drawn before the restart.
    """

    number: int
    start: int
    is_replay: bool
    order: Order | None = None


class Position:
    """Where one loader stands, as its checkpointed state.

    `_ended` tells of each loop that ended within `_epoch` whether it took a step (else the script had only
    looked at a batch); `_start` is the place of the next step in the loop after those. What a checkpoint said
    is taken up when its epoch comes. `length` is None where the dataset's is not known.
    """

    def __init__(self, name: str, length: int | None) -> None:
        self.name, self._length = name, length
        self._epoch: int | None = None
        self._ended: list[bool] = []
        self._num_begun, self._start = 0, 0
        self._num_inner = 0
        self._order: Order | None = None
        self._restored: dict[str, Any] | None = None
        self.global_batch_size: int | None = None

    @property
    def start(self) -> int:
        """Where the loop that is not done yet goes on, in examples."""
        return self._start

    def begin_loop(self, epoch: int, *, is_inner: bool = False) -> Loop | None:
        """Return the loop that begins within `epoch`; None if it was done before a restart.

        An inner loop runs inside of another loader's: where that goes on after a restart, the code of the
        steps before is not run again, so no inner loop is to be left out.
        """
        if is_inner:
            self._num_inner += 1
            return Loop(self._num_inner - 1, 0, is_replay=True)
        drawn: Order | None = None
        if self._restored is not None and self._restored["epoch"] == epoch:
            self._ended, self._start = list(self._restored["ended"]), self._restored["start"]
            order = self._restored.get("order")
            self._order = None if order is None else Order.from_plain(order)
            self._epoch, self._num_begun, self._restored = epoch, 0, None
        elif epoch != self._epoch:
            saved = None if self._restored is None else self._restored["epoch"]
            if saved is None or saved < epoch:
                # Epochs only grow: its own will not come again. A glance before the first epoch is at −1.
                self._restored = None
            self._epoch, self._ended, self._num_begun, self._start = epoch, [], 0, 0
            self._order = None
        number = self._num_begun
        self._num_begun += 1
        if number < len(self._ended):
            return None if self._ended[number] else Loop(number, 0, is_replay=True)
        if self._start > 0:
            drawn = self._order
        return Loop(number, self._start, is_replay=False, order=drawn)

    @property
    def loop_number(self) -> int:
        """The number of the outermost loop under way, or of the last, within its epoch."""
        return self._num_begun - 1

    def keep_order(self, loop: Loop, order: Order) -> None:
        """Remember an order that cannot be had again from the seed, until the loop's end."""
        if not loop.is_replay:
            self._order = order

    def advance(self, loop: Loop, position: int) -> None:
        """Put the loop at `position`: a step was taken."""
        loop.start = position
        if not loop.is_replay:
            self._start = position

    def end_loop(self, loop: Loop) -> None:
        """Count the loop as done."""
        if not loop.is_replay:
            self._ended.append(True)
            self._start, self._order = 0, None

    def leave_loop(self, loop: Loop, *, has_stepped: bool) -> None:
        """The script left the loop with break: it is done, unless it took no step."""
        if not loop.is_replay:
            self._ended.append(has_stepped or loop.start > 0)
            self._start, self._order = 0, None

    def sync(self) -> None:
        """Nothing to do: every replica stands at the same place."""

    def state_dict(self) -> dict[str, Any]:
        if self._restored is not None:
            return self._restored
        return {
            "length": self._length,
            "epoch": self._epoch,
            "ended": list(self._ended),
            "start": self._start,
            "order": None if self._order is None or self._start == 0 else self._order.to_plain(),
            "global_batch_size": self.global_batch_size,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["length"] != self._length:
            raise ValueError(f"the dataset had {state['length']} examples and now has {self._length}")
        self._restored = dict(state)
        self.global_batch_size = state["global_batch_size"]
