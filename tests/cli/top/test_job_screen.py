"""The page of one job, from a real store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("textual")

from pollux_slurm.cli.top.job_screen import JobStory, read_story, story_text
from pollux_slurm.model import BatchChoice, ClusterSnapshot, JobState
from pollux_slurm.now.cluster import read_cluster
from pollux_slurm.now.explained import explain_job
from pollux_slurm.now.explained_text import lines as lines_of
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.reporting.queries import ViewReader
from tests.daemon.builders import job
from tests.store.builders import at, decision_of, observation, problem_of, registration, report, token_of

if TYPE_CHECKING:
    from pollux_slurm.store.sql_store import SqlStore


def story_of_job(store: SqlStore, snapshot: ClusterSnapshot | None = None) -> JobStory:
    picture = read_cluster(store, now=at(100), slurm=lambda: (snapshot, ""))
    return read_story(store, ViewReader(store.database), "1", picture)


def text_of_job(store: SqlStore, snapshot: ClusterSnapshot | None = None) -> str:
    return story_text(story_of_job(store, snapshot), width=78)


def test_that_a_job_is_explained_as_slurm_shows_it_now(clean_store: SqlStore) -> None:
    registered = registration(1)
    clean_store.jobs.register([registered], at=at(0))
    clean_store.jobs.observe([observation(1, JobState.PENDING)], at=at(1))
    decision = decision_of([1])
    free = replace(decision.jobs[0], pinned_because=None)
    clean_store.rounds.record(problem_of([1]), replace(decision, jobs=(free,)), shadow=False, at=at(6))
    held = job(
        "1",
        JobState.PENDING,
        held=True,
        reason="JobHeldAdmin",
        comment=encode_comment("", registered.terms),
        user_id=registered.user_id,
    )
    snapshot = ClusterSnapshot(read_at=at(99), nodes=(), jobs=(held,))
    assert "is held by an admin (scontrol release 1)" in text_of_job(clean_store, snapshot)
    assert "is held" not in text_of_job(clean_store)


def test_that_a_job_that_has_ended_is_explained_from_the_store(clean_store: SqlStore) -> None:
    clean_store.jobs.register([registration(1)], at=at(0))
    clean_store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(50))
    (known,) = read_cluster(clean_store, now=at(100), include_finished=True).jobs
    explained = explain_job(clean_store, known, None, clean_store.lease.daemon_status(), at(100))
    assert lines_of(explained)[0] in text_of_job(clean_store)


def test_that_the_report_of_the_job_is_below_the_explanation(clean_store: SqlStore) -> None:
    clean_store.jobs.register([registration(1)], at=at(0))
    clean_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(1))
    large = BatchChoice(global_batch_size=16384, atomic_batch_size=4096, accumulation_steps=1)
    clean_store.agent.report(
        token_of(1), report(1, batch=large, throughput=123456.0, efficiency=0.5), at=at(8)
    )
    clean_store.jobs.observe([observation(1, gpus={"n0": 4}, started_at=at(20), restart_count=1)], at=at(21))
    lines = text_of_job(clean_store).splitlines()
    assert [line.split()[-2:] for line in lines if line.startswith("goodput")] == [["61,728", "examples/s"]]
    assert [line.split()[-2:] for line in lines if line.startswith("global batch")] == [
        ["16,384", "examples"]
    ]
    assert [line.split()[2:4] for line in lines if "allocated" in line] == [
        ["allocated", "2"],
        ["allocated", "4"],
    ]


def test_that_a_long_history_is_averaged(clean_store: SqlStore) -> None:
    clean_store.jobs.register([registration(1)], at=at(0))
    clean_store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(1))
    for number in range(1, 602):
        rate = 300.0 if number == 601 else 100.0 if number % 2 else 200.0
        clean_store.agent.report(token_of(1), report(number, throughput=rate, efficiency=1.0), at=at(number))
    assert len(story_of_job(clean_store).report.table("samples").rows) == 301
    assert "150 to 300 examples/s" in text_of_job(clean_store)
