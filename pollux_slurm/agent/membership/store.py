"""The membership of a training whose processes are in several jobs of Slurm: rows of the store.

Training does not wait for the store. A thread reads it while somebody asks, and sends what is to be said; a
question is answered with what was read last. What is not known, since the store does not answer, is not
planned. Only `commit` waits, for a short time.

A commit whose answer was lost may have arrived. Once the store answers again, `planned` returns that
generation again: its members regroup at their next boundary, and meet where its newcomers wait already.

The daemon starts each process with these variables (`agent/environment/layout.py`): POLLUX_MEMBERSHIP=store;
POLLUX_MEMBER, its id; POLLUX_ADDRESS, by which other nodes reach its own; for a newcomer POLLUX_JOINS. The
job's token, restart count, checkpoint directory and POLLUX_RUN_SECRET are the same in all of them: members
prove to each other that they know the secret.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial

from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.agent.store_connection import StoreConnection
from pollux_slurm.errors import PolluxError, ReportRefusedError, StoreUnavailable
from pollux_slurm.store.contract.membership import GenerationRecord, GenerationState, MembershipStore

_LOG = logging.getLogger(__name__)
# All replicas stand still meanwhile. Without an answer they go on as they are.
_COMMIT_TIMEOUT_S = 3.0
# The thread ends when nobody has asked for so long.
_IDLE_S = 30.0
# All wait for a newcomer to see that its generation is committed, and its GPUs are idle until rank 0 sees
# that it is ready. Both look often at first, and later so rarely that this adds little to what they waited.
_LEAST_INTERVAL_S = 0.1
_SHARE_OF_WAIT = 0.05

_GIVEN_UP = (GenerationState.REFUSED, GenerationState.WITHDRAWN, GenerationState.FAILED)


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit that rank 0 waits for."""

    number: int
    meeting: str
    is_committed: bool | None = None
    error: StoreUnavailable | None = None

    @property
    def is_answered(self) -> bool:
        return self.is_committed is not None or self.error is not None


