"""Idle GPUs that jobs could have used: when, how many, and why, from the store's own words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.forms.html import document_html
from pollux_slurm.model import Allocation, ReallocationStep, ReallocationWay
from pollux_slurm.report.group import cluster_document
from pollux_slurm.report.parts.idle_gpus import IdleTime, idle_gpus_part, idle_text, idle_times, why_text
from pollux_slurm.report.reading import read_group
from pollux_slurm.store.contract.interface import Reallocation
from pollux_slurm.store.reporting.gpu_use import DecidedSize, FirstStep, GpuUse, HeldGpus, JobUse
from pollux_slurm.store.reporting.queries import open_view_reader
from tests.report.stories import filled_store
from tests.store.builders import at

Step = ReallocationStep
ALL = Range(since=at(0), until=at(1000))
WAITS = "waits for the next round to decide"
COSTLY = "a move would cost more than it gains"


def held(since: float, until: float | None, num_gpus: int) -> HeldGpus:
    return HeldGpus(since=at(since), until=None if until is None else at(until), num_gpus=num_gpus)


def decided(seconds: float, num_gpus: int, bound_by: str, because: str | None = None) -> DecidedSize:
    return DecidedSize(at=at(seconds), num_gpus=num_gpus, bound_by=bound_by, because=because)


def job(number: int, *, submitted: float = 0, finished: float | None = None, **more: Any) -> JobUse:
    given: dict[str, Any] = {"max_gpus": 8, "held": (), "first_steps": (), "moves": (), "decided": ()}
    return JobUse(
        slurm_job_id=str(number),
        name="train",
        submitted_at=at(submitted),
        finished_at=None if finished is None else at(finished),
        **{**given, **more},
    )


def move(planned: float, *steps: tuple[Step, float]) -> Reallocation:
    """Return a move in place of job 1 on n0, from two to four GPUs."""
    return Reallocation(
        id=1,
        slurm_job_id="1",
        step=steps[-1][0],
        source=Allocation.of({"n0": 2}),
        target=Allocation.of({"n0": 4}),
        moves_running=True,
        from_restart_count=0,
        times=((Step.PLANNED, at(planned)), *((step, at(seconds)) for step, seconds in steps)),
        way=ReallocationWay.IN_PLACE,
    )


def use(*jobs: JobUse, gpus: int = 8) -> GpuUse:
    return GpuUse(rounds=((at(0), gpus),), jobs=jobs)


def trains(since: float, num_gpus: int, until: float | None = None) -> dict[str, Any]:
    """Return a job's GPUs on which it trains from the first second on."""
    return {
        "held": (held(since, until, num_gpus),),
        "first_steps": (FirstStep(at=at(since), num_gpus=num_gpus),),
    }


def told(times: tuple[IdleTime, ...]) -> list[tuple[float, float, int, tuple[str, ...]]]:
    begin = at(0)
    return [
        ((one.since - begin).total_seconds(), (one.until - begin).total_seconds(), one.num_gpus, one.reasons)
        for one in times
    ]


def test_that_the_policys_reason_is_told_while_it_holds() -> None:
    one = job(1, **trains(0, 2), decided=(decided(10, 2, "penalty"), decided(60, 2, "nothing")))
    assert told(idle_times(use(one), ALL)) == [
        (0, 10, 6, ("1 train: no round has decided about it yet",)),
        (10, 60, 6, (f"1 train: {COSTLY}",)),
    ]


def test_that_gpus_that_no_job_could_use_are_not_told() -> None:
    for other in (
        job(1, **trains(0, 2), max_gpus=2, decided=(decided(0, 2, "max_gpus"),)),
        job(1, **trains(0, 2), decided=(decided(0, 2, "nothing"),)),
        job(1, **trains(0, 2), decided=(decided(0, 2, "nothing"), decided(50, 2, "pinned", "it is pinned"))),
        job(1, submitted=990),
    ):
        assert idle_times(use(other), ALL) == ()
    assert idle_times(GpuUse(rounds=(), jobs=()), ALL) == ()
    assert idle_text(use(), ()).startswith("There was no time of 30 s or more in which GPUs were idle")


def test_that_a_job_counts_no_more_gpus_than_it_may_have() -> None:
    one = job(1, **trains(0, 2), max_gpus=4, decided=(decided(0, 2, "penalty"),))
    assert [time.num_gpus for time in idle_times(use(one), ALL)] == [2]
    other = job(2, max_gpus=3, decided=(decided(0, 0, "waiting"),))
    assert [time.num_gpus for time in idle_times(use(one, other), ALL)] == [5]
    assert [time.num_gpus for time in idle_times(use(one, other, gpus=6), ALL)] == [4]


