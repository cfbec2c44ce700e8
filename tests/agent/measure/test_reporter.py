"""The reporter, with a real store and with stores that fail."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from pollux_slurm.agent.measure.reporter import Reporter, non_finite_field
from pollux_slurm.errors import (
    ReportRefusedError,
    SchemaVersionError,
    StaleRunError,
    StoreUnavailable,
    UnknownJobError,
)
from pollux_slurm.model import Allocation, GradientStatistics
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store import open_agent_store
from pollux_slurm.store.contract.interface import (
    AgentStore,
    CheckpointConfirmation,
    Move,
    Poll,
    Report,
    RunPhase,
    Store,
)
from tests.store.builders import MODEL, at, plan, registration, report, token_of
from tests.waiting import wait_until


class FailingStore:
    """An `AgentStore` that raises the given errors, then records reports."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.reports: list[Report] = []
        self.num_calls = 0
        self.closed = 0

    def _fail(self) -> None:
        self.num_calls += 1
        if self.errors:
            raise self.errors.pop(0)

    def report(self, token: str, report: Report, *, at: datetime) -> None:
        self._fail()
        self.reports.append(report)

    def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
        self._fail()
        return Poll(checkpoint_request=None)

    def move(self, token: str, request_id: int) -> Move | None:
        return None

    def close(self) -> None:
        self.closed += 1


def composing(**changes: Any) -> Callable[..., Report]:
    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        return report(sequence, checkpoint=checkpoint, **changes)

    return compose


@contextmanager
def reporting(
    open_store: Callable[[], AgentStore] | None,
    compose: Callable[..., Report] | None = None,
    **changes: Any,
) -> Iterator[Reporter]:
    reporter = Reporter(
        open_store=open_store,
        token=token_of(1),
        run_number=0,
        compose=compose or composing(),
        **{"report_interval_s": 0.02, "poll_interval_s": 0.01, **changes},
    )
    reporter.start()
    try:
        yield reporter
    finally:
        reporter.close(timeout_s=120)


def wait(condition: Callable[[], Any], what: str) -> Any:
    return wait_until(condition, timeout_s=120, what=what, every_s=0.01)


def test_that_reports_and_requests_pass_through_the_real_store(store: Store, store_url: str) -> None:
    store.jobs.register([registration(1)], at=at(0))
    with reporting(lambda: open_agent_store(store_url)) as reporter:
        wait(lambda: store.jobs.get("1").sample, "a first report")
        move = plan(store)
        store.journal.advance(move.id, Step.CHECKPOINT_REQUESTED, expected=Step.PLANNED, at=at(21))
        assert wait(lambda: reporter.checkpoint_request, "the request") == move.id
        assert not reporter.is_confirmed(move.id)
        reporter.confirm(CheckpointConfirmation(request_id=move.id, blocked_s=0.1, size_bytes=10))
        wait(lambda: reporter.is_confirmed(move.id), "delivery")
        assert store.journal.reallocations()[0].step is Step.CHECKPOINTED
        store.journal.advance(move.id, Step.ROLLED_BACK, expected=Step.CHECKPOINTED, at=at(22))
        wait(lambda: reporter.checkpoint_request is None, "the request to go")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "job 1 is moved from n0:2 to n1:3+n2:1, in epoch 10 at example 7152: its checkpoint is written"),
        (
            {"target": Allocation(), "reason": "by hand: pollux pause"},
            "job 1 is paused and gives back n0:2, in epoch 10 at example 7152 (by hand: pollux pause): its",
        ),
        ({"target": Allocation.of({"n0": 2})}, "job 1 is started again on n0:2, in epoch 10 at example 7152"),
    ],
)
def test_that_the_log_has_the_reason_and_the_target_of_a_move(
    store: Store, store_url: str, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], message: str
) -> None:
    caplog.set_level("INFO", logger="pollux_slurm")
    store.jobs.register([registration(1)], at=at(0))
    named = {"job_name": "job 1", "where": lambda: "in epoch 10 at example 7152"}
    with reporting(lambda: open_agent_store(store_url), **named) as reporter:
        wait(lambda: store.jobs.get("1").sample, "a first report")
        move = plan(store, **changes)
        store.journal.advance(move.id, Step.CHECKPOINT_REQUESTED, expected=Step.PLANNED, at=at(21))
        wait(lambda: reporter.checkpoint_request, "the request")
        reporter.confirm(CheckpointConfirmation(request_id=move.id, blocked_s=0.1, size_bytes=10))
        wait(lambda: any(message in line for line in caplog.messages), "the line")
        store.journal.advance(move.id, Step.ROLLED_BACK, expected=Step.CHECKPOINTED, at=at(22))
        wait(lambda: reporter.checkpoint_request is None, "the request to go")
        for _ in range(2):
            reporter.withdraw_confirmation()
    ours = [line for line in caplog.messages if line.startswith("job 1 ")]
    assert [message in ours[0], *ours[1:]] == [True, "job 1 continues where it is: the move was cancelled"]


