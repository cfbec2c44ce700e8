"""Two rounds captured from the paper's artifact (Apache License 2.0, Petuum Inc.), with its fitness."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pollux_slurm.model import Allocation, Problem
from pollux_slurm.policy import decide, fitness_of
from pollux_slurm.policy.problem.json_format import problem_from_json

ROUNDS = Path(__file__).parent / "rounds"


def read(name: str) -> tuple[Problem, dict]:
    text = json.loads((ROUNDS / f"round-{name}.json").read_text(encoding="utf-8"))
    return problem_from_json(json.dumps(text["problem"])), text


@pytest.mark.parametrize("name", ["02", "12"])
def test_that_the_artifacts_answer_has_the_fitness_that_the_artifact_reports(name: str) -> None:
    one, captured = read(name)
    allocations = {job: Allocation.of(held) for job, held in captured["artifact"]["allocations"].items()}
    assert fitness_of(one, allocations) == pytest.approx(captured["artifact"]["fitness"], rel=1e-7)


@pytest.mark.parametrize("name", ["02", "12"])
def test_that_the_best_value_known_is_reached_with_a_bound(name: str) -> None:
    one, captured = read(name)
    found = decide(one)
    assert found.fitness >= captured["best_known"] - 5e-7  # it is known to six digits
    assert found.fitness <= found.upper_bound
    assert found.gap <= 0.005
