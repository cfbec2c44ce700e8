"""Promises of a running daemon: answers are recorded, and the policy is asked for the promised GPUs."""

from __future__ import annotations

import dataclasses
import logging
from datetime import timedelta

import pytest

from pollux_slurm.model import Decision, Problem, PromiseState
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, encode_comment
from pollux_slurm.store.contract.interface import PromiseRecord
from tests.daemon.harness import Harness


def ask(harness: Harness, job_id: str, *, hours: float) -> None:
    """Give a job another moment, as `pollux change` does."""
    terms = decode_comment(harness.job(job_id).comment)
    assert terms is not None
    by = (harness.clock() + timedelta(hours=hours)).replace(microsecond=0)
    harness.slurm.set_comment(job_id, encode_comment("", dataclasses.replace(terms, finish_by=by)))


def test_that_a_promise_is_recorded_kept_and_ended(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    problems: list[Problem] = []

    def decide(problem: Problem) -> Decision:
        problems.append(problem)
        return harness.decide(problem)

    daemon = harness.daemon(decide=decide)
    job_id = harness.submit(gpus=1)
    agent = harness.agents[job_id]
    ask(harness, job_id, hours=1)

    def state() -> PromiseState | None:
        promise = harness.store.jobs.get(job_id).promise if problems else None
        return None if promise is None else promise.state

    harness.run_until(daemon, until=lambda: state() is PromiseState.UNKNOWN)
    assert state() is PromiseState.UNKNOWN
    agent.epoch, agent.total_epochs = 1, 3
    harness.run_until(daemon, until=lambda: state() is PromiseState.ACCEPTED)
    promise = harness.store.jobs.get(job_id).promise
    assert promise is not None
    assert promise.state is PromiseState.ACCEPTED
    assert promise.least_gpus == problems[-1].jobs[0].promised_gpus == 1
    assert f"job {job_id}: by " in caplog.text
    assert ": fits with 1 GPU until " in caplog.text

    agent.total_epochs = 30
    harness.run_until(daemon, until=lambda: state() is PromiseState.ENDED)
    promise = harness.store.jobs.get(job_id).promise
    assert promise is not None
    assert promise.reason == ("its declared epochs do not count: it declared 3 epochs before it declared 30")
    assert problems[-1].jobs[0].promised_gpus == 0
    ended = [line for line in caplog.records if "the promise has ended" in line.getMessage()]
    harness.run_until(daemon, seconds=30)
    assert len(ended) == 1
    assert [line for line in caplog.records if "the promise has ended" in line.getMessage()] == ended

    ask(harness, job_id, hours=2)
    harness.run_until(daemon, until=lambda: state() is PromiseState.UNKNOWN)
    assert state() is PromiseState.UNKNOWN


def test_that_a_promise_lies_within_the_total_time_of_all_runs(harness: Harness) -> None:
    daemon = harness.daemon()
    ids = [harness.submit(minutes=60, total_minutes=minutes) for minutes in (61, 60_000)]
    harness.run_until(daemon, seconds=8)

    def answers() -> list[PromiseRecord | None]:
        return [harness.store.jobs.get(job_id).promise for job_id in ids]

    for job_id in ids:
        harness.agents[job_id].epoch, harness.agents[job_id].total_epochs = 1, 1000
        ask(harness, job_id, hours=10_000)
    states = [PromiseState.REFUSED, PromiseState.ACCEPTED]
    harness.run_until(daemon, until=lambda: [one and one.state for one in answers()] == states, seconds=300)
    short, enough = answers()
    assert short is not None
    assert enough is not None
    assert (short.state, enough.state, enough.reason) == (*states, None)
    assert (short.reason or "").startswith("its total time ends it at ")


def test_that_a_shadow_promises_nothing(harness: Harness) -> None:
    daemon = harness.daemon(shadow=True)
    job_id = harness.submit(gpus=1)
    agent = harness.agents[job_id]
    agent.epoch, agent.total_epochs = 1, 3
    ask(harness, job_id, hours=1)
    harness.run_until(daemon, seconds=30)
    assert harness.store.jobs.get(job_id).promise is None