def test_that_gpus_are_idle_until_the_first_step_on_them() -> None:
    one = job(
        1,
        max_gpus=4,
        held=(held(0, 100, 2), held(100, None, 4)),
        first_steps=(FirstStep(at=at(40), num_gpus=2), FirstStep(at=at(140), num_gpus=4)),
        moves=(move(95, (Step.REGROUP_REQUESTED, 96), (Step.REGROUPED, 140.2), (Step.CONFIRMED, 140.5)),),
        decided=(decided(0, 2, "pinned", "it is pinned"), decided(41, 4, "max_gpus")),
    )
    assert told(idle_times(use(one, gpus=4), ALL, shortest=timedelta(seconds=40))) == [
        (0, 40, 4, ("1 train: is started, and has reported no step yet",)),
        (40, 41, 2, ("1 train: it is pinned",)),
        (41, 95, 2, ("1 train: was given 4 GPUs by the last round, and does not have them yet",)),
        (95, 96, 2, ("1 train: n0:2 → n0:4 in place, waits until its GPUs are free",)),
        (96, 140, 2, ("1 train: n0:2 → n0:4 in place, trains on while its new processes start",)),
    ]


def test_that_a_requeue_leaves_its_gpus_idle_until_it_trains_again() -> None:
    requeued = replace(
        move(90, (Step.REQUEUED, 100), (Step.RELEASED, 120), (Step.RUNNING, 130), (Step.CONFIRMED, 160)),
        way=ReallocationWay.REQUEUE,
    )
    one = job(
        1,
        max_gpus=4,
        held=(held(0, 102, 2), held(128, None, 4)),
        first_steps=(FirstStep(at=at(0), num_gpus=2), FirstStep(at=at(159), num_gpus=4)),
        moves=(requeued,),
        decided=(decided(0, 2, "max_gpus"), decided(90, 4, "max_gpus")),
    )
    text = "1 train: n0:2 → n0:4, "
    assert told(idle_times(use(one, gpus=4), Range(since=at(100), until=at(500)))) == [
        (100, 120, 4, (text + "is stopped and back in the queue",)),
        (120, 130, 4, (text + "waits for Slurm to start it",)),
        (130, 159, 4, (text + "is started, and has reported no step yet",)),
    ]


def test_that_decisions_from_before_gpus_became_free_do_not_tell() -> None:
    ends = job(2, **trains(0, 6, until=100), finished=101)
    one = job(1, **trains(0, 2), decided=(decided(0, 2, "capacity"), decided(140, 2, "placement")))
    assert told(idle_times(use(one, ends), Range(since=at(0), until=at(200)))) == [
        (100, 140, 6, (f"1 train: {WAITS}",)),
        (140, 200, 6, ("1 train: the free GPUs are not where a larger allocation would fit",)),
    ]


def test_that_a_round_in_the_second_of_an_end_has_seen_the_job() -> None:
    """Slurm's times are whole seconds: the round at 100.3 decided about job 2, so that ended after it."""
    sizes = (decided(0, 6, "max_gpus"), decided(100.3, 6, "max_gpus"))
    ends = job(2, **trains(0, 6, until=100), finished=101, decided=sizes)
    one = job(1, **trains(0, 2), decided=(decided(0, 2, "capacity"), decided(100.3, 2, "capacity")))
    assert told(idle_times(use(one, ends), Range(since=at(0), until=at(200)))) == [
        (100.3, 200, 6, (f"1 train: {WAITS}",))
    ]


def test_that_times_that_adjoin_are_one_and_short_ones_are_left_out() -> None:
    one = job(
        1,
        **trains(0, 2),
        decided=(decided(0, 2, "nothing"), decided(10, 2, "penalty"), decided(39.5, 2, "nothing")),
    )
    other = job(2, submitted=39.9, finished=60)
    times = idle_times(use(one, other), ALL)
    assert [(time.begins, time.since, time.until) for time in times] == [
        (True, at(10), at(39.9)),
        (False, at(39.9), at(60)),
    ]
    assert sum(time.gpu_s for time in times) == 6 * 50
    assert idle_times(use(one), ALL) == ()


def test_that_many_jobs_are_counted() -> None:
    jobs = [job(number, decided=(decided(0, 0, "limit"),)) for number in range(9)]
    (time,) = idle_times(use(*jobs), ALL)
    assert why_text(time).endswith("2 train: its account's or user's limit of GPUs; and 6 more jobs")
    part = idle_gpus_part(use(*jobs), ALL)
    assert part.text.endswith("1 time: 2.22 GPU hours in all.")
    assert part.tables[0].rows == ((at(0), at(1000), 1000.0, 8, why_text(time)),)


def test_that_the_clusters_report_has_them_from_the_store(store_template: Path, tmp_path: Path) -> None:
    """Job 1 stands still from 21 to 33.5 s, job 3 waits all the time, no round decides about it."""
    day = Range(since=at(0), until=at(90))
    with open_view_reader(filled_store(store_template, tmp_path)) as reports:
        document = cluster_document(read_group(reports, day), day, made_at=at(90), command="c")
    rows = document.table("idle_gpus").rows
    assert 'class="words sentence"' in document_html(document), "reasons are not cut"
    assert rows[0][0] == at(0)
    assert rows[-1][1] == at(90)
    assert all("3 waits: no round has decided about it yet" in str(row[4]) for row in rows)
    assert any("1 train-1: n0:2 → n1:3+n2:1, waits for Slurm to start it" in str(row[4]) for row in rows)
