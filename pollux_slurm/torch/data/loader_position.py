"""The position of a loader in its epoch, kept over loops, breaks and restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pollux_slurm.torch.checkpoint.given_values import GivenValues
from pollux_slurm.torch.data.sampling_order import SamplingOrder

_BATCH = (
    "It is the global batch, which the loader divides over the replicas itself: write the same batch_size "
    "for any number of processes, as batch_size=args.batch_size without world_size"
)
_DATA = (
    "The loader shares the examples out itself: give each process the whole dataset, without a Subset "
    "(shard, list of files) by rank"
)
_SAMPLER = (
    "The loader shares out what the sampler yields: let it yield the same in each process, without rank and "
    "world_size, or write shuffle=True"
)
_NOW = "what the script gives now holds"
_IN_EPOCH = "what the script gives now holds; the epoch under way uses some examples twice, or not at all"


@dataclass(slots=True)
class Loop:
    """One loop over the loader: its number within the epoch, and where its next step begins.

    `is_replay` marks a loop whose position is not saved: one that took no step before a restart, or one
    inside of another loop. `order` is what the user's own sampler had drawn before the restart.
    """

    number: int
    start: int
    is_replay: bool
    order: SamplingOrder | None = None


class LoaderPosition:
    """The position of one loader, as checkpointed state.

    `_ended` holds, for each loop that ended within `_epoch`, whether it took a step (else the script only
    looked at a batch). `_start` is the position of the next step in the loop after those. A restored position
    is used when its epoch begins. `length` and `num_sampled` (what a sampler yields) are None where they are
    not known. `given` compares them, and `batch_size`, with those of a checkpoint.
    """

    def __init__(
        self,
        name: str,
        *,
        length: int | None,
        num_sampled: int | None,
        batch_size: int,
        given: GivenValues,
    ) -> None:
        self.name, self._length, self._num_sampled = name, length, num_sampled
        self._batch_size, self._given = batch_size, given
        self._epoch: int | None = None
        self._ended: list[bool] = []
        self._num_begun, self._start = 0, 0
        self._num_inner = 0
        self._order: SamplingOrder | None = None
        self._restored: dict[str, Any] | None = None
        self.global_batch_size: int | None = None

    @property
    def start(self) -> int:
        """The position, in examples, at which the unfinished loop goes on."""
        return self._start

    def begin_loop(self, epoch: int, *, is_inner: bool = False) -> Loop | None:
        """Return the loop that begins within `epoch`; None if it was finished before a restart.

        An inner loop runs inside of another loader's. When that one goes on after a restart, the code of its
        earlier steps does not run again, so no inner loop is skipped.
        """
        if is_inner:
            self._num_inner += 1
            return Loop(self._num_inner - 1, 0, is_replay=True)
        drawn: SamplingOrder | None = None
        if self._restored is not None and self._restored["epoch"] == epoch:
            self._ended, self._start = list(self._restored["ended"]), self._restored["start"]
            order = self._restored.get("order")
            self._order = None if order is None else SamplingOrder.from_plain(order)
            self._epoch, self._num_begun, self._restored = epoch, 0, None
        elif epoch != self._epoch:
            saved = None if self._restored is None else self._restored["epoch"]
            if saved is None or saved < epoch:
                # Epochs only grow: the saved one does not come again. Loops before the first epoch are at −1.
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

    def keep_order(self, loop: Loop, order: SamplingOrder) -> None:
        """Keep an order that the seed does not determine, until the loop's end."""
        if not loop.is_replay:
            self._order = order

    def advance(self, loop: Loop, position: int) -> None:
        """Set the loop's position after a step."""
        loop.start = position
        if not loop.is_replay:
            self._start = position

    def end_loop(self, loop: Loop) -> None:
        """Count the loop as finished."""
        if not loop.is_replay:
            self._ended.append(True)
            self._start, self._order = 0, None

    def leave_loop(self, loop: Loop, *, has_stepped: bool) -> None:
        """Count a loop that the script left by `break` as finished, unless it took no step."""
        if not loop.is_replay:
            self._ended.append(has_stepped or loop.start > 0)
            self._start, self._order = 0, None

    def pause_loop(self, loop: Loop) -> None:
        """Let the next loop be this one, from where it is."""
        if not loop.is_replay:
            self._num_begun -= 1

    def sync(self) -> None:
        """Nothing to do: the position is the same on every replica."""

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
            "batch_size": self._batch_size,
            "num_sampled": self._num_sampled,
            "num_replicas": self._given.num_replicas,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["length"] is None) != (self._length is None):
            raise ValueError("an iterable dataset has become a map-style one, or the other way")
        self._restored = dict(state)
        self.global_batch_size = state["global_batch_size"]
        self._compare("batch_size", self._batch_size, state.get("batch_size"), cure=_BATCH, holds=_NOW)
        holds = _NOW
        if state["start"] > 0 and self._length != state["length"]:
            holds = _IN_EPOCH
            self._restored |= {"start": min(state["start"], self._length or 0), "order": None}
        if self._length is not None:
            self._compare("the dataset's length", self._length, state["length"], cure=_DATA, holds=holds)
        if self._num_sampled is not None:
            before = state.get("num_sampled")
            self._compare("the sampler's length", self._num_sampled, before, cure=_SAMPLER, holds=_NOW)

    def _compare(self, what: str, now: int, before: int | None, *, cure: str, holds: str) -> None:
        num_replicas = self._restored.get("num_replicas") if self._restored else None
        what = f"{what} of {self.name!r}"
        self._given.compare(what, now, before, num_replicas, cure=cure, holds=holds)
