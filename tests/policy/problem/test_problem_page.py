"""docs/problem.md: its example is solved, and it names every field there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from pollux_slurm.model import (
    BatchLimits,
    GoodputModel,
    GpuLimit,
    GradientStatistics,
    MovingRules,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    ThroughputParameters,
)
from pollux_slurm.policy import OBJECTIVES, SOLVERS, decide
from pollux_slurm.policy.problem.json_format import problem_from_json

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "problem.md").read_text(encoding="utf-8")


def test_that_the_example_is_solved() -> None:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    decision = decide(problem_from_json(found.group(1)))
    assert not decision.excluded
    assert [job.allocation.num_gpus for job in decision.jobs] == [3, 1]


@pytest.mark.parametrize(
    "kind",
    [
        Problem,
        NodeCapacity,
        ProblemJob,
        Objective,
        MovingRules,
        GoodputModel,
        BatchLimits,
        GradientStatistics,
    ],
)
def test_that_every_field_is_described(kind: type) -> None:
    missing = [field.name for field in dataclasses.fields(kind) if f"`{field.name}`" not in PAGE]
    assert missing == []


@pytest.mark.parametrize("kind", [ThroughputParameters, GpuLimit])
def test_that_every_number_is_in_the_example(kind: type) -> None:
    missing = [field.name for field in dataclasses.fields(kind) if f'"{field.name}"' not in PAGE]
    assert missing == []


def test_that_objectives_and_solvers_are_named() -> None:
    assert [name for name in (*OBJECTIVES, *SOLVERS) if name not in PAGE] == []
