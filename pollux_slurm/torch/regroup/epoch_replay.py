"""Whether replicas may join in the middle of the present epoch.

A newcomer runs the epoch's code up to the loop under way, as after a restart: loops that have ended yield
nothing. The other replicas do not run it again. So that code must not communicate, and must not add to sums
that no checkpoint has. Where it does, newcomers wait for the end of the epoch.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class EpochReplay:
    """Watches the code between the beginning of an epoch and the loop under way.

    The process group counts its collectives: those of a wrapped model's forward pass, too.
    """

    def __init__(self, *, watches: bool) -> None:
        self._watches = watches
        self._reason: str | None = None
        self._count = 0
        self.begin_epoch()

    @property
    def reason(self) -> str | None:
        """Why no replica may join before the end of the epoch; None where one may."""
        return self._reason

    def begin_epoch(self) -> None:
        """Begin an epoch: nothing was done in it."""
        self._reason, self._count = None, self._num_collectives()

    def skip(self) -> None:
        """Do not count what was done since the last loop: a newcomer does it alone."""
        self._count = self._num_collectives()

    def note(self, reason: str) -> None:
        """Note code that must not run again on newcomers alone."""
        self._reason = self._reason or reason

    def begin_loop(self) -> None:
        """Begin an outermost loop."""
        if self._num_collectives() != self._count:
            self.note("its script communicates outside of its loops over adaptive loaders")

    def end_loop(self, *, has_stepped: bool) -> None:
        """End an outermost loop. Newcomers run one that took no step again."""
        if not has_stepped:
            self.note("a loop of this epoch took no step")
        self.skip()

    def _num_collectives(self) -> int:
        group: Any = dist.group.WORLD if self._watches else None
        return 0 if group is None else int(group._get_sequence_number_for_group())
