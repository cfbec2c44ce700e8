from __future__ import annotations

import dataclasses
from datetime import datetime

import pytest

from pollux_slurm.model import Allocation, ReallocationStep
from pollux_slurm.store.contract.interface import Reallocation
from pollux_slurm.store.journal.move_costs import ReallocationCosts, reallocation_costs
from tests.store.builders import Step, at


def reallocation(
    *steps: tuple[ReallocationStep, float], blocked_s: float | None = None, first_step: datetime | None = None
) -> Reallocation:
    return Reallocation(
        id=1,
        slurm_job_id="1",
        step=steps[-1][0],
        source=Allocation.of({"n0": 2}),
        target=Allocation.of({"n1": 4}),
        moves_running=True,
        from_restart_count=0,
        times=tuple((step, at(seconds)) for step, seconds in steps),
        checkpoint_blocked_s=blocked_s,
        first_step_at=first_step,
    )


WHOLE = (
    (Step.PLANNED, 0),
    (Step.CHECKPOINT_REQUESTED, 1),
    (Step.CHECKPOINTED, 3),
    (Step.REQUEUED, 4),
    (Step.RESHAPED, 5),
    (Step.RELEASED, 7),
    (Step.RUNNING, 9),
    (Step.CONFIRMED, 16),
)


def test_that_the_parts_are_those_of_the_docstring() -> None:
    costs = reallocation_costs(reallocation(*WHOLE, blocked_s=0.5, first_step=at(15)))
    assert costs == ReallocationCosts(checkpoint_s=0.5, hold_s=4.0, slurm_s=5.0, launch_s=6.0, total_s=12.5)


def test_that_a_daemon_that_confirms_late_does_not_lengthen_a_restart() -> None:
    late = (*WHOLE[:-1], (Step.CONFIRMED, 3600))
    costs = reallocation_costs(reallocation(*late, blocked_s=0.5, first_step=at(15)))
    assert (costs.launch_s, costs.total_s) == (6.0, 12.5)


def test_that_the_confirmation_bounds_a_first_step_of_another_run() -> None:
    costs = reallocation_costs(reallocation(*WHOLE, blocked_s=0.5, first_step=at(900)))
    assert (costs.launch_s, costs.total_s) == (7.0, 13.5)


def test_that_without_a_confirmed_checkpoint_the_delay_begins_at_the_requeue() -> None:
    costs = reallocation_costs(reallocation((Step.PLANNED, 0), *WHOLE[3:], first_step=at(15)))
    assert (costs.checkpoint_s, costs.hold_s, costs.total_s) == (None, None, 11.0)


def test_that_a_step_that_was_not_reached_has_no_cost() -> None:
    waiting = reallocation_costs(reallocation(*WHOLE[:3], blocked_s=0.5))
    assert waiting == ReallocationCosts(
        checkpoint_s=0.5, hold_s=None, slurm_s=None, launch_s=None, total_s=None
    )


@pytest.mark.parametrize("skew", [-1000.0, -15.0])
def test_that_no_cost_is_negative_when_clocks_disagree(skew: float) -> None:
    costs = reallocation_costs(reallocation(*WHOLE, blocked_s=0.5, first_step=at(skew)))
    assert costs.launch_s == 0.0
    assert costs.total_s == 0.0


IN_PLACE = ((Step.PLANNED, 0), (Step.REGROUP_REQUESTED, 1), (Step.REGROUPED, 9), (Step.CONFIRMED, 10))


def test_that_a_move_in_place_costs_its_standstill_and_the_time_its_new_gpus_are_idle() -> None:
    costs = reallocation_costs(dataclasses.replace(reallocation(*IN_PLACE), standstill_s=0.5))
    assert costs == ReallocationCosts(
        checkpoint_s=None,
        hold_s=None,
        slurm_s=None,
        launch_s=None,
        total_s=None,
        standstill_s=0.5,
        warm_up_s=7.5,
    )


def test_that_a_job_that_gains_no_gpus_has_no_warm_up() -> None:
    shrunk = dataclasses.replace(reallocation(*IN_PLACE), target=Allocation.of({"n0": 1}), standstill_s=0.5)
    assert reallocation_costs(shrunk).warm_up_s is None
    unfinished = reallocation(*IN_PLACE[:2])
    assert (reallocation_costs(unfinished).standstill_s, reallocation_costs(unfinished).warm_up_s) == (
        None,
    ) * 2
