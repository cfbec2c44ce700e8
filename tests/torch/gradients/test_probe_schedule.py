"""How often one replica measures its gradient noise."""

from __future__ import annotations

import pytest

from pollux_slurm.torch.gradients.probe_schedule import ProbeSchedule


def probes(cost: float | None, num_steps: int) -> list[int]:
    """Return the steps that were measured."""
    schedule, steps = ProbeSchedule(), []
    schedule.cost = cost
    for step in range(num_steps):
        is_due = schedule.is_due
        schedule.add_step(is_probe=is_due)
        if is_due:
            steps.append(step)
    return steps


@pytest.mark.parametrize("cost", [None, 0.0, 0.02, 0.1, 0.67, 1.0, 3.0])
@pytest.mark.parametrize("num_steps", [1000, 5000])
def test_that_measuring_costs_at_most_one_percent_and_no_less_than_it_may(
    cost: float | None, num_steps: int
) -> None:
    spent = len(probes(cost, num_steps)) * (1.0 if cost is None else cost)
    assert spent <= 0.01 * num_steps
    if cost is None or cost >= 0.1:
        assert spent >= 0.007 * num_steps


def test_that_most_is_measured_early() -> None:
    steps = probes(0.67, 1000)
    assert sum(step < 125 for step in steps) >= len(steps) // 3


def test_that_a_restored_schedule_goes_on() -> None:
    first = ProbeSchedule()
    for _ in range(50):
        first.add_step(is_probe=first.is_due)
    second = ProbeSchedule()
    second.load_state(first.state())
    assert (second.num_steps, second.num_probes) == (first.num_steps, first.num_probes)