def test_that_a_store_that_cannot_return_the_move_delays_no_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Vague(FailingStore):
        def poll(self, token: str, run_number: int, *, at: datetime) -> Poll:
            return Poll(checkpoint_request=7)

        def move(self, token: str, request_id: int) -> Move | None:
            raise SchemaVersionError("it has no such function")

    caplog.set_level("INFO", logger="pollux_slurm")
    vague = Vague()
    with reporting(lambda: vague) as reporter:
        wait(lambda: reporter.checkpoint_request == 7, "the request")
        reporter.confirm(CheckpointConfirmation(request_id=7, blocked_s=0.1, size_bytes=10))
        wait(lambda: reporter.is_confirmed(7), "delivery")
        wait(lambda: caplog.messages, "the line")
    assert caplog.messages == [
        "the job is stopped to be moved: its checkpoint is written, and it is requeued now"
    ]
    assert vague.closed == 1


def test_that_a_job_that_no_daemon_registers_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ticks = itertools.count(0.0, 10.0)  # each look at the clock takes ten seconds

    class Unknown(FailingStore):
        def report(self, token: str, report: Report, *, at: datetime) -> None:
            self.num_calls += 1
            raise UnknownJobError("never heard of it")

    unknown = Unknown()
    with reporting(lambda: unknown, monotonic=lambda: next(ticks), poll_interval_s=0.001):
        wait(lambda: unknown.num_calls >= 30, "several attempts")
    assert len([line for line in caplog.messages if "is pollux daemon running?" in line]) == 1


def test_that_reports_of_an_unregistered_job_are_retried(store: Store, store_url: str) -> None:
    with reporting(lambda: open_agent_store(store_url), poll_interval_s=0.05):
        store.jobs.register([registration(1)], at=at(0))
        wait(lambda: store.jobs.get("1").sample, "the report after registration")


def test_that_a_newer_run_supersedes_this_one(store: Store, store_url: str) -> None:
    store.jobs.register([registration(1)], at=at(0))
    store.agent.report(token_of(1), report(run_number=1, restart_count=1), at=at(1))
    with reporting(lambda: open_agent_store(store_url)) as reporter:
        wait(lambda: reporter.superseded, "the news")


