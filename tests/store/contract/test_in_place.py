"""The guarantees about reallocations in place, on every backend."""

from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.errors import StoreError
from pollux_slurm.model import Allocation, ReallocationWay
from pollux_slurm.store.contract.interface import (
    GenerationState,
    Reallocation,
    Store,
)
from pollux_slurm.store.contract.membership import plan_of_member
from tests.store.access.test_statements import statements_of
from tests.store.builders import (
    Step,
    advance,
    at,
    members_of,
    move_in_place,
    move_running_job,
    plan,
    token_of,
)

TARGET = Allocation.of({"n0": 2, "n1": 1})


def plan_in_place(store: Store, **changes: Any) -> Reallocation:
    return plan(store, **{"target": TARGET, "way": ReallocationWay.IN_PLACE, **changes})


def request(
    store: Store, planned: Reallocation, seconds: float = 21, expected: Step = Step.PLANNED
) -> int | None:
    """Request the regroup; return the number of the generation."""
    found = store.journal.request_regroup(planned.id, members_of(planned), expected=expected, at=at(seconds))
    return None if found is None else found.number


def only(store: Store) -> Reallocation:
    (found,) = store.journal.reallocations("1")
    return found


def test_that_the_way_is_kept(running: Store) -> None:
    assert plan(running, target=TARGET).way is ReallocationWay.REQUEUE
    (by_requeue,) = running.journal.open_reallocations()
    assert by_requeue.way is ReallocationWay.REQUEUE
    advance(running, by_requeue, (Step.FAILED, 21))
    planned = plan_in_place(running)
    assert running.journal.open_reallocations() == (planned,)
    assert (planned.way, planned.generation) == (ReallocationWay.IN_PLACE, None)
    assert running.jobs.get("1").open_reallocation == planned


def test_that_a_request_plans_the_generation_that_the_job_sees(running: Store) -> None:
    planned = plan_in_place(running, from_restart_count=3)
    found = running.journal.request_regroup(planned.id, members_of(planned), expected=Step.PLANNED, at=at(21))
    assert found is not None
    assert (found.number, found.state, found.restart_count) == (1, GenerationState.PLANNED, 3)
    assert [plan_of_member(member.id) for member in found.members] == [0, 0, planned.id]
    assert running.agent.generation(token_of(1), after=0, restart_count=3) == found
    after = only(running)
    assert (after.step, after.generation, after.standstill_s) == (Step.REGROUP_REQUESTED, 1, None)
    assert after.times[-1] == (Step.REGROUP_REQUESTED, at(21))


def test_that_a_request_is_a_compare_and_set(running: Store) -> None:
    planned = plan_in_place(running)
    assert request(running, planned, expected=Step.REGROUP_REQUESTED) is None
    assert running.generations.of_job("1") == ()
    assert request(running, planned) == 1
    assert request(running, planned) is None, "it is past that step"
    assert (
        running.journal.request_regroup(10**6, members_of(planned), expected=Step.PLANNED, at=at(21)) is None
    )
    assert len(running.generations.of_job("1")) == 1


def test_that_a_second_request_changes_the_number_only(running: Store) -> None:
    planned = plan_in_place(running)
    request(running, planned)
    before = only(running)
    with pytest.raises(StoreError, match="generation 1 is planned; end it"):
        request(running, planned, expected=Step.REGROUP_REQUESTED)
    assert only(running) == before
    assert running.generations.end("1", 1, GenerationState.WITHDRAWN, at=at(30), reason="a wing was lost")
    assert request(running, planned, 31, expected=Step.REGROUP_REQUESTED) == 2
    after = only(running)
    assert (after.generation, after.step, after.times) == (2, before.step, before.times)


def test_that_an_impossible_request_has_no_effect(running: Store) -> None:
    planned = plan_in_place(running)
    with pytest.raises(StoreError, match="each member once"):
        running.journal.request_regroup(planned.id, (), expected=Step.PLANNED, at=at(21))
    with pytest.raises(StoreError, match="after checkpointed"):
        request(running, planned, expected=Step.CHECKPOINTED)
    assert running.journal.open_reallocations() == (planned,)
    advance(running, planned, (Step.ROLLED_BACK, 22))
    by_requeue = plan(running)
    with pytest.raises(StoreError, match="is by requeue"):
        request(running, by_requeue)
    assert running.generations.of_job("1") == ()


