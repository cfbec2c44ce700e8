"""The moment that a job asks to be finished by, and the answer to it, on both databases."""

from __future__ import annotations

import pytest

from pollux_slurm.errors import UnknownJobError
from pollux_slurm.model import JobState, PromiseState
from pollux_slurm.store.contract.interface import PromiseRecord, Store
from tests.store.builders import at, observation, registration, token_of

ACCEPTED = PromiseRecord(state=PromiseState.ACCEPTED, least_gpus=2, finish_at=at(3000))
ENDED = PromiseRecord(state=PromiseState.ENDED, reason="its length is refuted")


def test_that_a_moment_and_the_last_answer_are_kept(any_store: Store) -> None:
    any_store.jobs.register([registration(1, terms={"finish_by": at(3600)}), registration(2)], at=at(0))
    assert [(job.terms.finish_by, job.promise) for job in any_store.jobs.active()] == [
        (at(3600), None),
        (None, None),
    ]
    any_store.jobs.record_promises({"1": ACCEPTED, "77": ACCEPTED})
    assert [job.promise for job in any_store.jobs.active()] == [ACCEPTED, None]
    any_store.jobs.record_promises({"1": ENDED})
    any_store.jobs.record_promises({})
    assert any_store.jobs.get("1").promise == ENDED


def test_that_a_jobs_token_tells_the_answer_to_its_own_moment_only(any_store: Store) -> None:
    jobs = [registration(number, terms={"finish_by": at(3600)}) for number in (1, 2)]
    with pytest.raises(UnknownJobError):
        any_store.agent.promise(token_of(1))
    any_store.jobs.register(jobs, at=at(0))
    assert any_store.agent.promise(token_of(1)) is None
    any_store.jobs.record_promises({"1": ACCEPTED, "2": ENDED})
    assert any_store.agent.promise(token_of(1)) == ACCEPTED
    assert any_store.agent.promise(token_of(2)) == ENDED
    for other in ("", token_of(3), "\0"):
        with pytest.raises(UnknownJobError):
            any_store.agent.promise(other)


def test_that_another_moment_is_another_request(any_store: Store) -> None:
    any_store.jobs.register([registration(1, terms={"finish_by": at(3600)})], at=at(0))
    any_store.jobs.record_promises({"1": ENDED})
    any_store.jobs.register([registration(1, terms={"finish_by": at(3600), "max_gpus": 4})], at=at(1))
    assert any_store.jobs.get("1").promise == ENDED
    any_store.jobs.register([registration(1, terms={"finish_by": at(7200), "max_gpus": 4})], at=at(2))
    job = any_store.jobs.get("1")
    assert (job.terms.finish_by, job.promise, job.terms.max_gpus) == (at(7200), None, 4)
    any_store.jobs.register([registration(1)], at=at(3))
    assert any_store.jobs.get("1").terms.finish_by is None


def test_that_the_answer_to_a_job_that_is_over_stays(any_store: Store) -> None:
    any_store.jobs.register([registration(1, terms={"finish_by": at(3600)})], at=at(0))
    any_store.jobs.record_promises({"1": ACCEPTED})
    any_store.jobs.observe([observation(1, JobState.COMPLETED, started_at=at(1), ended_at=at(9))], at=at(9))
    any_store.jobs.record_promises({"1": ENDED})
    assert any_store.jobs.get("1").promise == ACCEPTED
