"""Which jobs a store returns as teachers of those that are not over, on both databases."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.errors import ReportRefusedError
from pollux_slurm.model import GradientStatistics, JobState
from pollux_slurm.store.contract.interface import Store
from tests.store.builders import (
    MODEL,
    Step,
    advance,
    at,
    observation,
    plan,
    registration,
    report,
    token_of,
)

NOISE = GradientStatistics(sqr=1.0, var=9.0)


def train(store: Store, number: int, kind: str | None, *, seconds: float = 0.0, user_id: int = 1001) -> None:
    """Register a job that reports twice, each time with another model."""
    owner = {"user_id": user_id, "user_name": {1001: "ada", 1002: "grace"}[user_id]}
    store.jobs.register(
        [registration(number, terms={"kind": kind}, submitted_at=at(seconds), **owner)], at=at(seconds)
    )
    store.jobs.observe([observation(number, gpus={"n0": 2}, started_at=at(seconds + 1))], at=at(seconds + 2))
    token = token_of(number, user_id)
    store.agent.report(token, report(1), at=at(seconds + 10))
    later = dataclasses.replace(MODEL, statistics=NOISE, max_gpus_seen=8)
    store.agent.report(token, report(2, model=later), at=at(seconds + 20))


def end(store: Store, number: int, state: JobState = JobState.COMPLETED) -> None:
    store.jobs.observe([observation(number, state, started_at=at(1), ended_at=at(60))], at=at(60))


def test_that_jobs_of_the_kinds_of_active_ones_are_returned_newest_first(any_store: Store) -> None:
    train(any_store, 1, "gpt2")
    end(any_store, 1)
    train(any_store, 2, "bert")
    end(any_store, 2)
    train(any_store, 3, "gpt2", user_id=1002)
    end(any_store, 3, JobState.TIMEOUT)
    train(any_store, 4, None)
    assert any_store.kinds.earlier_jobs(since=at(-1)) == ()
    any_store.jobs.register([registration(5, terms={"kind": "gpt2"})], at=at(70))
    first, second = any_store.kinds.earlier_jobs(since=at(-1))
    assert (first.slurm_job_id, first.user_id, first.state) == ("3", 1002, JobState.TIMEOUT)
    assert (second.slurm_job_id, second.user_id, second.state) == ("1", 1001, JobState.COMPLETED)
    assert second.account == "vision"
    assert second.model.max_gpus_seen == 8
    assert second.early_statistics == MODEL.statistics
    assert second.progress == 16.0


def test_that_earlier_jobs_tell_what_their_moves_cost(any_store: Store) -> None:
    train(any_store, 1, "gpt2")
    train(any_store, 2, "gpt2")
    moved = plan(any_store, 2, seconds=30)
    advance(any_store, moved, (Step.REQUEUED, 31), (Step.RUNNING, 35), (Step.CONFIRMED, 38))
    earlier = any_store.kinds.earlier_jobs(since=at(-1))
    active = [job for job in any_store.jobs.active() if job.mean_restart_delay_s is not None]
    assert [(job.slurm_job_id, job.mean_restart_delay_s) for job in active] == [("2", 7.0)]
    assert [(job.slurm_job_id, job.mean_restart_delay_s) for job in earlier] == [("2", 7.0), ("1", None)]


def test_that_old_jobs_expire_and_few_of_a_kind_are_read(any_store: Store) -> None:
    for number in range(1, 16):
        train(any_store, number, "gpt2", seconds=100.0 * number)
        end(any_store, number)
    train(any_store, 16, "gpt2", seconds=2000.0)
    found = any_store.kinds.earlier_jobs(since=at(0))
    assert [job.slurm_job_id for job in found] == [str(number) for number in range(16, 3, -1)]
    found = any_store.kinds.earlier_jobs(since=at(1450))
    assert [job.slurm_job_id for job in found] == ["16", "15"]


def test_that_many_jobs_that_train_leave_room_for_those_that_tell_a_length(any_store: Store) -> None:
    train(any_store, 1, "gpt2")
    end(any_store, 1)
    for number in range(2, 16):
        train(any_store, number, "gpt2", seconds=100.0 * number)
    found = any_store.kinds.earlier_jobs(since=at(-1))
    assert [job.slurm_job_id for job in found] == [*(str(number) for number in range(15, 3, -1)), "1"]


def test_that_a_jobs_kind_is_kept(any_store: Store) -> None:
    any_store.jobs.register([registration(1, terms={"kind": "gpt2"}), registration(2)], at=at(0))
    assert [job.terms.kind for job in any_store.jobs.active()] == ["gpt2", None]


def test_that_kinds_are_listed_by_user_and_can_be_forgotten(any_store: Store) -> None:
    train(any_store, 1, "gpt2")
    end(any_store, 1)
    any_store.jobs.register(
        [registration(2, terms={"kind": "gpt2"}), registration(3, terms={"kind": "bert"})], at=at(70)
    )
    train(any_store, 4, "gpt2", user_id=1002, seconds=80.0)
    found = [
        (kind.kind, kind.user_name, kind.num_jobs, kind.num_completed, kind.newest_name, kind.max_gpus_seen)
        for kind in any_store.kinds.all()
    ]
    assert found == [
        ("gpt2", "grace", 1, 0, "train-4", 8),
        ("bert", "ada", 1, 0, "train-3", 0),
        ("gpt2", "ada", 2, 1, "train-2", 8),
    ]
    assert [kind.newest_job for kind in any_store.kinds.all("gpt2")] == ["4", "2"]
    assert [kind.newest_job for kind in any_store.kinds.all("gpt2", since=at(75))] == ["4"]
    assert any_store.kinds.forget("gpt2", user_name="nobody") == 0
    assert any_store.kinds.forget("gpt2") == 3
    assert [kind.kind for kind in any_store.kinds.all()] == ["bert"]


def test_that_the_answer_to_a_report_is_what_fits_by_jobs_of_the_jobs_own_kind(any_store: Store) -> None:
    any_store.jobs.register([registration(1), registration(2)], at=at(0))
    any_store.jobs.observe([observation(number, gpus={"n0": 2}) for number in (1, 2)], at=at(1))

    def answers(sequence: int) -> list[int | None]:
        return [
            any_store.agent.report(token_of(number), report(sequence), at=at(10 + sequence))
            for number in (1, 2)
        ]

    assert answers(1) == [None, None]
    any_store.jobs.record_fitting({"1": 48, "77": 3})
    assert [job.fitting_atomic for job in any_store.jobs.active()] == [48, None]
    assert answers(1) == [48, None]  # a report that is repeated
    assert answers(2) == [48, None]
    any_store.jobs.record_fitting({})
    any_store.jobs.record_fitting({"1": None, "2": 16})
    assert answers(3) == [None, 16]


def test_that_what_a_job_trains_and_what_did_not_fit_is_kept(any_store: Store) -> None:
    train(any_store, 1, "gpt2")
    limits = dataclasses.replace(MODEL.limits, max_atomic=64, failed_atomic=128)
    model = dataclasses.replace(MODEL, limits=limits, num_parameters=10**12, precision="bfloat16")
    any_store.agent.report(token_of(1), report(3, model=model), at=at(30))
    assert any_store.jobs.get("1").model == model
    any_store.jobs.register([registration(2, terms={"kind": "gpt2"})], at=at(40))
    (earlier,) = any_store.kinds.earlier_jobs(since=at(-1))
    assert earlier.model == model


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_parameters": 0},
        {"num_parameters": 1.5},
        {"num_parameters": 10**16},
        {"precision": ""},
        {"precision": "x" * 33},
        {"precision": "float32; --"},
        {"precision": 32},
        {"limits": dataclasses.replace(MODEL.limits, failed_atomic=1)},
        {"limits": dataclasses.replace(MODEL.limits, failed_atomic=True)},
    ],
    ids=str,
)
def test_that_a_report_of_no_training_is_refused(any_store: Store, wrong: dict[str, Any]) -> None:
    train(any_store, 1, "gpt2")
    with pytest.raises(ReportRefusedError, match="report refused: model: "):
        any_store.agent.report(token_of(1), report(3, model=dataclasses.replace(MODEL, **wrong)), at=at(30))
    any_store.agent.report(token_of(1), report(3), at=at(30))
