"""The background thread of rank 0 that talks to the store (invariant 6: training never waits for it).

Memory is bounded: one report is composed when it is sent, from the latest state; one confirmation of a
checkpoint at most waits to be delivered. An outage costs reports, never steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, Protocol

from pollux_slurm.errors import (
    PolluxError,
    ReportRefusedError,
    StaleRunError,
    StoreUnavailable,
    UnknownJobError,
)
from pollux_slurm.store.contract.interface import AgentStore, CheckpointConfirmation, Move, Report

_LOG = logging.getLogger(__name__)
_MOST_BACKOFF_S = 30.0
# Until a run has told what was measured its reports come sooner, but for one that takes its time.
_SOONER_S, _MOST_SOONER = 10.0, 12
# A job is registered within seconds of its start where a daemon runs.
_UNKNOWN_FOR_S = 120.0


def utc_now() -> datetime:
    """Return the time as an aware UTC datetime."""
    return datetime.now(timezone.utc)


class Compose(Protocol):
    """Makes the report that is due. Called in the reporter's thread."""

    def __call__(self, *, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report: ...


class Reporter:
    """Sends reports and asks for checkpoint requests, until closed.

    Without a store (`open_store` is None) the thread still composes at each interval, since composing is
    also what fits the model and proposes a batch size.

    `job_name` ("job 3") and `where` (in which epoch, at which example) are for the line in the job's log
    that says why a run ends.
    """

    def __init__(
        self,
        *,
        open_store: Callable[[], AgentStore] | None,
        token: str,
        run_number: int,
        compose: Compose,
        report_interval_s: float,
        poll_interval_s: float,
        job_name: str = "the job",
        where: Callable[[], str] | None = None,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_store, self._token, self._run_number = open_store, token, run_number
        self._compose = compose
        self._report_interval_s, self._poll_interval_s = report_interval_s, poll_interval_s
        self._job_name, self._where = job_name, where
        self._now, self._monotonic = now, monotonic
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pollux-reporter", daemon=True)
        self._sequence = 0
        self._is_measured = False
        self._unsent: Report | None = None
        # All below are written under the condition; single reads by training need no lock.
        self._report_wanted = False
        self._confirmation: CheckpointConfirmation | None = None
        self._delivered: int | None = None
        self._request: int | None = None
        self._superseded = False
        self._closing = False
        self._complaints: set[str] = set()
        # Of the request last seen. Used in the thread alone.
        self._move: tuple[int, Move | None] | None = None
        self._is_leaving = False
        self._unknown_since: float | None = None

    # ------------------------------------------------------------ the training thread's side

    @property
    def checkpoint_request(self) -> int | None:
        """The id of the checkpoint that the store asks for, as of the last answer; None when nothing is."""
        return self._request

    @property
    def superseded(self) -> bool:
        """True once the store has said that a newer run of the job exists."""
        return self._superseded

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def report_soon(self) -> None:
        """Send a report now instead of at the end of the interval."""
        with self._changed:
            self._report_wanted = True
            self._changed.notify_all()

    def confirm(self, confirmation: CheckpointConfirmation) -> None:
        """Deliver `confirmation` if there is a store, trying again until it arrives or is withdrawn."""
        if self._open_store is None:
            return
        with self._changed:
            self._confirmation = confirmation
            self._changed.notify_all()

    def withdraw_confirmation(self) -> None:
        """Stop trying: training goes on, and what was written is no longer its last checkpoint."""
        with self._changed:
            self._confirmation = None
            is_leaving, self._is_leaving = self._is_leaving, False
        if is_leaving:
            _LOG.info("%s goes on where it is: the move was given up", self._job_name)

    def log_stopped(self, *, is_saved: bool) -> None:
        """Say in the job's log that SIGTERM ends this run."""
        saved = "its checkpoint is written" if is_saved else "no checkpoint was written now"
        _LOG.info("%s is stopped by SIGTERM%s: %s", self._job_name, self._place(), saved)

    def is_confirmed(self, request_id: int) -> bool:
        """Tell whether the store has the confirmation for `request_id`."""
        return self._delivered == request_id

    def close(self, *, timeout_s: float) -> None:
        """Send a last report if that takes no longer than `timeout_s`, then leave the thread to its end."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            # Without a store a report is composed only to fit the model, which nobody will use any more.
            self._report_wanted = self._open_store is not None
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ------------------------------------------------------------ the thread's side

    def _run(self) -> None:
        store: AgentStore | None = None
        failures = 0
        next_report = next_poll = self._monotonic()
        try:
            while True:
                started = self._monotonic()
                answered = True
                with self._changed:
                    closing = self._closing
                    due = self._report_wanted or self._confirmation is not None
                    due = due or (started >= next_report and not closing)
                    self._report_wanted = False
                try:
                    if store is None and self._open_store is not None:
                        store = self._open_store()
                    if due:
                        self._report(store)
                        next_report = self._monotonic() + self._until_next_s()
                    if store is not None and not closing and started >= next_poll:
                        request = store.poll(self._token, self._run_number, at=self._now()).checkpoint_request
                        self._look_at(store, request)
                        self._request = request
                        next_poll = self._monotonic() + self._poll_interval_s
                    failures, self._unknown_since = 0, None
                except StaleRunError as error:
                    self._complain(error)
                    self._superseded = True
                    return
                except UnknownJobError:
                    # Not registered yet: the daemon does so from its next bulk read.
                    answered = False
                    self._wonder()
                except StoreUnavailable as error:
                    answered = False
                    failures += 1
                    self._complain(error)
                except PolluxError as error:
                    answered = False
                    failures += 1
                    self._complain(error)
                    if store is not None:
                        store.close()
                        store = None
                if closing:
                    return
                pause_s = self._poll_interval_s
                if not answered:
                    pause_s = min(self._poll_interval_s * 2 ** min(failures, 10), _MOST_BACKOFF_S)
                    with self._changed:
                        self._report_wanted = self._report_wanted or due
                    next_poll = self._monotonic()
                elif store is None:
                    pause_s = max(next_report - self._monotonic(), 0.0)
                else:
                    pause_s = max(min(next_report, next_poll) - self._monotonic(), 0.0)
                self._pause(pause_s, interruptible=answered)
        except Exception:
            # A defect here must not take training down, nor pass in silence.
            _LOG.exception("the reporter stopped: training goes on without reports")
        finally:
            if store is not None:
                store.close()

    def _until_next_s(self) -> float:
        """Return how long until the next report. The first that tells what was measured is waited for."""
        if self._is_measured or self._sequence > _MOST_SOONER:
            return self._report_interval_s
        return min(self._report_interval_s, _SOONER_S)

    def _pause(self, pause_s: float, *, interruptible: bool) -> None:
        """Wait; new work ends the wait early, unless the store has just failed to answer."""
        deadline = self._monotonic() + pause_s
        with self._changed:
            while not self._closing:
                if interruptible and (self._report_wanted or self._confirmation is not None):
                    return
                left_s = deadline - self._monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def _report(self, store: AgentStore | None) -> None:
        with self._changed:
            confirmation = self._confirmation
            unsent, self._unsent = self._unsent, None
        if unsent is None or unsent.checkpoint is not confirmation:
            self._sequence += 1
            unsent = self._compose(sequence=self._sequence, checkpoint=confirmation)
        model = unsent.model
        self._is_measured |= model is not None and model.throughput is not None
        if store is None:
            return
        if confirmation is not None:
            # Sent again as it is, under its own number, until the store has answered: it may have arrived.
            self._unsent = unsent
        self._send(store, unsent)
        with self._changed:
            self._unsent = None
            if confirmation is not None and self._confirmation is confirmation:
                self._confirmation = None
                self._delivered = confirmation.request_id
                self._is_leaving = confirmation.request_id is not None
                is_leaving = self._is_leaving
            else:
                is_leaving = False
        if is_leaving:
            self._say_why()

    def _look_at(self, store: AgentStore, request: int | None) -> None:
        """Learn, once for each request, what it is for: before it is answered, since then Slurm is quick."""
        if request is None or (self._move is not None and self._move[0] == request):
            return
        self._move = (request, None)
        # For a line in the log only: no reason not to answer the request.
        with contextlib.suppress(PolluxError):
            self._move = (request, store.move(self._token, request))

    def _say_why(self) -> None:
        """Say, beside Slurm's own words about a requeue, why this run ends and what comes next."""
        request, move = self._move or (None, None)
        if move is None or request != self._delivered:
            what = "is stopped to be placed anew"
        elif not move.target:
            what = f"is paused and gives back {move.source}"
        elif move.source == move.target:
            what = f"is started again on {move.target}"
        else:
            what = f"is moved from {move.source} to {move.target}"
        reason = f" ({move.reason})" if move is not None and move.reason else ""
        _LOG.info(
            "%s %s%s%s: its checkpoint is written, and Slurm requeues it now",
            *(self._job_name, what, self._place(), reason),
        )

    def _place(self) -> str:
        where = "" if self._where is None else self._where()
        return f", {where}" if where else ""

    def _wonder(self) -> None:
        """Say once where nobody comes to register the job."""
        now = self._monotonic()
        if self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since >= _UNKNOWN_FOR_S:
            self._complain(
                UnknownJobError(
                    f"it does not know {self._job_name} yet: nothing is reported, and nobody moves the job; "
                    "is pollux daemon running?"
                )
            )

    def _send(self, store: AgentStore, report: Report) -> None:
        bad = non_finite_field(report)
        if bad is not None:
            self._complain(ReportRefusedError(f"{bad} is not a finite number: reported without a model"))
            report = _bare(report)
        try:
            store.report(self._token, report, at=self._now())
        except ReportRefusedError as error:
            self._complain(error)
            if report.checkpoint is not None:
                # A confirmed checkpoint must arrive whatever is wrong with the model.
                store.report(self._token, _bare(report), at=self._now())

    def _complain(self, error: PolluxError) -> None:
        """Log each reason once."""
        reason = f"{type(error).__name__}: {error}"
        if reason not in self._complaints and len(self._complaints) < 100:
            self._complaints.add(reason)
            _LOG.warning("store: %s", reason)


def non_finite_field(report: Report) -> str | None:
    """Return the path of the first number in `report` that is NaN or infinite, None if there is none."""
    return _find_non_finite(report, "report")


def _find_non_finite(value: Any, path: str) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else path
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            found = _find_non_finite(getattr(value, field.name), f"{path}.{field.name}")
            if found is not None:
                return found
    return None


def _bare(report: Report) -> Report:
    """Return the report with nothing in it that was measured."""
    return dataclasses.replace(
        report,
        model=None,
        batch=None,
        throughput=None,
        predicted_throughput=None,
        step_time_s=None,
        efficiency=None,
        progress=report.progress if math.isfinite(report.progress) else 0.0,
        first_step_s=None,
        restore_s=None,
    )
