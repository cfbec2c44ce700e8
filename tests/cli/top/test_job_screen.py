"""The page of one job, from a real store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("textual")

from pollux_slurm.cli.jobs.explain import facts_of_job, lines
from pollux_slurm.cli.top.job_screen import read_story, story_text
from pollux_slurm.live.picture import read_picture
from pollux_slurm.model import BatchChoice, ClusterSnapshot, JobState
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from tests.daemon.builders import job
from tests.store.builders import at, decision_of, observation, problem_of, registration, report, token_of

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import Store


def text_of_job(store: Store, snapshot: ClusterSnapshot | None = None) -> str:
    picture = read_picture(store, now=at(100), slurm=lambda: (snapshot, ""))
    return story_text(read_story(store, "1", picture), width=78, now=at(100), is_ascii=False)


def test_that_a_job_is_explained_as_slurm_shows_it_now(store: Store) -> None:
    registered = registration(1)
    store.register_jobs([registered], at=at(0))
    store.observe_jobs([observation(1, JobState.PENDING)], at=at(1))
    decision = decision_of([1])
    free = replace(decision.jobs[0], pinned_because=None)
    store.record_round(problem_of([1]), replace(decision, jobs=(free,)), shadow=False, at=at(6))
    held = job(
        "1",
        JobState.PENDING,
        held=True,
        reason="JobHeldAdmin",
        comment=encode_comment("", registered.terms),
        user_id=registered.user_id,
    )
    snapshot = ClusterSnapshot(read_at=at(99), nodes=(), jobs=(held,))
    assert "is held by an admin (scontrol release 1)" in text_of_job(store, snapshot)
    assert "is held" not in text_of_job(store)


def test_that_a_job_that_has_ended_is_explained_from_the_store(store: Store) -> None:
    store.register_jobs([registration(1)], at=at(0))
    store.observe_jobs([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(50))
    (known,) = read_picture(store, now=at(100), include_finished=True).jobs
    facts = facts_of_job(store, known, None, None, store.daemon_status(), at(100))
    assert lines(facts)[0] in text_of_job(store)


def test_that_numbers_are_whole_and_now_is_of_the_present_gpus(store: Store) -> None:
    store.register_jobs([registration(1)], at=at(0))
    store.observe_jobs([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(1))
    large = BatchChoice(global_batch_size=16384, atomic_batch_size=4096, accumulation_steps=1)
    store.report(token_of(1), report(1, batch=large, throughput=123456.0, efficiency=0.5), at=at(8))
    text = text_of_job(store)
    assert "goodput: 61,728 to 61,728 examples/s, now 61,728  (" in text
    assert "batch size: 16,384 to 16,384, now 16,384  (" in text
    store.observe_jobs([observation(1, gpus={"n0": 4}, started_at=at(20), restart_count=1)], at=at(21))
    text = text_of_job(store)
    assert "goodput: 61,728 to 61,728 examples/s, now -  (" in text
    assert "batch size: 16,384 to 16,384, now -  (" in text
