"""Reads the newest generation of a job from the store, in a thread: the anchor never waits for the store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from datetime import datetime, timezone

from pollux_slurm.agent.node.watched_processes import start_thread
from pollux_slurm.agent.store_warnings import StoreWarnings
from pollux_slurm.errors import PolluxError, StoreUnavailable, UnknownJobError
from pollux_slurm.store.contract.membership import GenerationRecord, GenerationState, MembershipStore

_LONGEST_PAUSE_S = 30.0


class GenerationWatch:
    """What the store says of the generations of one start; nothing is new while it does not answer."""

    def __init__(
        self, open_store: Callable[[], MembershipStore], token: str, *, poll_interval_s: float
    ) -> None:
        self._open_store, self._token, self._poll_interval_s = open_store, token, poll_interval_s
        self._changed = threading.Condition()
        self._restart_count = 0
        self._latest: GenerationRecord | None = None
        self._num_reads = 0
        self._has_answered = False
        self._closed = False
        self._refusal: tuple[GenerationRecord, str] | None = None
        self._warnings = StoreWarnings()
        start_thread("pollux-generations", self._run)

    def begin(self, restart_count: int) -> None:
        """Watch another start from now on."""
        with self._changed:
            self._restart_count, self._latest, self._refusal = restart_count, None, None

    @property
    def latest(self) -> GenerationRecord | None:
        """The newest generation of the start, as last read."""
        return self._latest

    def read_now(self, *, timeout_s: float) -> bool:
        """Wait for a read that begins after this call, at most so long; tell whether it succeeded."""
        with self._changed:
            # The one under way may have begun before.
            wanted = self._num_reads + 2
            deadline = timeout_s
            self._changed.notify_all()
            was_read = self._changed.wait_for(lambda: self._num_reads >= wanted, deadline)
            return was_read and self._has_answered

    def refuse(self, record: GenerationRecord, reason: str) -> None:
        """Have the thread tell the store that a planned generation cannot be."""
        with self._changed:
            self._refusal = (record, reason)
            self._changed.notify_all()

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _send_refusal(self, store: MembershipStore) -> None:
        refusal = self._refusal
        if refusal is None:
            return
        record, reason = refusal
        # False where it is not planned any more: then nothing is left to refuse.
        store.advance_generation(
            self._token,
            record.number,
            GenerationState.REFUSED,
            restart_count=record.restart_count,
            at=datetime.now(timezone.utc),
            reason=reason,
        )
        with self._changed:
            if self._refusal is refusal:
                self._refusal = None

    def _run(self) -> None:
        store: MembershipStore | None = None
        failures = 0
        while not self._closed:
            restart_count, found = self._restart_count, None
            try:
                store = store or self._open_store()
                self._send_refusal(store)
                found = store.generation(self._token, after=0, restart_count=restart_count)
                failures = 0
            except PolluxError as error:
                failures += 1
                if not isinstance(error, UnknownJobError):  # not registered yet
                    self._warnings.log(error)
                if store is not None and not isinstance(error, StoreUnavailable | UnknownJobError):
                    store.close()
                    store = None
            with self._changed:
                if found is not None and restart_count == self._restart_count:
                    self._latest = found
                self._num_reads += 1
                self._has_answered = failures == 0
                self._changed.notify_all()
                pause_s = self._poll_interval_s * 2 ** min(failures, 6)
                self._changed.wait(min(pause_s, max(_LONGEST_PAUSE_S, self._poll_interval_s)))
        if store is not None:
            with contextlib.suppress(PolluxError):
                store.close()
