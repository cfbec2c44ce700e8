"""The answers that a round records, and what a problem says of a job with a moment."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from pollux_slurm.daemon.decide import problem_building
from pollux_slurm.daemon.decide.kinds import Kinds, course_of_job
from pollux_slurm.daemon.decide.promises import counts_total_time, new_answers, time_left_s
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.daemon.observe.cluster_picture import ManagedJob
from pollux_slurm.goodput.taught_model import COURSE_PARTS
from pollux_slurm.model import (
    Allocation,
    GradientStatistics,
    JobState,
    Promise,
    PromiseState,
    ReallocationStep,
    SlurmJob,
    TrainingCourse,
)
from pollux_slurm.now.promises import promise_text, slack_text
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.contract.interface import AllocationRecord, JobRecord, PromiseRecord, Reallocation
from tests.daemon.builders import MODEL, NOON, TERMS, job, node, reallocation, record, sample, snapshot
from tests.daemon.decide.test_kinds import OF_A_KIND, earlier

BY = NOON + timedelta(hours=2)
ACCEPTED = PromiseRecord(
    state=PromiseState.ACCEPTED, least_gpus=2, finish_at=NOON + timedelta(hours=1, minutes=30)
)


def asking(promise: PromiseRecord | None = None) -> JobRecord:
    return record("1", terms=dataclasses.replace(TERMS, finish_by=BY), promise=promise)


def shown(one: JobRecord) -> ManagedJob:
    return ManagedJob(slurm=job("1", comment=encode_comment("", one.terms)), record=one)


def answer(**fields: Any) -> Promise:
    accepted: dict[str, Any] = {"state": PromiseState.ACCEPTED, "least_gpus": 2, "finish_s": 5400.0}
    return Promise(job_id="1", **(accepted | fields))


def test_that_a_changed_answer_is_recorded_and_the_same_one_is_not() -> None:
    assert new_answers([shown(asking())], {"1": answer()}, NOON) == {"1": ACCEPTED}
    assert new_answers([shown(asking(ACCEPTED))], {"1": answer(finish_s=5430.0)}, NOON) == {}
    for change in ({"finish_s": 5460.0}, {"finish_s": None}, {"least_gpus": 1}, {"reason": "other"}):
        assert list(new_answers([shown(asking(ACCEPTED))], {"1": answer(**change)}, NOON)) == ["1"]
    assert new_answers([shown(asking(ACCEPTED))], {}, NOON) == {}


def test_that_a_time_limit_that_is_too_short_is_the_reason() -> None:
    refused = {"1": answer(state=PromiseState.REFUSED, time_left_s=180.0)}
    waits = new_answers([shown(asking())], refused, NOON)["1"]
    assert waits.reason == (
        "its time limit ends it 3 min after its start, before it is finished: "
        "ask for more --time or --total-time"
    )
    runs = dataclasses.replace(asking(waits), allocation=Allocation.of({"n0": 1}))
    running = new_answers([shown(runs)], refused, NOON)["1"]
    assert running.reason is not None
    assert running.reason.startswith("its time limit ends it at 2026-01-01 12:03:00 UTC, before")
    # The same answer a minute later.
    later = {"1": answer(state=PromiseState.REFUSED, time_left_s=120.0, finish_s=5340.0)}
    again = dataclasses.replace(runs, promise=running)
    assert new_answers([shown(again)], later, NOON + timedelta(minutes=1)) == {}
    assert promise_text(BY, running).startswith(
        "by 2026-01-01 14:00:00 UTC: does not fit: its time limit ends"
    )
    accepted = dataclasses.replace(ACCEPTED, reason=running.reason)
    assert "; 30 min to spare, but its time limit ends it at" in promise_text(BY, accepted)


def managed(slurm: SlurmJob, move: Reallocation | None = None) -> ManagedJob:
    asks = dataclasses.replace(asking(), open_reallocation=move)
    (one,) = cluster_picture.build_picture(snapshot([node("n0")], [slurm]), [asks]).managed
    return one


def left_s(
    slurm: SlurmJob, move: Reallocation | None = None, history: Sequence[AllocationRecord] = ()
) -> float | None:
    return time_left_s(managed(slurm, move), NOON, history)


def ran(begin: datetime, end: datetime | None) -> AllocationRecord:
    return AllocationRecord(
        slurm_job_id="1", allocation=Allocation.of({"n0": 1}), started_at=begin, ended_at=end
    )


def test_that_a_time_limit_counts_over_the_moves_of_a_job() -> None:
    running = job("1", on={"n0": 1}, time_limit_s=3600.0)  # for five minutes
    assert left_s(running) == 3300.0
    assert left_s(dataclasses.replace(running, time_limit_s=60.0)) == 0.0
    assert left_s(dataclasses.replace(running, time_limit_s=None)) is None
    waiting = job("1", JobState.PENDING, time_limit_s=3600.0)
    assert left_s(waiting) == 3600.0
    # Stopped by a move, it is to get what it had left.
    move = reallocation(1, "1", ReallocationStep.REQUEUED, source={"n0": 1}, target={"n0": 2})
    move = dataclasses.replace(move, time_left_s=1200.0)
    assert left_s(waiting, move) == 1200.0
    assert left_s(dataclasses.replace(running, time_limit_s=1200.0), move) == 900.0


def test_that_a_total_time_counts_over_the_runs_of_a_job() -> None:
    terms = dataclasses.replace(TERMS, slice_s=3600, total_s=7200, finish_by=BY)
    comment = encode_comment("", terms)
    running = job("1", on={"n0": 1}, time_limit_s=3600.0, comment=comment)  # for five minutes
    waiting = job("1", JobState.PENDING, time_limit_s=3600.0, comment=comment)
    unknown = dataclasses.replace(running, comment=encode_comment("", dataclasses.replace(TERMS)))
    assert [counts_total_time(managed(one)) for one in (running, unknown)] == [True, False]
    earlier_run = ran(NOON - timedelta(minutes=90), NOON - timedelta(minutes=40))
    this_run = ran(NOON - timedelta(minutes=5), None)
    assert left_s(waiting) == 7200.0
    assert left_s(waiting, history=[earlier_run]) == 7200.0 - 3000.0
    assert left_s(running, history=[earlier_run, this_run]) == 7200.0 - 3300.0
    # A round may see a run before the store has its interval.
    assert left_s(running, history=[earlier_run]) == 7200.0 - 3300.0
    # A run has what Slurm lets it have.
    assert left_s(running, history=[ran(NOON - timedelta(hours=5), None)]) == 3300.0
    refused = {"1": answer(state=PromiseState.REFUSED, time_left_s=180.0)}
    asks = dataclasses.replace(asking(), terms=terms)
    assert new_answers([shown(asks)], refused, NOON)["1"].reason == (
        "its total time ends it 3 min after its start, before it is finished: ask for more --total-time"
    )


def test_that_the_reason_why_a_promise_ended_stays() -> None:
    ended = PromiseRecord(state=PromiseState.ENDED, reason="its length is refuted")
    assert new_answers([shown(asking(ended))], {"1": answer(state=PromiseState.ENDED)}, NOON) == {}


def test_that_a_problem_has_the_moment_the_answer_and_the_length_of_the_kind() -> None:
    seen = cluster_picture.build_picture(
        snapshot([node("n0", used=2)], [job("1", on={"n0": 2}, time_limit_s=3600.0)]),
        [
            record(
                "1",
                terms=dataclasses.replace(OF_A_KIND, finish_by=BY),
                promise=ACCEPTED,
            )
        ],
    )

    def work(
        *progress: float, state: JobState = JobState.COMPLETED, by: datetime | None = BY
    ) -> float | None:
        jobs = [
            dataclasses.replace(earlier(str(9 - index)), progress=one, state=state)
            for index, one in enumerate(progress)
        ]
        terms = dataclasses.replace(OF_A_KIND, finish_by=by)
        taught = Kinds(jobs, course_of=lambda job: TrainingCourse(work=job.progress)).teach(
            record("1", terms=terms), (None, ())
        )
        return None if taught.course is None else taught.course.work

    assert work(100.0, 120.0) == 120.0
    assert work(131.0, 100.0, 900.0) == 900.0
    assert work(100.0, state=JobState.RUNNING) is None
    assert work(100.0, by=None) is None
    kinds = Kinds([earlier("9")], course_of=lambda job: TrainingCourse(work=job.progress))
    (one,) = problem_building.build_problem(seen, now=NOON, default_restart_delay_s=30, kinds=kinds).jobs
    assert (one.finish_by_s, one.promise) == (7200.0, PromiseState.ACCEPTED)
    assert one.time_left_s == 3300.0
    assert one.course == TrainingCourse(work=100.0)


def test_that_the_course_of_a_job_is_read_from_its_history() -> None:
    first, second = (GradientStatistics(sqr=1.0, var=var) for var in (2.0, 8.0))
    models = [
        (NOON + timedelta(seconds=second_), dataclasses.replace(MODEL, statistics=statistics))
        for second_, statistics in ((5, first), (35, second))
    ]
    samples = [
        sample(at=NOON + timedelta(seconds=10 * number), progress=10.0 * number) for number in range(10)
    ]
    found = course_of_job(earlier("9"), models, samples)
    initial = MODEL.limits.initial_batch_size
    assert found.work == 100.0 * initial
    part = found.work / COURSE_PARTS
    # Parts without a sample have no statistics of their own, and there are none before the first model.
    assert [(round(begin / part), statistics) for begin, statistics in found.statistics] == [
        *((number, first) for number in (1, 3, 4)),
        *((number, second) for number in (6, 8, 9, 11, 12, 14)),
    ]


@pytest.mark.parametrize(
    ("promise", "text", "slack"),
    [
        (None, "no round has answered yet", "not answered"),
        (
            PromiseRecord(state=PromiseState.UNKNOWN, reason="no length"),
            "not known yet: no length",
            "unknown",
        ),
        (
            PromiseRecord(state=PromiseState.REFUSED, finish_at=BY + timedelta(hours=1)),
            "does not fit: earliest 2026-01-01 15:00:00 UTC",
            "refused",
        ),
        (
            PromiseRecord(state=PromiseState.REFUSED),
            "does not fit: never within the user's share",
            "refused",
        ),
        (
            ACCEPTED,
            "fits with 2 GPUs until 2026-01-01 13:30:00 UTC at 90 %; 30 min to spare",
            "30 min to spare",
        ),
        (
            dataclasses.replace(ACCEPTED, least_gpus=0, finish_at=BY + timedelta(minutes=10)),
            "fits without GPUs for now, until 2026-01-01 14:10:00 UTC at 90 %; 10 min late",
            "10 min late",
        ),
        (
            PromiseRecord(state=PromiseState.ENDED, reason="it lies"),
            "the promise has ended: it lies",
            "ended",
        ),
    ],
)
def test_that_people_read_the_answer_and_the_slack(
    promise: PromiseRecord | None, text: str, slack: str
) -> None:
    assert promise_text(BY, promise) == f"by 2026-01-01 14:00:00 UTC: {text}"
    assert slack_text(BY, promise) == slack
