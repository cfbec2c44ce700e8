"""The lease: the right to act, which one daemon has at a time. Checked before each command."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.errors import LeaseLostError, StoreError
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.system.process_control import identify
from pollux_slurm.whole_numbers import whole_number

_log = logging.getLogger(__name__)


class Lease:
    """The store's lease, for one daemon. `monotonic` is in seconds, `clock` gives aware UTC times.

    `owner` is `host:pid:anything`, by which the next daemon sees whether this process lives, or any other
    name.
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
        """Use other settings from the next renewal on."""
        self._config = config
        # It is renewed at ticks, so it can be short: a second daemon takes over within two intervals.
        self.ttl_s = min(config.lease_ttl_s, max(1.5 * config.interval_s, 4 * config.tick_s))

    @property
    def retry_interval_s(self) -> float:
        """How long a daemon without the lease waits between two attempts to acquire it."""
        return self.ttl_s / 4

    def check(self) -> None:
        """Renew the lease, or raise `LeaseLostError` when another daemon has it.

        An expired lease is acquired again if no other daemon took it.
        """
        now = self._monotonic()
        before = self._store.lease.daemon_status().owner if self.was_lost() else None
        acquired = self._store.lease.acquire(
            self._owner,
            ttl_s=self.ttl_s,
            at=self._clock(),
            interval_s=self._config.interval_s,
            watch_s=min(self._config.watch_s, self._config.interval_s),
        )
        if not acquired:
            self._until = float("-inf")
            raise LeaseLostError("another daemon has the lease")
        if before not in (None, self._owner):
            self._predecessor = before
        self._until = now + self.ttl_s

    def predecessor_may_live(self) -> bool:
        """Whether the previous daemon may still give a command.

        Not if it released the lease, nor if it ran on this host and its process is gone.
        """
        if self._predecessor is None:
            return False
        host, _, rest = self._predecessor.partition(":")
        pid = whole_number(rest.partition(":")[0])
        if pid is None or host != self._owner.partition(":")[0]:
            return True
        return identify("daemon", pid) is not None

    def renew(self) -> None:
        """Renew the lease when half of its time has passed."""
        if self._monotonic() >= self._until - self.ttl_s / 2:
            self.check()

    def was_lost(self) -> bool:
        """Whether the last attempt to acquire or renew it failed, or there was none."""
        return self._until == float("-inf")

    def is_held(self) -> bool:
        """Whether the store has this daemon as the owner; does not renew the lease."""
        return self._store.lease.is_held_by(self._owner, at=self._clock())

    def release(self) -> None:
        """Release the lease, so that another daemon can acquire it at once."""
        try:
            self._store.lease.release(self._owner)
        except StoreError as error:
            _log.warning("the lease could not be released and expires by itself: %s", error)
