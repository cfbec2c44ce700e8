"""What Slurm refused is not asked for again: for how long, and of which allocations."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from pollux_slurm.daemon.obstacles.tried_allocations import NotTried, Tried, decide_within
from pollux_slurm.model import Allocation, JobState, NodeCapacity, Problem, ProblemJob, SlurmAnswer
from pollux_slurm.now import refusals
from pollux_slurm.policy import decide
from pollux_slurm.store.contract.interface import Refusal
from tests.daemon.builders import MODEL, NOON, job

TWO, THREE = {"n0": 2}, {"n0": 3}
OVER_TWO, ELSEWHERE = {"n0": 1, "n1": 1}, {"n2": 1, "n3": 1}


def refusal(on: dict[str, int], answer: SlurmAnswer = SlurmAnswer.NEVER, *, after_min: float = 0) -> Refusal:
    reason = "BadConstraints" if answer is SlurmAnswer.NEVER else "Resources"
    at = NOON + timedelta(minutes=after_min)
    return Refusal(allocation=Allocation.of(on), answer=answer, at=at, reason=reason, request=REQUEST)


REQUEST = refusals.request_of(job("1"))
NOT_NOW = SlurmAnswer.NOT_NOW


@pytest.mark.parametrize(
    ("refused", "target", "is_tried"),
    [
        ([refusal(TWO)], TWO, False),
        ([refusal(TWO)], THREE, False),
        ([refusal(TWO)], {"n0": 1}, True),
        ([refusal(TWO)], {"n1": 2}, True),
        ([refusal(TWO)], {"n0": 2, "n1": 2}, True),
        ([refusal(OVER_TWO)], {"n0": 2, "n1": 1}, False),
        ([refusal(OVER_TWO)], ELSEWHERE, True),
        ([refusal(OVER_TWO), refusal({"n0": 1, "n2": 1})], ELSEWHERE, False),
        ([refusal(OVER_TWO), refusal({"n0": 1, "n2": 1})], {"n0": 4}, True),
        ([refusal(TWO, NOT_NOW)], TWO, False),
        ([refusal(TWO, NOT_NOW)], THREE, True),
        ([refusal(TWO, NOT_NOW)], {"n1": 2}, True),
    ],
)
def test_that_a_refusal_counts_for_its_shape(
    refused: list[Refusal], target: dict[str, int], is_tried: bool
) -> None:
    now = NOON + timedelta(minutes=9)
    because = refusals.not_tried_because(refused, REQUEST, Allocation.of(target), now)
    assert (because is None) == is_tried


def lasts_min(refused: list[Refusal], **more: object) -> int:
    """Return for how many minutes after the last refusal its shape is not tried."""
    for minutes in range(0, 400, 10):
        now = refused[-1].at + timedelta(minutes=minutes)
        if refusals.not_tried_because(refused, REQUEST, Allocation.of(TWO), now, **more) is None:  # type: ignore[arg-type]
            return minutes
    return 400


def test_that_each_refusal_of_what_never_starts_lasts_twice_as_long() -> None:
    made: list[Refusal] = []
    waits = []
    for number in range(7):
        made.append(refusal(TWO, after_min=1000 * number))
        waits.append(lasts_min(made))
    assert waits == [10, 20, 40, 80, 160, 160, 160]
    assert lasts_min([refusal(TWO, NOT_NOW, after_min=after) for after in (0, 11, 22)]) == 10


def test_that_a_new_configuration_of_slurm_or_another_request_ends_it() -> None:
    refused = [refusal(TWO)]
    assert lasts_min(refused, configured_at=NOON - timedelta(seconds=1)) == 10
    assert lasts_min(refused, configured_at=NOON + timedelta(seconds=1)) == 0
    now = NOON + timedelta(minutes=1)
    for changed, is_tried in (
        ({"partition": "other"}, True),
        ({"partition": "main"}, False),
        ({"qos": "x"}, True),
    ):
        request = refusals.request_of(job("1", **changed))
        because = refusals.not_tried_because(refused, request, Allocation.of(TWO), now)
        assert (because is None) == is_tried


def test_that_a_job_of_two_partitions_has_the_same_request_while_it_runs() -> None:
    waiting = refusals.request_of(job("1", partition="main,other"))
    refused = [dataclasses.replace(refusal(TWO), request=waiting)]
    assert refusals.not_tried_because(refused, REQUEST, Allocation.of(TWO), NOON) is not None


@pytest.mark.parametrize(
    ("reason", "held", "expected"),
    [("BadConstraints", True, True), ("BadConstraints", False, False), ("JobHeldAdmin", True, False)],
)
def test_that_only_slurms_own_hold_is_one_for_the_shape(reason: str, held: bool, expected: bool) -> None:
    assert refusals.is_held_for_its_shape(job("1", JobState.PENDING, held=held, reason=reason)) is expected


def grows(**changes: object) -> Problem:
    """Return a problem in which a job on n0:1 would grow."""
    nodes = tuple(NodeCapacity(name=name, num_gpus=4, num_cpus=8, memory_mb=8000) for name in ("n0", "n1"))
    one = ProblemJob(job_id="1", model=MODEL, current=Allocation.of({"n0": 1}), age_s=1e6, **changes)  # type: ignore[arg-type]
    return Problem(nodes=nodes, jobs=(one,))


def test_that_a_decision_goes_round_what_slurm_refused() -> None:
    problem = grows()
    wanted = decide(problem).allocation("1")
    assert wanted.num_gpus > 1
    known = [dataclasses.replace(refusal(wanted.as_dict()), at=NOON)]

    def not_tried(_job: str, target: Allocation) -> NotTried | None:
        because = refusals.not_tried_because(known, REQUEST, target, NOON)
        if because is None:
            return None
        return NotTried(because=because, leaves_out=refusals.refused_configurations(target, known))

    tried = decide_within(problem, decide, not_tried)
    got = tried.decision.allocation("1")
    assert got != wanted
    assert not_tried("1", got) is None
    assert "BadConstraints" in tried.not_tried["1"]
    assert tried.decision == dataclasses.replace(decide(tried.problem), jobs=tried.decision.jobs), (
        "it can be replayed from the problem that is recorded"
    )


def test_that_a_job_for_which_nothing_may_be_tried_keeps_what_it_has() -> None:
    tried = decide_within(grows(), decide, lambda _job, _target: NotTried(because="no place"))
    (decided,) = tried.decision.jobs
    assert (decided.allocation, decided.pinned_because) == (
        Allocation.of({"n0": 1}),
        "no place",
    )
    bad = refusals.refused_configurations(Allocation.of({"n0": 1}), [])
    tried = decide_within(grows(), decide, lambda _job, _target: NotTried(because="no", leaves_out=bad))
    assert tried.decision.allocation("1") == Allocation.of({"n0": 1})


def test_that_a_decision_that_nothing_stands_against_is_made_once() -> None:
    made = []

    def count(problem: Problem) -> object:
        made.append(problem)
        return decide(problem)

    tried = decide_within(grows(), count, lambda _job, _target: None)  # type: ignore[arg-type]
    assert len(made) == 1
    assert (tried.problem, tried.not_tried) == (made[0], {})


def test_that_nobody_moves_for_a_rigid_job_that_does_not_get_all_of_its_nodes() -> None:
    nodes = tuple(NodeCapacity(name=name, num_gpus=4, num_cpus=8, memory_mb=8000) for name in ("n0", "n1"))
    grown = ProblemJob(job_id="1", model=MODEL, current=Allocation.of({"n0": 4}), age_s=1e6)
    stays = ProblemJob(job_id="2", model=MODEL, current=Allocation.of({"n1": 3}), pinned=True)
    parts = tuple(
        ProblemJob(
            job_id=number,
            min_gpus=2,
            max_gpus=2,
            rigid=True,
            waiting_s=60.0,
            partition_nodes=frozenset({name}),
        )
        for number, name in (("5", "n0"), ("5/1", "n1"))
    )

    def decided(*jobs: ProblemJob) -> Tried:
        return decide_within(Problem(nodes=nodes, jobs=jobs), decide, lambda _job, _target: None)

    tried = decided(grown, stays, *parts)
    assert tried.decision.allocation("1") == Allocation.of({"n0": 4})
    assert [job.job_id for job in tried.problem.jobs] == ["1", "2"]
    # Half of it would move the job that has grown, and so does all of it where it fits.
    alone = decided(grown, stays, dataclasses.replace(parts[0]))
    assert alone.decision.allocation("1").num_gpus <= 2
    fits = dataclasses.replace(stays, current=Allocation.of({"n1": 1}))
    both = decided(grown, fits, *parts)
    assert [both.decision.allocation(number).num_gpus for number in ("5", "5/1")] == [2, 2]
    assert both.decision.allocation("1").num_gpus <= 2
