"""How long an experiment is expected to take."""

from __future__ import annotations

import pytest

from pollux_slurm.simulator.experiments.kept_runs import ExperimentRun
from pollux_slurm.simulator.experiments.run_times import expected_s, expected_text
from pollux_slurm.simulator.experiments.settings import RunSettings
from tests.simulator.builders import made_job


def run_of(
    policy: str, *, load: float | None = 1.0, num_jobs: int = 160, has_bound: bool = False
) -> ExperimentRun:
    return ExperimentRun(
        workload="w",
        load=load,
        seed=1,
        jobs=tuple(made_job(f"j{number}") for number in range(num_jobs)),
        settings=RunSettings(policy=policy),
        place={},
        has_bound=has_bound,
    )


def test_that_jobs_and_processes_count() -> None:
    one = expected_s([run_of("pollux")], 1)
    assert expected_s([run_of("pollux", num_jobs=320)], 1) == pytest.approx(2 * one)
    assert expected_s([run_of("pollux")] * 6, 3) == pytest.approx(2 * one)
    assert expected_s([run_of("pollux", load=2.0)], 1) > one > expected_s([run_of("tiresias")], 1)


def test_that_a_bound_counts_once_for_its_workload() -> None:
    alone = [run_of("tiresias"), run_of("optimus")]
    bounded = [run_of("tiresias", has_bound=True), run_of("optimus", has_bound=True)]
    assert expected_s(bounded, 1) - expected_s(alone, 1) == pytest.approx(40.0)


def test_that_people_hear_of_minutes_and_hours_only() -> None:
    assert expected_text([run_of("pollux")], 1) == ""
    assert expected_text([run_of("pollux")] * 90, 2).startswith(
        "90 simulations, about 3 min with 2 at a time"
    )
    assert "about 2 h" in expected_text([run_of("genetic")] * 100, 2)
