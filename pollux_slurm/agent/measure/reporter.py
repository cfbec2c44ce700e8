"""The background thread of rank 0 that reports to the store, so that training never waits for it.

Memory is bounded: a report is composed when it is sent, from the latest state, and at most one confirmation
of a checkpoint waits to be sent. An outage of the store costs reports, never steps.
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
from functools import partial
from typing import Any, Protocol

from pollux_slurm.agent.store_connection import StoreConnection
from pollux_slurm.errors import (
    PolluxError,
    ReportRefusedError,
    StaleRunError,
    UnknownJobError,
)
from pollux_slurm.store.contract.interface import AgentStore, CheckpointConfirmation, Move, Report

_LOG = logging.getLogger(__name__)
# So many reports at most follow at the interval of the first reports.
_MAX_FIRST_REPORTS = 30
# Where a daemon runs, it registers a job within seconds of its start.
_REGISTRATION_TIMEOUT_S = 120.0


def utc_now() -> datetime:
    """Return the current time as an aware UTC datetime."""
    return datetime.now(timezone.utc)


class Compose(Protocol):
    """Composes the report that is due. Called in the reporter's thread."""

    def __call__(self, *, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report: ...


def _no_store() -> None:
    return None


class Reporter:
    """Sends reports and polls for checkpoint requests, until closed.

    Until a report contains a throughput model, reports follow at `first_reports_interval_s`, so that the
    daemon soon has a model. Without a store (`open_store` is None) the thread still composes at each
    interval, since composing also fits the model and proposes a batch size.

    `fitting_atomic` is how many examples fit into memory at once by jobs of its kind, as of the last report's
    answer; None where unknown. `has_answer` once a report was answered.

    `job_name` ("job 3") and `where` (epoch and example) appear in the job's log when a run ends.
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
        first_reports_interval_s: float = 2.0,
        job_name: str = "the job",
        where: Callable[[], str] | None = None,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_store, self._token, self._run_number = open_store, token, run_number
        self._store: StoreConnection[Any] = StoreConnection(
            open_store or _no_store, answers=(StaleRunError, UnknownJobError)
        )
        self._compose = compose
        self._report_interval_s, self._poll_interval_s = report_interval_s, poll_interval_s
        self._first_reports_interval_s = first_reports_interval_s
        self._job_name, self._where = job_name, where
        self._now, self._monotonic = now, monotonic
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pollux-reporter", daemon=True)
        self._sequence = 0
        self._is_measured = False
        self._unsent: Report | None = None
        # Written under the condition; training reads single ones without it.
        self._report_wanted = False
        self._confirmation: CheckpointConfirmation | None = None
        self._confirmed_request: int | None = None
        self._request: int | None = None
        self.fitting_atomic: int | None = None
        self.has_answer = False
        self._superseded = False
        self._closing = False
        # The move of the last request. Only the thread uses what follows.
        self._move: tuple[int, Move | None] | None = None
        self._is_stopping = False
        self._unknown_since: float | None = None
        self._next_report_s = self._next_poll_s = 0.0
        self._is_due = False

    # ------------------------------------------------------------ called by the training thread

    @property
    def checkpoint_request(self) -> int | None:
        """The id of the open checkpoint request, as of the last poll; None without one."""
        return self._request

    @property
    def superseded(self) -> bool:
        """True once the store has answered that a newer run of the job exists."""
        return self._superseded

    @property
    def report_delay_s(self) -> float:
        """The seconds from one report to the next."""
        if self._is_measured or self._sequence > _MAX_FIRST_REPORTS:
            return self._report_interval_s
        return min(self._report_interval_s, self._first_reports_interval_s)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def report_soon(self) -> None:
        """Send a report now instead of at the end of the interval."""
        with self._changed:
            self._report_wanted = True
            self._changed.notify_all()

    def confirm(self, confirmation: CheckpointConfirmation) -> None:
        """Send `confirmation` if there is a store; repeat that until it arrives or is withdrawn."""
        if self._open_store is None:
            return
        with self._changed:
            self._confirmation = confirmation
            self._changed.notify_all()

    def withdraw_confirmation(self) -> None:
        """Stop sending the confirmation: training continues, so that checkpoint is not its last."""
        with self._changed:
            self._confirmation = None
            is_stopping, self._is_stopping = self._is_stopping, False
        if is_stopping:
            _LOG.info("%s continues where it is: the move was cancelled", self._job_name)

    def log_stopped(self, by: str, *, is_saved: bool) -> None:
        """Log that a signal ends this run."""
        saved = "its checkpoint is written" if is_saved else "no checkpoint was written"
        _LOG.info("%s is stopped by %s%s: %s", self._job_name, by, self._where_text(), saved)

    def is_confirmed(self, request_id: int) -> bool:
        """Tell whether the store has received the confirmation for `request_id`."""
        return self._confirmed_request == request_id

    def close(self, *, timeout_s: float) -> None:
        """Send a last report, waiting `timeout_s` at most, and end the thread."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            # Without a store, a last report would only fit a model that nothing uses.
            self._report_wanted = self._open_store is not None
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        self._next_report_s = self._next_poll_s = self._monotonic()
        try:
            while True:
                with self._changed:
                    closing = self._closing
                self._is_due = False
                pause_s = None
                try:
                    self._store.call(partial(self._turn, closing=closing))
                    self._unknown_since = None
                except StaleRunError as error:
                    # The last report of a run may come after the first of the next: then nothing is wrong.
                    if not self._closing:
                        self._store.warn(error)
                    self._superseded = True
                    return
                except UnknownJobError:
                    # Not registered yet: the daemon does so in its next round.
                    pause_s = self._store.pause_s(self._poll_interval_s)
                    self._log_if_not_registered()
                except PolluxError:
                    pause_s = self._store.pause_s(self._poll_interval_s)
                if closing:
                    return
                if pause_s is not None:
                    with self._changed:
                        self._report_wanted = self._report_wanted or self._is_due
                    self._next_poll_s = self._monotonic()
                    self._pause(pause_s, interruptible=False)
                else:
                    next_s = self._next_report_s
                    if self._open_store is not None:
                        next_s = min(next_s, self._next_poll_s)
                    self._pause(max(next_s - self._monotonic(), 0.0), interruptible=True)
        except Exception:
            # A defect here must not end the training, and must be logged.
            _LOG.exception("the reporter stopped: training goes on without reports")
        finally:
            self._store.close()

    def _turn(self, store: AgentStore | None, *, closing: bool) -> None:
        """Report and poll, as far as either is due."""
        started = self._monotonic()
        with self._changed:
            self._is_due = self._report_wanted or self._confirmation is not None
            self._is_due = self._is_due or (started >= self._next_report_s and not closing)
            self._report_wanted = False
        if self._is_due:
            self._report(store)
            self._next_report_s = self._monotonic() + self.report_delay_s
        if store is not None and not closing and started >= self._next_poll_s:
            request = store.poll(self._token, self._run_number, at=self._now()).checkpoint_request
            self._fetch_move(store, request)
            self._request = request
            self._next_poll_s = self._monotonic() + self._poll_interval_s

    def _pause(self, pause_s: float, *, interruptible: bool) -> None:
        """Wait for `pause_s`; if `interruptible`, end early when there is something to send."""
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
            # Repeated unchanged, with its sequence number, until the store answers: it may have arrived.
            self._unsent = unsent
        self._send(store, unsent)
        with self._changed:
            self._unsent = None
            if confirmation is not None and self._confirmation is confirmation:
                self._confirmation = None
                self._confirmed_request = confirmation.request_id
                self._is_stopping = confirmation.request_id is not None
                is_stopping = self._is_stopping
            else:
                is_stopping = False
        if is_stopping:
            self._log_move()

    def _fetch_move(self, store: AgentStore, request: int | None) -> None:
        """Read, once for each request, the move that it belongs to.

        This happens before the confirmation: soon after that, Slurm ends the process.
        """
        if request is None or (self._move is not None and self._move[0] == request):
            return
        self._move = (request, None)
        # Only a log line needs it, so a failure must not prevent the answer to the request.
        with contextlib.suppress(PolluxError):
            self._move = (request, store.move(self._token, request))

    def _log_move(self) -> None:
        """Log why this run ends and where it continues; Slurm only logs the requeue."""
        request, move = self._move or (None, None)
        if move is None or request != self._confirmed_request:
            what = "is stopped to be moved"
        elif not move.target:
            what = f"is paused and gives back {move.source}"
        elif move.source == move.target:
            what = f"is started again on {move.target}"
        else:
            what = f"is moved from {move.source} to {move.target}"
        reason = f" ({move.reason})" if move is not None and move.reason else ""
        _LOG.info(
            "%s %s%s%s: its checkpoint is written, and it is requeued now",
            *(self._job_name, what, self._where_text(), reason),
        )

    def _where_text(self) -> str:
        where = "" if self._where is None else self._where()
        return f", {where}" if where else ""

    def _log_if_not_registered(self) -> None:
        """Log once that no daemon has registered the job for too long."""
        now = self._monotonic()
        if self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since >= _REGISTRATION_TIMEOUT_S:
            self._store.warn(
                UnknownJobError(
                    f"{self._job_name} is not registered yet, so it reports nothing and is never moved; "
                    "is pollux daemon running?"
                )
            )

    def _send(self, store: AgentStore, report: Report) -> None:
        field = non_finite_field(report)
        if field is not None:
            self._store.warn(
                ReportRefusedError(f"{field} is not a finite number: reported without measurements")
            )
            report = _without_measurements(report)
        try:
            self.fitting_atomic = store.report(self._token, report, at=self._now())
            self.has_answer = True
        except ReportRefusedError as error:
            self._store.warn(error)
            if report.checkpoint is not None:
                # A confirmation must arrive even if the model is refused.
                store.report(self._token, _without_measurements(report), at=self._now())


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


def _without_measurements(report: Report) -> Report:
    """Return the report without measured values."""
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