class StoreMembership:
    """One process's view of its job's generations in the store (a `Membership`)."""

    def __init__(
        self,
        open_store: Callable[[], MembershipStore],
        token: str,
        member: str,
        *,
        host: str,
        joins: int | None,
        restart_count: int,
        poll_interval_s: float,
        commit_timeout_s: float = _COMMIT_TIMEOUT_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = StoreConnection(open_store)
        self._token, self._restart_count = token, restart_count
        self.member, self.host, self.joins = member, host, joins
        self._poll_interval_s, self._commit_timeout_s = poll_interval_s, commit_timeout_s
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Written under the condition; training reads single ones without it.
        self._record: GenerationRecord | None = None
        self._commit: _Commit | None = None
        # By kind, so that it stays small; the newest counts.
        self._unsent: dict[str, Callable[[MembershipStore], object]] = {}
        self._after = 0
        self._asked_s = self._next_look_s = 0.0
        self._waits_since_s: float | None = None
        self._announced_since_s: float | None = None
        self._refuses_all: str | None = None
        self._closing = False

    # ------------------------------------------------------------ called by the training thread

    def planned(self, after: int) -> Generation | None:
        self._waits_since_s = None
        self._ask(after)
        record = self._record
        if record is None or record.number <= after or not record.state.is_open or not record.is_ready:
            return None
        return _generation(record)

    def announced(self, after: int) -> Generation | None:
        record = self._record
        if record is None or record.number <= after or record.state is not GenerationState.PLANNED:
            return None
        return _generation(record)

    def commit(self, number: int, meeting: str | None = None) -> bool:
        if meeting is None:
            raise ValueError("members on several nodes meet at an address")
        wanted = _Commit(number, meeting)
        with self._changed:
            self._commit = wanted
            self._wake()
            self._changed.wait_for(lambda: wanted.is_answered, self._commit_timeout_s)
            if self._commit is wanted:
                self._commit = None
            if not wanted.is_committed:
                # Not asked for again at each boundary: first the thread reads how it stands.
                self._record = None
        if wanted.is_committed is None:
            raise wanted.error or StoreUnavailable(
                f"whether generation {number} is committed is not known after {self._commit_timeout_s:g} s"
            )
        return wanted.is_committed

    def committed(self, number: int) -> Generation | None:
        if self._waits_since_s is None:
            self._waits_since_s = self._monotonic()
        self._ask(number - 1)
        record = self._record
        if record is None or record.number != number or record.meeting is None or record.state in _GIVEN_UP:
            return None
        return _generation(record)

    def is_given_up(self, number: int) -> bool:
        # Asked while members meet, which takes less than a look at the store.
        self._ask(number - 1, soon=False)
        record = self._record
        if record is None or record.number < number:
            return False
        return record.number > number or record.state in _GIVEN_UP

    def report_ready(self) -> None:
        if self.joins is not None:
            self._waits_since_s = self._monotonic()
            self._send(
                "ready",
                lambda store: store.report_ready(
                    self._token, self.member, number=self.joins or 0, restart_count=self._restart_count
                ),
            )

    def report_regrouped(self, number: int, *, standstill_s: float) -> None:
        self._send(
            "regrouped",
            partial(self._advance, number, GenerationState.REGROUPED, standstill_s=standstill_s),
        )

    def refuse(self, number: int, reason: str) -> None:
        if number == 0:
            self._refuses_all = reason
            return
        self._send("refused", partial(self._advance, number, GenerationState.REFUSED, reason=reason))

    def close(self, *, timeout_s: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def _ask(self, after: int, *, soon: bool = True) -> None:
        """Have the thread read what comes after a generation."""
        self._after, self._asked_s = after, self._monotonic()
        if self._thread is None:
            with self._changed:
                self._wake(soon=soon)

    def _send(self, kind: str, call: Callable[[MembershipStore], object]) -> None:
        with self._changed:
            self._unsent[kind] = call
            # What was read before is not how it stands.
            self._record = None
            self._asked_s = self._monotonic()
            self._wake()

    def _wake(self, *, soon: bool = True) -> None:
        """Start the thread where it has ended, or let it see what has changed."""
        if self._thread is None and not self._closing:
            self._next_look_s = self._monotonic() + (0.0 if soon else self._poll_interval_s)
            self._thread = threading.Thread(target=self._run, name="pollux-membership", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        try:
            while self._wait(may_send=not self._store.num_failures):
                try:
                    self._store.call(self._work)
                except PolluxError:
                    with self._changed:
                        self._record = None
                        self._next_look_s = self._monotonic() + self._store.pause_s(self._interval_s())
        except Exception:
            # A defect here must not end the training, and must be logged.
            _LOG.exception("the membership is not read any more: training goes on with its replicas")
        finally:
            self._store.close()

    def _wait(self, *, may_send: bool) -> bool:
        """Wait for something to do; False where the thread is to end, since nobody asks."""
        with self._changed:
            while True:
                now = self._monotonic()
                if self._commit is not None or now >= self._next_look_s or (may_send and self._unsent):
                    break
                if self._closing:
                    break
                self._changed.wait(self._next_look_s - now)
            is_idle = now - self._asked_s > _IDLE_S and self._commit is None
            if (self._closing and not (may_send and self._unsent)) or (is_idle and not self._unsent):
                self._thread = None
                return False
            return True

    def _work(self, store: MembershipStore) -> None:
        with self._changed:
            commit, self._commit = self._commit, None
            unsent = dict(self._unsent)
        if commit is not None:
            self._carry_out(store, commit)
        for kind, call in unsent.items():
            try:
                call(store)
            except ReportRefusedError as error:
                self._store.warn(error)
            with self._changed:
                if self._unsent.get(kind) is call:
                    del self._unsent[kind]
        if commit is None:
            record = store.generation(self._token, after=self._after, restart_count=self._restart_count)
            reason = self._refuses_all
            if reason is not None and record is not None and record.state is GenerationState.PLANNED:
                # Before its newcomers are ready.
                self._advance(record.number, GenerationState.REFUSED, store, reason=reason)
                record = None
            with self._changed:
                self._record = record
                if record is None or record.state is not GenerationState.PLANNED:
                    self._announced_since_s = None
                elif self._announced_since_s is None:
                    self._announced_since_s = self._monotonic()
                self._next_look_s = self._monotonic() + self._interval_s()

    def _carry_out(self, store: MembershipStore, commit: _Commit) -> None:
        try:
            is_committed = self._advance(
                commit.number, GenerationState.COMMITTED, store, meeting=commit.meeting
            )
        except PolluxError as error:
            with self._changed:
                commit.error = StoreUnavailable(f"whether it is committed is not known: {error}")
                self._changed.notify_all()
            raise
        with self._changed:
            record = self._record
            if is_committed and record is not None and record.number == commit.number:
                self._record = replace(record, state=GenerationState.COMMITTED, meeting=commit.meeting)
            commit.is_committed = is_committed
            self._changed.notify_all()

    def _advance(
        self,
        number: int,
        state: GenerationState,
        store: MembershipStore,
        *,
        meeting: str | None = None,
        standstill_s: float | None = None,
        reason: str | None = None,
    ) -> bool:
        return store.advance_generation(
            self._token,
            number,
            state,
            restart_count=self._restart_count,
            at=datetime.now(timezone.utc),
            meeting=meeting,
            standstill_s=standstill_s,
            reason=reason,
        )

    def _interval_s(self) -> float:
        since_s = self._announced_since_s if self._waits_since_s is None else self._waits_since_s
        if since_s is None:
            return self._poll_interval_s
        waited_s = self._monotonic() - since_s
        return min(max(_SHARE_OF_WAIT * waited_s, _LEAST_INTERVAL_S), self._poll_interval_s)


def _generation(record: GenerationRecord) -> Generation:
    members = tuple(Member(id=one.id, node=one.node_name) for one in record.members)
    return Generation(number=record.number, members=members, meeting=record.meeting)
