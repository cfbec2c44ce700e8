"""What became of a job's wish to be finished by a moment: for `pollux sbatch`, `explain`, `status`, pages."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import JobState, PromiseState
from pollux_slurm.store.contract.interface import JobRecord, JobStore, PromiseRecord
from pollux_slurm.text import UNKNOWN, duration_text, moment_text, plural


def promise_text(by: datetime, promise: PromiseRecord | None) -> str:
    """Return what became of the wish to be finished `by` a moment; None for no answer yet."""
    wish = f"by {moment_text(by)} UTC"
    if promise is None:
        return f"{wish}: no round has answered yet"
    if promise.state is PromiseState.UNKNOWN:
        return f"{wish}: not known yet: {promise.reason}"
    if promise.state is PromiseState.ENDED:
        return f"{wish}: the promise has ended: {promise.reason}"
    finish_at = promise.finish_at
    if promise.state is PromiseState.REFUSED and promise.reason is not None:
        return f"{wish}: does not fit: {promise.reason}"
    if promise.state is PromiseState.REFUSED:
        earliest = (
            "never within the user's share" if finish_at is None else f"earliest {moment_text(finish_at)} UTC"
        )
        return f"{wish}: does not fit: {earliest}"
    until = "" if finish_at is None else f" until {moment_text(finish_at)} UTC"
    with_gpus = f"with {plural(promise.least_gpus, 'GPU')}" if promise.least_gpus else "without GPUs for now,"
    but = "" if promise.reason is None else f", but {promise.reason}"
    return f"{wish}: fits {with_gpus}{until} at 90 %; {slack_text(by, promise)}{but}"


def slack_text(by: datetime, promise: PromiseRecord | None) -> str:
    """Return how much earlier than its moment a job with a promise is finished; the state of any other."""
    if promise is None:
        return "not answered"
    if promise.state is not PromiseState.ACCEPTED or promise.finish_at is None:
        return promise.state.value
    slack = by - promise.finish_at
    late = slack < timedelta(0)
    return f"{duration_text(abs(slack.total_seconds()))} {'late' if late else 'to spare'}"


def outcome_text(record: JobRecord) -> str | None:
    """Return what became of a job's moment, None without one."""
    by = record.terms.finish_by
    if by is None:
        return None
    outcome = _outcome(record)
    return promise_text(by, record.promise) if outcome is None else f"by {moment_text(by)} UTC: {outcome}"


def slack_of(record: JobRecord) -> str:
    """Return the slack of a job's promise in a few words."""
    by = record.terms.finish_by
    if by is None:
        return UNKNOWN
    return _outcome(record) or slack_text(by, record.promise)


def _outcome(record: JobRecord) -> str | None:
    """Return whether a job that is over was finished by its moment, None for one that is not over."""
    by, finished_at = record.terms.finish_by, record.finished_at
    if by is None or finished_at is None:
        return None
    if record.state is not JobState.COMPLETED:
        return "not finished"
    return "in time" if finished_at <= by else "too late"


def wait_for_answer(jobs: JobStore, token: str, by: datetime, job_id: str, *, wait_s: float) -> str | None:
    """Return the daemon's answer to a new job with a moment, None where none comes within `wait_s`.

    An answer that is not known yet names the command that tells it.
    """
    ends_s = time.monotonic() + wait_s
    while True:
        try:
            promise = jobs.promise(token)
        except UnknownJobError:
            promise = None
        if promise is not None:
            later = f"; later: pollux explain {job_id}" * (promise.state is PromiseState.UNKNOWN)
            return promise_text(by, promise) + later
        if time.monotonic() >= ends_s:
            return None
        time.sleep(0.5)