def test_that_it_goes_forward_and_is_confirmed_only_once_regrouped(running: Store) -> None:
    planned = plan_in_place(running)
    with pytest.raises(StoreError, match="with a generation"):
        running.journal.advance(planned.id, Step.REGROUP_REQUESTED, expected=Step.PLANNED, at=at(21))
    request(running, planned)
    with pytest.raises(StoreError, match="cannot go from regroup_requested to confirmed"):
        running.journal.advance(planned.id, Step.CONFIRMED, expected=Step.REGROUP_REQUESTED, at=at(22))
    assert only(running).step is Step.REGROUP_REQUESTED
    advance(running, planned, (Step.REGROUPED, 23))
    with pytest.raises(StoreError, match="only go forward"):
        running.journal.advance(planned.id, Step.RUNNING, expected=Step.REGROUPED, at=at(24))
    advance(running, planned, (Step.CONFIRMED, 25))
    assert [step for step, _ in only(running).times] == [
        Step.PLANNED,
        Step.REGROUP_REQUESTED,
        Step.REGROUPED,
        Step.CONFIRMED,
    ]


@pytest.mark.parametrize("end", [Step.ROLLED_BACK, Step.FAILED])
@pytest.mark.parametrize("is_requested", [False, True])
def test_that_it_ends_otherwise_from_every_step(running: Store, end: Step, is_requested: bool) -> None:
    planned = plan_in_place(running)
    if is_requested:
        request(running, planned)
    advance(running, planned, (end, 30))
    assert running.journal.open_reallocations() == ()
    assert running.jobs.get("1").num_restarts == 0


def test_that_no_checkpoint_is_requested_for_it(running: Store) -> None:
    request(running, plan_in_place(running))
    assert running.agent.poll(token_of(1), 0, at=at(22)).checkpoint_request is None


def test_that_the_standstill_is_the_one_that_the_job_reported(running: Store) -> None:
    move_in_place(running, standstill_s=0.25)
    moved = only(running)
    assert (moved.step, moved.generation, moved.standstill_s) == (Step.CONFIRMED, 1, 0.25)
    assert (moved.first_step_at, moved.checkpoint_blocked_s) == (None, None)


def test_that_the_costs_of_the_two_ways_are_never_mixed(running: Store) -> None:
    move_in_place(running, start=20, standstill_s=0.5)
    first = running.jobs.get("1")
    assert (first.num_restarts, first.mean_restart_delay_s) == (0, None)
    assert (first.mean_standstill_s, first.mean_warm_up_s) == (0.5, pytest.approx(7.5))
    move_running_job(running, start=100)
    move_in_place(running, start=200, standstill_s=1.5, restart_count=1)
    job = running.jobs.get("1")
    assert (job.num_restarts, job.mean_restart_delay_s) == (1, pytest.approx(12.5))
    assert (job.mean_standstill_s, job.mean_warm_up_s) == (1.0, pytest.approx((7.5 + 6.5) / 2))
    assert running.jobs.active() == (job,)
    assert [move.first_step_at is None for move in running.journal.reallocations("1")] == [True, False, True]


def test_that_only_moves_that_gain_gpus_have_a_warm_up(running: Store) -> None:
    move_in_place(running, target={"n0": 1}, standstill_s=0.25)
    job = running.jobs.get("1")
    assert (job.mean_standstill_s, job.mean_warm_up_s) == (0.25, None)
    # As many GPUs as before, some of them others.
    move_in_place(running, start=100, target={"n0": 1, "n1": 1}, standstill_s=0.75)
    job = running.jobs.get("1")
    assert (job.mean_standstill_s, job.mean_warm_up_s) == (0.5, pytest.approx(7.25))


def test_that_the_means_are_over_the_last_ten_in_place(running: Store) -> None:
    for number in range(12):
        move_in_place(running, start=20 + 100 * number, standstill_s=5.0 if number < 2 else 1.0)
    unfinished = plan_in_place(running, seconds=5000)
    request(running, unfinished, 5001)
    job = running.jobs.get("1")
    assert (job.mean_standstill_s, job.mean_warm_up_s) == (1.0, pytest.approx(7.0))


def test_that_a_request_takes_as_many_statements_for_many_members(running: Store) -> None:
    counts = []
    for gpus in (1, 500):
        planned = plan_in_place(running, target=Allocation.of({"n0": 2, "n1": gpus}))
        with statements_of(running) as sent:
            number = request(running, planned)
        counts.append(len(sent))
        assert number is not None
        running.generations.end("1", number, GenerationState.WITHDRAWN, at=at(30), reason="")
        advance(running, planned, (Step.ROLLED_BACK, 31))
    assert counts[0] == counts[1] <= 7
