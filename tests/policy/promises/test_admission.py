"""Which jobs are promised to be finished by a moment, with how many GPUs, and when a promise ends."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.model import (
    Allocation,
    GpuLimit,
    GradientStatistics,
    MovingRules,
    Objective,
    Problem,
    ProblemJob,
    Promise,
    PromiseState,
    TrainingCourse,
)
from pollux_slurm.policy import decide
from pollux_slurm.policy.promises.admission import answer_promises, with_promised_gpus
from pollux_slurm.policy.promises.needs import (
    NO_LENGTH,
    NO_LENGTH_YET,
    NO_SPEED,
    parts_left,
)
from tests.policy.builders import job, linear_model, nodes, sizes

# Ten of eleven epochs are left: 1e7 examples, 1.08e7 with the reserve for an error of 5 %. One GPU makes a
# thousand a second, so that they take 10,800 s on one GPU.
LEFT: dict[str, Any] = {"progress": 1e6, "epochs_done": 1.0, "epochs_declared": 11.0, "restart_delay_s": 0.0}


def asking(job_id: str = "a", by_s: float = 5500.0, **fields: Any) -> ProblemJob:
    return job(job_id, **{**LEFT, "user": "ada", "finish_by_s": by_s, **fields})


def problem(*jobs: ProblemJob, between: str = "users", **fields: Any) -> Problem:
    return Problem(nodes=nodes(2, 4), jobs=jobs, objective=Objective(between=between), **fields)


def answer(*jobs: ProblemJob, **fields: Any) -> Promise:
    """Return the answer to the first job."""
    return answer_promises(problem(*jobs, **fields))[jobs[0].job_id]


BOB = job("b", user="bob")


def test_that_a_job_is_promised_the_least_gpus_that_finish_it() -> None:
    found = answer(asking(by_s=5500.0))
    assert (found.state, found.least_gpus) == (PromiseState.ACCEPTED, 2)
    assert found.finish_s == pytest.approx(5400.0)
    assert answer(asking(by_s=3000.0)).least_gpus == 4
    assert answer(asking(by_s=20_000.0)).least_gpus == 1


def test_that_a_promise_lies_within_the_time_limit() -> None:
    # One GPU takes 10,800 s.
    for left_s, gpus in ((None, 1), (10_801.0, 1), (10_799.0, 2)):
        found = answer(asking(by_s=20_000.0, time_left_s=left_s))
        assert (found.state, found.least_gpus, found.time_left_s) == (PromiseState.ACCEPTED, gpus, None)
    short = asking(by_s=20_000.0, time_left_s=180.0)
    found = answer(short)
    assert (found.state, found.time_left_s, found.finish_s) == (PromiseState.REFUSED, 180.0, 2700.0)
    # One accepted earlier keeps what it has, and says so.
    kept = answer(dataclasses.replace(short, promise=PromiseState.ACCEPTED, current=Allocation.of({"n0": 2})))
    assert (kept.state, kept.least_gpus, kept.time_left_s) == (PromiseState.ACCEPTED, 2, 180.0)
    # No limit is to blame for a moment that is too soon, or for a limit on GPUs.
    soon = answer(asking(by_s=2000.0, time_left_s=4000.0))
    assert (soon.state, soon.time_left_s) == (PromiseState.REFUSED, None)
    none = GpuLimit(kind="user", name="ada", max_gpus=0)
    never = answer(short, limits=(none,))
    assert (never.state, never.finish_s, never.time_left_s) == (PromiseState.REFUSED, None, None)


def test_that_the_moves_that_are_reserved_count_for_the_time_limit() -> None:
    fields = {"by_s": 20_000.0, "restart_delay_s": 100.0}
    # A delay for its start, and two for moves.
    assert answer(asking(time_left_s=11_101.0, **fields)).least_gpus == 1
    assert answer(asking(time_left_s=11_099.0, **fields)).least_gpus == 2


def test_that_a_promise_lies_within_the_users_share() -> None:
    alone = answer(asking(by_s=3000.0))
    assert (alone.state, alone.least_gpus) == (PromiseState.ACCEPTED, 4)
    # Among three users, two GPUs are hers.
    beside = answer(asking(by_s=3000.0), BOB, job("c", user="cleo"))
    assert (beside.state, beside.least_gpus) == (PromiseState.REFUSED, 0)
    assert beside.finish_s == pytest.approx(5400.0)
    # Between jobs, Ada's two have two thirds: five GPUs, which is four for a job that packs.
    more = answer(asking(by_s=2000.0), asking("c", by_s=1e6), BOB, between="jobs")
    assert more.finish_s == pytest.approx(2700.0)


def test_that_a_new_promise_takes_only_efficient_sizes() -> None:
    # Eight GPUs on two nodes count as √2 times four: 71 % of what each of four does.
    needs_eight = asking(by_s=2000.0)
    found = answer(needs_eight)
    assert (found.state, found.finish_s) == (PromiseState.REFUSED, pytest.approx(2700.0))
    # Once accepted, it has them for as long as it needs them.
    kept = answer(dataclasses.replace(needs_eight, promise=PromiseState.ACCEPTED))
    assert (kept.state, kept.least_gpus) == (PromiseState.ACCEPTED, 8)


def test_that_a_job_is_within_limits_and_its_own_bounds() -> None:
    limit = GpuLimit(kind="user", name="ada", max_gpus=2)
    assert answer(asking(by_s=3000.0), limits=(limit,)).finish_s == pytest.approx(5400.0)
    assert answer(asking(by_s=3000.0, max_gpus=2)).state is PromiseState.REFUSED
    unmeasured = dataclasses.replace(linear_model(), max_gpus_seen=1)
    assert answer(asking(by_s=3000.0, model=unmeasured)).least_gpus == 4
    assert answer(asking(by_s=2000.0, model=unmeasured)).state is PromiseState.REFUSED


def test_that_a_new_job_is_accepted_beside_earlier_promises_only() -> None:
    first = asking("first", 3000.0, promise=PromiseState.ACCEPTED)
    found = answer_promises(problem(asking("new", 5300.0), first, BOB))
    assert found["first"].least_gpus == 4
    # Four GPUs of her share are free from 2700 s on.
    assert found["new"].state is PromiseState.REFUSED
    assert found["new"].finish_s == pytest.approx(5400.0)
    found = answer_promises(problem(asking("new", 5500.0), first, BOB))
    assert (found["new"].state, found["new"].least_gpus) == (PromiseState.ACCEPTED, 0)
    # One that would come before is refused where it breaks the first.
    found = answer_promises(problem(asking("new", 2900.0), first, BOB))
    assert found["new"].state is PromiseState.REFUSED
    assert found["first"].least_gpus == 4


def test_that_of_two_new_jobs_the_older_is_accepted() -> None:
    jobs = (asking("young", 3000.0, age_s=10.0), asking("old", 3000.0, age_s=20.0))
    states = {name: found.state for name, found in answer_promises(problem(*jobs, BOB)).items()}
    assert states == {"young": PromiseState.REFUSED, "old": PromiseState.ACCEPTED}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"epochs_done": None, "epochs_declared": None}, NO_LENGTH),
        ({"epochs_done": 0.0, "progress": None}, NO_LENGTH_YET),
        ({"model": None}, NO_SPEED),
    ],
)
def test_that_the_answer_says_what_is_missing(fields: dict[str, Any], reason: str) -> None:
    assert answer(asking(**fields)) == Promise(job_id="a", state=PromiseState.UNKNOWN, reason=reason)


def test_that_the_greatest_length_of_its_kind_counts_until_its_own_is_known() -> None:
    # They agree on 1e7 examples.
    agree: dict[str, Any] = {"expected_low": 1e7, "expected_progress": 1e7, "expected_high": 1e7}
    new = {"progress": None, "epochs_done": 0.0, **agree}
    assert answer(asking(by_s=11_000.0, **new)).finish_s == pytest.approx(10_800.0)
    # One of them took twice as many.
    differ = {**new, "expected_high": 2e7}
    found = answer(asking(by_s=11_000.0, **differ))
    assert (found.least_gpus, found.finish_s) == (2, pytest.approx(10_800.0))
    assert answer(asking(by_s=5000.0, **differ)).state is PromiseState.REFUSED
    # What it has done itself is not to be done again.
    begun = {**differ, "progress": 1e7, "epochs_declared": None}
    assert answer(asking(by_s=11_000.0, **begun)).least_gpus == 1
    # Its own declaration counts once an epoch has ended: 1e7 examples are left.
    assert answer(asking(by_s=11_000.0, **{**agree, "expected_high": 9e7})).least_gpus == 1


def test_that_a_promise_ends_once_the_lengths_of_its_kind_are_refuted() -> None:
    unknown = {"epochs_done": None, "epochs_declared": None, "expected_high": None}
    ended = answer(asking(promise=PromiseState.ACCEPTED, **unknown))
    assert ended == Promise(job_id="a", state=PromiseState.ENDED, reason=NO_LENGTH)


def test_that_gradient_noise_goes_as_in_the_course_of_its_kind() -> None:
    early, late = (GradientStatistics(sqr=1.0, var=var) for var in (1.0, 9.0))
    course = TrainingCourse(work=1e6, statistics=((0.0, early), (5e5, late)))

    def parts(**fields: Any) -> list[tuple[float, GradientStatistics | None]]:
        one = asking(course=course, **fields)
        return [
            (round(share, 3), None if part.model is None else part.model.statistics)
            for share, part in parts_left(one)
        ]

    unknown: dict[str, Any] = {"epochs_done": None, "epochs_declared": None}
    unknown |= {"expected_low": 1e6, "expected_high": 1e6}
    assert parts(progress=2e5, **unknown) == [(0.375, early), (0.625, late)]
    assert parts(progress=8e5, **unknown) == [(1.0, late)]
    # It is half as long as those of its kind.
    assert parts(progress=2e5, epochs_done=2.0, epochs_declared=5.0) == [(0.167, early), (0.833, late)]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"declaration_doubt": "it trains on"}, "its declared epochs do not count: it trains on"),
        ({"model_doubt": "it lies"}, "its model does not count: it lies"),
        ({"prediction_error": 0.31}, "its predictions are off by 31%, more than 30%"),
        ({"finish_by_s": 0.0}, "its moment has passed"),
        ({"min_gpus": 0}, "min_gpus must be a whole number of at least 1, not 0"),
    ],
)
def test_that_a_promise_ends_for_good(fields: dict[str, Any], reason: str) -> None:
    ended = answer(asking(**{"promise": PromiseState.ACCEPTED, **fields}))
    assert ended == Promise(job_id="a", state=PromiseState.ENDED, reason=reason)
    assert answer(asking(promise=PromiseState.ENDED)).state is PromiseState.ENDED


def test_that_errors_and_moves_cost_reserve() -> None:
    assert answer(asking(prediction_error=0.25)).finish_s == pytest.approx(1.4e7 / 4000)
    # Two moves are reserved, and the start costs one more.
    assert answer(asking(by_s=5500.0, restart_delay_s=30.0)).finish_s == pytest.approx(5490.0)
    assert answer(asking(by_s=5480.0, restart_delay_s=30.0)).least_gpus == 4
    # A job of a single size has its start alone.
    single = asking(by_s=10_831.0, restart_delay_s=30.0, max_gpus=1)
    assert answer(single).finish_s == pytest.approx(10_830.0)
    assert answer(single).state is PromiseState.ACCEPTED


@pytest.mark.parametrize(("has", "keeps"), [({}, 0), ({"n0": 2}, 2), ({"n0": 4, "n1": 4}, 4)])
def test_that_a_late_promise_keeps_its_gpus_and_takes_no_more(has: dict[str, int], keeps: int) -> None:
    late = answer(asking(by_s=1000.0, promise=PromiseState.ACCEPTED, current=has), BOB)
    assert (late.state, late.least_gpus) == (PromiseState.ACCEPTED, keeps)
    assert late.finish_s == pytest.approx(2700.0)


def test_that_a_promise_takes_no_size_on_which_gpus_do_little() -> None:
    # With 3 s of synchronisation, four GPUs are 5040/(1260 + 3000) of one: 1.2 times as fast.
    poor = linear_model(sync_s=3.0)
    found = answer(asking(by_s=9500.0, model=poor))
    assert (found.state, found.finish_s) == (PromiseState.REFUSED, pytest.approx(10_800.0))


def test_that_osdi21_keeps_no_promises() -> None:
    found = answer_promises(Problem(nodes=nodes(2), jobs=(asking(),), objective=Objective(name="osdi21")))
    assert found["a"].state is PromiseState.UNKNOWN


# ------------------------------------------------------------------------------------- what a round gives


def promised(least: int, **fields: Any) -> ProblemJob:
    return job("a", user="ada", promised_gpus=least, **fields)


@pytest.mark.parametrize("name", ["generalized-mean", "price-rank", "attained-work"])
@pytest.mark.parametrize("has", [0, 1, 4])
def test_that_a_job_gets_its_promised_gpus_before_others(name: str, has: int) -> None:
    others = [
        job(f"b{number}", {"n1": 1} if number < 4 else {}, user="ada", age_s=60.0) for number in range(8)
    ]
    one = Problem(
        nodes=nodes(2, 4),
        jobs=(promised(4, current={"n0": has} if has else {}), *others),
        objective=Objective(name=name),
        moving=MovingRules(pauses=name != "generalized-mean"),
    )
    found = decide(one)
    assert sizes(found)["a"] == 4
    assert sum(sizes(found).values()) == 8
    assert found.upper_bound is not None
    assert found.gap is not None
    assert found.gap < 0.05
    without = decide(
        dataclasses.replace(one, jobs=tuple(dataclasses.replace(j, promised_gpus=0) for j in one.jobs))
    )
    assert sizes(without)["a"] < 4


def test_that_idle_gpus_go_to_a_promised_job_as_to_any_other() -> None:
    assert sizes(decide(problem(promised(2, current={"n0": 2}))))["a"] == 8


def test_that_a_promise_that_cannot_be_kept_counts_for_nothing() -> None:
    one = problem(promised(16), job("b"))
    assert sizes(decide(one)) == sizes(decide(problem(job("a", user="ada"), job("b"))))


def test_that_a_promise_takes_nothing_lent_while_a_rigid_job_waits() -> None:
    answers = {"a": Promise(job_id="a", state=PromiseState.ACCEPTED, least_gpus=4)}
    rigid = job("r", model=None, rigid=True, min_gpus=8)
    alone = with_promised_gpus(problem(asking()), answers, {"a": 2})
    assert alone.jobs[0].promised_gpus == 4
    beside = with_promised_gpus(problem(asking(), rigid), answers, {"a": 2})
    assert beside.jobs[0].promised_gpus == 2
    assert with_promised_gpus(problem(asking(), rigid), answers).jobs[0].promised_gpus == 1


def test_that_between_users_a_promised_job_comes_first_within_its_share() -> None:
    # Bob's job has waited longer, and takes his half; of Ada's half her promise takes all.
    jobs = [job(f"a{number}", user="ada", waiting_s=100.0) for number in range(4)]
    mine = promised(4, waiting_s=1.0)
    found = sizes(decide(problem(*jobs, mine, job("b", user="bob", waiting_s=1000.0))))
    assert found["a"] == 4
    assert found["b"] == 4
