"""Reads the newest generation of a job from the store, in a thread: the anchor never waits for the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial

from pollux_slurm.agent.store_connection import StoreConnection
from pollux_slurm.errors import PolluxError
from pollux_slurm.launch.node.watched_processes import start_thread
from pollux_slurm.store.contract.membership import GenerationRecord, GenerationState, MembershipStore


class GenerationWatch:
    """What the store says of the generations of one start; nothing is new while it does not answer."""

    def __init__(
        self, open_store: Callable[[], MembershipStore], token: str, *, poll_interval_s: float
    ) -> None:
        self._store = StoreConnection(open_store)
        self._token, self._poll_interval_s = token, poll_interval_s
        self._changed = threading.Condition()
        self._restart_count = 0
        self._latest: GenerationRecord | None = None
        self._num_reads = 0
        self._has_answered = False
        self._closed = False
        self._refusal: tuple[GenerationRecord, str] | None = None
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
        while not self._closed:
            restart_count, found = self._restart_count, None
            pause_s, has_answered = self._poll_interval_s, True
            try:
                found = self._store.call(partial(self._read, restart_count=restart_count))
            except PolluxError:
                pause_s, has_answered = self._store.pause_s(self._poll_interval_s), False
            with self._changed:
                if found is not None and restart_count == self._restart_count:
                    self._latest = found
                self._num_reads += 1
                self._has_answered = has_answered
                self._changed.notify_all()
                self._changed.wait(pause_s)
        self._store.close()

    def _read(self, store: MembershipStore, *, restart_count: int) -> GenerationRecord | None:
        self._send_refusal(store)
        return store.generation(self._token, after=0, restart_count=restart_count)