@pytest.mark.parametrize("is_over", [False, True])
def test_that_a_superseded_run_is_logged_unless_it_is_over(
    is_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    failing, intervals = FailingStore(), {"report_interval_s": 1000.0, "poll_interval_s": 1000.0}
    with reporting(lambda: failing, **intervals) as reporter:
        wait(lambda: failing.num_calls >= 2, "the first report and poll")
        failing.errors.append(StaleRunError("run 0 is not its current run"))
        if not is_over:
            reporter.report_soon()
            wait(lambda: reporter.superseded, "the news")
    assert reporter.superseded
    assert ("not its current run" in caplog.text) is not is_over


def test_that_an_outage_costs_reports_and_nothing_else() -> None:
    failing = FailingStore(*[StoreUnavailable("database is locked")] * 3)
    with reporting(lambda: failing, poll_interval_s=0.001) as reporter:
        wait(lambda: len(failing.reports) >= 2, "reports after the outage")
        assert not reporter.superseded
    sequences = [sent.sequence for sent in failing.reports]
    assert sequences == sorted(set(sequences))


def test_that_a_confirmation_outlives_an_outage_under_one_sequence_number() -> None:
    failing = FailingStore()
    with reporting(lambda: failing, report_interval_s=1000.0, poll_interval_s=0.001) as reporter:
        wait(lambda: failing.reports, "the first report")
        # From here on the store records a report, but fails to answer.
        answered = failing.report
        lost: list[Report] = []

        def forgetful(token: str, report: Report, *, at: datetime) -> None:
            lost.append(report)
            if len(lost) < 4:
                raise StoreUnavailable("the answer was lost")
            answered(token, report, at=at)

        failing.report = forgetful  # type: ignore[method-assign]
        reporter.confirm(CheckpointConfirmation(request_id=7, blocked_s=0.1, size_bytes=10))
        wait(lambda: reporter.is_confirmed(7), "delivery")
    assert len({sent.sequence for sent in lost[:4]}) == 1
    assert all(sent.checkpoint is not None and sent.checkpoint.request_id == 7 for sent in lost[:4])


def test_that_a_withdrawn_confirmation_is_not_sent() -> None:
    failing = FailingStore()
    gate = threading.Event()

    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        assert gate.wait(300)
        return report(sequence, checkpoint=checkpoint)

    with reporting(lambda: failing, compose) as reporter:
        # The thread composes its first report, and so has not yet seen the confirmation.
        reporter.confirm(CheckpointConfirmation(request_id=7, blocked_s=0.1, size_bytes=10))
        reporter.withdraw_confirmation()
        gate.set()
        wait(lambda: len(failing.reports) >= 2, "further reports")
        assert not reporter.is_confirmed(7)
    assert all(sent.checkpoint is None for sent in failing.reports[1:])


@pytest.mark.parametrize(
    "changes",
    [
        {"throughput": math.nan},
        {"progress": math.inf},
        {"model": dataclasses.replace(MODEL, statistics=GradientStatistics(sqr=math.nan, var=1.0))},
    ],
)
def test_that_a_number_that_is_not_finite_is_never_sent(
    changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    failing = FailingStore()
    with reporting(lambda: failing, composing(**changes)):
        wait(lambda: len(failing.reports) >= 3, "reports")
    assert all(non_finite_field(sent) is None for sent in failing.reports)
    assert len([record for record in caplog.records if "not a finite number" in record.message]) == 1


def test_that_a_refused_report_is_logged_once_and_later_ones_are_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = FailingStore(*[ReportRefusedError("throughput: too large")] * 5)
    with reporting(lambda: failing):
        wait(lambda: len(failing.reports) >= 2, "later reports")
    assert len([record for record in caplog.records if "too large" in record.message]) == 1


def test_that_a_confirmation_arrives_even_if_the_model_is_refused() -> None:
    class Strict(FailingStore):
        def report(self, token: str, report: Report, *, at: datetime) -> None:
            if report.model is not None:
                raise ReportRefusedError("model: refused")
            super().report(token, report, at=at)

    strict = Strict()
    with reporting(lambda: strict) as reporter:
        reporter.confirm(CheckpointConfirmation(request_id=3, blocked_s=0.1, size_bytes=10))
        wait(lambda: reporter.is_confirmed(3), "delivery")
    assert any(sent.checkpoint is not None for sent in strict.reports)


def test_that_a_store_of_another_schema_is_logged_once_and_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good = FailingStore()
    answers: list[Exception] = [SchemaVersionError("run: pollux db upgrade")] * 2

    def open_store() -> AgentStore:
        if answers:
            raise answers.pop()
        return good

    with reporting(open_store, poll_interval_s=0.001):
        wait(lambda: good.reports, "a report")
    assert len([record for record in caplog.records if "pollux db upgrade" in record.message]) == 1


def test_that_closing_sends_a_last_report() -> None:
    failing = FailingStore()
    phases = [RunPhase.TRAINING]

    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        return report(sequence, phase=phases[-1], checkpoint=checkpoint)

    with reporting(lambda: failing, compose, report_interval_s=1000.0, poll_interval_s=1000.0):
        wait(lambda: failing.reports, "the first report")
        phases.append(RunPhase.FINISHED)
    assert failing.reports[-1].phase is RunPhase.FINISHED
    assert failing.closed == 1


def test_that_a_report_asked_for_while_the_store_is_opened_is_the_first_and_only_one() -> None:
    failing, opening, asked = FailingStore(), threading.Event(), threading.Event()

    def open_store() -> AgentStore:
        opening.set()
        assert asked.wait(120)
        return failing

    slow = {"report_interval_s": 1000.0, "first_reports_interval_s": 1000.0}
    with reporting(open_store, poll_interval_s=0.01, **slow) as reporter:
        assert opening.wait(120)
        reporter.report_soon()
        asked.set()
        # A report and polls; a second report would have come before the second poll.
        wait(lambda: failing.num_calls >= 3, "the second poll")
        assert len(failing.reports) == 1


def test_that_closing_does_not_wait_for_a_store_that_hangs() -> None:
    hang = threading.Event()

    class Hanging(FailingStore):
        def report(self, token: str, report: Report, *, at: datetime) -> None:
            self.num_calls += 1
            hang.wait()

    hanging = Hanging()
    reporter = Reporter(
        open_store=lambda: hanging,
        token="t",
        run_number=0,
        compose=composing(),
        report_interval_s=0.01,
        poll_interval_s=0.01,
    )
    reporter.start()
    try:
        wait(lambda: hanging.num_calls, "the call that hangs")
        reporter.confirm(CheckpointConfirmation(request_id=1, blocked_s=0.1, size_bytes=1))
        reporter.close(timeout_s=0.01)
        assert not reporter.is_confirmed(1)
    finally:
        hang.set()


def test_that_without_a_store_it_still_composes() -> None:
    sequences: list[int] = []

    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        sequences.append(sequence)
        return report(sequence)

    with reporting(None, compose):
        wait(lambda: len(sequences) >= 3, "composed reports")


def test_that_a_confirmation_without_a_store_does_not_keep_the_thread_busy() -> None:
    composed: list[CheckpointConfirmation | None] = []

    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        composed.append(checkpoint)
        return report(sequence)

    with reporting(None, compose, report_interval_s=3600.0) as reporter:
        wait(lambda: composed, "the first report")
        reporter.confirm(CheckpointConfirmation(request_id=None, blocked_s=0.0, size_bytes=9))
        reporter.report_soon()
        wait(lambda: len(composed) >= 2, "a report that was asked for")
    assert composed == [None, None]


def test_that_a_stale_confirmation_ends_the_thread() -> None:
    failing = FailingStore(StaleRunError("run 0 is not current"), UnknownJobError("never asked"))
    with reporting(lambda: failing) as reporter:
        wait(lambda: reporter.superseded, "the news")
    assert failing.num_calls == 1


def test_that_reports_follow_soon_until_one_has_a_model_and_then_at_the_interval() -> None:
    sent: list[int] = []

    def compose(*, sequence: int, checkpoint: CheckpointConfirmation | None) -> Report:
        sent.append(sequence)
        return report(sequence, model=MODEL if sequence == 3 else None)

    with reporting(None, compose, report_interval_s=3600.0, first_reports_interval_s=0.01) as reporter:
        wait(lambda: len(sent) >= 3, "the report with a model")
        wait(lambda: reporter.report_delay_s == 3600.0, "the interval")
        assert sent == [1, 2, 3]
