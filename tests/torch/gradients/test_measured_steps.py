"""How often one replica measures its gradient noise."""

from __future__ import annotations

import itertools

import pytest

from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule


@pytest.fixture(autouse=True)
def _as_in_a_training(_often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProbeSchedule, "share", 0.01)


LARGE, SMALL = 1_000_000, 1_000


def probes(num_steps: int, numel: int = LARGE) -> list[int]:
    """Return the steps that were measured of a model of so many parameters."""
    schedule, steps = ProbeSchedule(numel), []
    for step in range(num_steps):
        is_due = schedule.is_due
        schedule.add_step(is_probe=is_due)
        if is_due:
            steps.append(step)
    return steps


@pytest.mark.parametrize("num_steps", [1000, 5000])
def test_that_no_more_steps_are_measured_than_may_be_and_hardly_fewer(num_steps: int) -> None:
    assert 0.009 * num_steps <= len(probes(num_steps)) <= 0.01 * num_steps


def test_that_small_models_are_measured_less_often() -> None:
    assert [len(probes(5000, numel)) for numel in (SMALL, 99_999, 100_000, LARGE)] == [39, 39, 49, 49]


def test_that_most_is_measured_early() -> None:
    steps = probes(1000)
    assert steps[0] == 32
    assert sum(step < 400 for step in steps) == 5
    # All but the first few within twice the time of an even schedule.
    gaps = [later - earlier for earlier, later in itertools.pairwise(steps)]
    assert gaps == sorted(gaps)
    assert gaps[-1] < 150


def test_that_a_restored_schedule_goes_on() -> None:
    first = ProbeSchedule(LARGE)
    for _ in range(50):
        first.add_step(is_probe=first.is_due)
    second = ProbeSchedule(LARGE)
    second.load_state(first.state())
    assert (second.num_steps, second.num_probes) == (first.num_steps, first.num_probes)
