"""Whether replicas may join in the middle of the present epoch.

A newcomer runs the epoch's code up to the loop under way, as after a restart: loops that have ended yield
nothing. The other replicas do not run it again. So that code must not communicate, and must not add to sums
that no checkpoint has. Where it does, newcomers wait for the end of the epoch.

Nor must it communicate in some steps of a loop only, by a count of its own: a newcomer counts from 0, and the
others would wait for it for ever.

A wrapped model's forward pass sends buffers (BatchNorm's) if the one before had gradients. So the first of a
validation does, and the first after it does not. A regroup makes that alike on all replicas. What counts in a
step is how many forward passes without gradients there are, if the model has buffers.

The same goes for the code between two calls of `remaining_epochs_until`, which newcomers run after they have
joined. No later moment is better there, so they are refused.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Any

import torch.distributed as dist

from pollux_slurm.torch.regroup.collective_calls import CollectiveCall, CollectiveCalls

# DDP arranges its buckets anew in them.
_FIRST_STEPS = 3


class EpochReplay:
    """Watches the code between the beginning of an epoch and the loop under way.

    The process group counts its collectives: those of a wrapped model's forward pass, too.
    """

    def __init__(self, *, watches: bool) -> None:
        self.watches = watches
        self._calls = CollectiveCalls(watches=watches)
        # Why no replica may join before the end of the epoch, or not at all any more.
        self.reason: str | None = None
        self.lasting_reason: str | None = None
        self._count = self._step_count = 0
        self._has_begun = self._is_between = self._is_in_loop = False
        # Since the last regroup, by kind of steps: how many there were, and the collectives of each.
        self._num_steps: Counter[Hashable] = Counter()
        self._of_step: dict[Hashable, tuple[int, Counter[CollectiveCall]]] = {}
        # Whether steps of a kind communicate differently, and the script's line that does, where known.
        self.varies = False
        self.varying_call: CollectiveCall | None = None
        self.skip()

    def begin_epoch(self) -> None:
        """Begin an epoch: nothing was done in it."""
        if self._is_between and self._num_collectives() != self._count:
            self.note(f"its script communicates between two calls of remaining_epochs_until{self._where()}")
        self._has_begun, self._is_between = True, False
        self.reason = None
        self.skip()

    def end_epochs(self) -> None:
        """End the epochs of one call of `remaining_epochs_until`."""
        self._is_between = True
        self.skip()

    def skip(self) -> None:
        """Do not count what was done since the last loop: a newcomer does it alone."""
        self._count = self._num_collectives()
        self._calls.take()

    def note(self, reason: str) -> None:
        """Note code that must not run again on newcomers alone."""
        self.reason = self.reason or reason
        if self._is_between:
            self.lasting_reason = self.lasting_reason or reason

    def add_model(self) -> None:
        """Note that a model was wrapped. That communicates, except on a newcomer before it has joined."""
        if self._has_begun:
            self.note("its script wraps a model after the training has begun")
        self.skip()

    def begin_loop(self) -> None:
        """Begin an outermost loop."""
        self._has_begun = self._is_in_loop = True
        self._step_count = self._num_collectives()
        if self._step_count != self._count:
            self.note(f"its script communicates outside of its loops over adaptive loaders{self._where()}")
        self._calls.take()

    @contextlib.contextmanager
    def forward(self, *, has_gradients: bool, has_buffers: bool) -> Iterator[None]:
        """Watch a forward pass of a wrapped model."""
        before = self._num_collectives()
        yield
        num_sent = self._num_collectives() - before
        counts = has_buffers and not has_gradients
        if counts if self._is_in_loop else num_sent:
            self._calls.note("the wrapped model, which sends its buffers")
        self._step_count += num_sent - counts

    def end_step(self, *, kind: Hashable, is_typical: bool) -> None:
        """End a step; those of one kind communicate alike.

        The first ones of a wrapped model communicate more, and an epoch's last one may do less.
        """
        now = self._num_collectives()
        number, self._step_count = now - self._step_count, now
        calls = self._calls.take()
        self._num_steps[kind] += 1
        if self._num_steps[kind] > _FIRST_STEPS and is_typical and not self.varies:
            usual, usual_calls = self._of_step.setdefault(kind, (number, calls))
            if number != usual:
                self.varies = True
                self.varying_call = next(iter((calls - usual_calls) or (usual_calls - calls)), None)

    def begin_step(self) -> None:
        """Begin a step: what the boundary before it communicates, as to sum states, does not count."""
        self._step_count = self._num_collectives()
        self._calls.take()

    def begin_run(self) -> None:
        """Begin a run, whose process group counts anew."""
        self._num_steps.clear()
        self._of_step.clear()
        self.skip()

    def end_loop(self, *, has_stepped: bool) -> None:
        """End an outermost loop. Newcomers run one that took no step again."""
        if not has_stepped:
            self.note("a loop of this epoch took no step")
        self._is_in_loop = False
        self.skip()

    def _where(self) -> str:
        """Return the first line that has communicated since the last loop, as the end of a sentence."""
        call = next(iter(self._calls.take()), None)
        return "" if call is None else f": {call}"

    def _num_collectives(self) -> int:
        group: Any = dist.group.WORLD if self.watches else None
        return 0 if group is None else int(group._get_sequence_number_for_group())
