"""The planned regroups of a rehearsed run: rank 0 asks its launcher for them, as `pollux resize` does."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pollux_slurm.agent.membership.folder import MembershipFolder
from pollux_slurm.agent.membership.resize_requests import ResizeRequest, ResizeRequests
from pollux_slurm.agent.rehearsal_protocol import EventLog, Stop

_POLL_INTERVAL_S = 0.01


class PlannedRegroups:
    """The regroups that are left to this process, where it is rank 0.

    They are asked for one after the other. The first that does not come about is the last: what kept it from
    that would keep the others.
    """

    def __init__(self, folder: Path, planned: tuple[Stop, ...], events: EventLog) -> None:
        self._requests, self._membership = ResizeRequests(folder), MembershipFolder(folder)
        self._planned, self._events = planned, events
        self._stop: Stop | None = None
        self._request: ResizeRequest | None = None
        self._waits_for_epoch_end = False
        self.has_failed = False

    def next_after(self, generation: int) -> Stop | None:
        """Return the regroup to ask for after so many; None where none is left, or one is asked for."""
        if self._request is not None or self.has_failed:
            return None
        return self._planned[generation] if generation < len(self._planned) else None

    def ask(self, stop: Stop, generation: int, *, is_stopped: Callable[[], bool]) -> None:
        """Ask for a regroup, and wait until its newcomers are ready, so that it is where it is planned."""
        self._stop, self._request = stop, self._requests.ask(stop.num_processes, stop.leaves)
        self._events.write("regroup_asked")
        asked_s = time.monotonic()
        while self._membership.plan_after(generation) is None:
            if self.note_answer() or is_stopped():
                return
            time.sleep(_POLL_INTERVAL_S)
        self._events.write("newcomers_ready", after_s=time.monotonic() - asked_s)

    def joins(self, num_processes: int) -> bool:
        """Return whether processes join by the regroup that was asked for."""
        return self._stop is not None and self._stop.num_processes > num_processes

    def note_answer(self) -> bool:
        """Log why the regroup that was asked for did not come about; return whether that is known."""
        if self._request is None or self.has_failed:
            return self.has_failed
        answer, refusal = self._requests.take_answer(self._request), self._membership.refusal(0)
        if refusal is not None:
            self.note_refusal(refusal)
        elif answer is not None and not answer.is_done:
            self.has_failed = True
            self._events.write("regroup_failed", reason=answer.text)
        return self.has_failed

    def note_refusal(self, reason: str) -> None:
        """Log why this script cannot regroup."""
        if not self.has_failed:
            self.has_failed = True
            self._events.write("regroup_refused", reason=reason)

    def note_reason_to_wait(self, reason: str | None) -> None:
        """Log why the regroup that was asked for waits for the end of the epoch."""
        if reason is not None and not self._waits_for_epoch_end:
            self._waits_for_epoch_end = True
            self._events.write("regroup_waits", reason=reason)

    def note_regrouped(self) -> None:
        """Go on with the next one."""
        self._stop = self._request = None
        self._waits_for_epoch_end = False
