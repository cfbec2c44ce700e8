"""The answer to a job that asks to be finished by a moment, as a text for people."""

from __future__ import annotations

from datetime import datetime, timedelta

from pollux_slurm.model import PromiseState
from pollux_slurm.store.contract.interface import PromiseRecord
from pollux_slurm.text import duration_text, moment_text, plural


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
    if promise.state is PromiseState.REFUSED:
        earliest = (
            "never within the user's share" if finish_at is None else f"earliest {moment_text(finish_at)} UTC"
        )
        return f"{wish}: does not fit: {earliest}"
    until = "" if finish_at is None else f" until {moment_text(finish_at)} UTC"
    with_gpus = f"with {plural(promise.least_gpus, 'GPU')}" if promise.least_gpus else "without GPUs for now,"
    return f"{wish}: fits {with_gpus}{until} at 90 %; {slack_text(by, promise)}"


def slack_text(by: datetime, promise: PromiseRecord | None) -> str:
    """Return how much earlier than its moment a job with a promise is finished; the state of any other."""
    if promise is None:
        return "not answered"
    if promise.state is not PromiseState.ACCEPTED or promise.finish_at is None:
        return promise.state.value
    slack = by - promise.finish_at
    late = slack < timedelta(0)
    return f"{duration_text(abs(slack.total_seconds()))} {'late' if late else 'to spare'}"
