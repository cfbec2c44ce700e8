"""The right to act: one daemon has it at a time (invariant 10), and asks for it again before each command."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.errors import LeaseLostError, StoreError
from pollux_slurm.process_control import identify
from pollux_slurm.store.contract.interface import Store

_log = logging.getLogger(__name__)


class Lease:
    """The store's lease, for one daemon. `monotonic` is in seconds, `clock` gives aware UTC times.

    `owner` is `host:pid:anything`, or any other name; it tells the next daemon whether this one is gone.
    """

    def __init__(
        self,
        *,
        store: Store,
        owner: str,
        config: DaemonConfig,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._owner = owner
        self.configure(config)
        self._clock = clock
        self._monotonic = monotonic
        self._until = float("-inf")
        self._predecessor: str | None = None

    def configure(self, config: DaemonConfig) -> None:
        """Take over the settings' patience and pace, from the next renewal on."""
        self._config = config
        # Renewed at every tick, so it can be short: a second daemon takes over within two intervals.
        self.ttl_s = min(config.lease_ttl_s, max(1.5 * config.interval_s, 4 * config.tick_s))

    @property
    def patience_s(self) -> float:
        """How long a daemon that waits for the lease may sleep between two looks at it."""
        return self.ttl_s / 4

    def check(self) -> None:
        """Prolong the lease, or raise `LeaseLostError` when another daemon has it.

        One that ran out unnoticed is taken again if nobody else took it meanwhile.
        """
        now = self._monotonic()
        before = self._store.daemon_status().owner if self.was_lost() else None
        taken = self._store.acquire_lease(
            self._owner,
            ttl_s=self.ttl_s,
            at=self._clock(),
            interval_s=self._config.interval_s,
            watch_s=min(self._config.watch_s, self._config.interval_s),
        )
        if not taken:
            self._until = float("-inf")
            raise LeaseLostError("another daemon holds the lease")
        if before not in (None, self._owner):
            self._predecessor = before
        self._until = now + self.ttl_s

    def predecessor_may_live(self) -> bool:
        """Whether the daemon that had it before may be on its way to Slurm still.

        Not one that gave it back, nor one of this host whose process is gone.
        """
        if self._predecessor is None:
            return False
        host, _, rest = self._predecessor.partition(":")
        pid = rest.partition(":")[0]
        if not pid.isdecimal() or host != self._owner.partition(":")[0]:
            return True
        return identify("daemon", int(pid)) is not None

    def renew(self) -> None:
        """Prolong the lease when half of it has passed."""
        if self._monotonic() >= self._until - self.ttl_s / 2:
            self.check()

    def was_lost(self) -> bool:
        """Whether another daemon had it when it was last asked for."""
        return self._until == float("-inf")

    def is_held(self) -> bool:
        """Whether the store says that it is this daemon's, without prolonging it."""
        return self._store.holds_lease(self._owner, at=self._clock())

    def give_back(self) -> None:
        """Let another daemon have it at once."""
        try:
            self._store.release_lease(self._owner)
        except StoreError as error:
            _log.warning("the lease could not be given back and runs out by itself: %s", error)
