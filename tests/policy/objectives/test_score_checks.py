"""The terms of an objective are checked: a wrong one is an error that names it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from pollux_slurm.errors import ObjectiveError
from pollux_slurm.policy.decide import decide
from pollux_slurm.policy.objectives import registry, score_checks
from pollux_slurm.policy.participation import problem_checks
from tests.policy.builders import job, nodes, problem, sizes

NAN = float("nan")
JOBS = (job("old"), job("young"))


def decided(monkeypatch: pytest.MonkeyPatch, function: Any) -> Mapping[str, int]:
    """Return the GPUs of two jobs on four GPUs under an objective of a user's own."""
    objectives = MappingProxyType({**registry.OBJECTIVES, "own": function})
    for module in (score_checks, problem_checks):
        monkeypatch.setattr(module, "OBJECTIVES", objectives)
    return sizes(decide(problem(nodes(1), *JOBS, name="own")))


def with_terms(**terms: Any) -> Any:
    def own(*arguments: Any) -> Any:
        return dataclasses.replace(registry.generalized_mean(*arguments), **terms)

    return own


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"weight": np.array([1.0, NAN])}, "2 finite numbers above 0, found nan for job young"),
        ({"weight": np.array([0.0, 1.0])}, "weight must be 2 finite numbers above 0, found 0 for job old"),
        ({"weight": np.array([1.0, -1.0])}, "2 finite numbers above 0, found -1 for job young"),
        ({"weight": np.array([1.0, np.inf])}, "above 0, found inf for job young"),
        ({"weight": np.ones(3)}, r"2 finite numbers above 0, found an array of float64 of shape \(3,\)"),
        ({"weight": [1.0, 1.0]}, "weight must be 2 finite numbers above 0, found a value of type list"),
        ({"weight": np.array(["1", "2"])}, "weight must be 2 finite numbers above 0, found an array of <U1"),
        ({"speedup": np.ones(2)}, r"speedup must be 2 × \d+ finite numbers of at least 0, found an array"),
        ({"current_speedup": np.array([0.0, NAN])}, "current_speedup must be 2 finite numbers of at least 0"),
        ({"penalty": np.array([1.0, -0.1])}, r"penalty must be 2 or 2 × \d+ finite numbers of at least 0"),
        ({"penalty": None}, "penalty must be .*, found None"),
        ({"in_place_penalty": np.ones((1, 2))}, "in_place_penalty must be "),
        ({"units": np.zeros(2)}, "units must be 2 finite numbers above 0, found 0 for job old"),
        ({"usable": np.ones(2)}, r"usable must be 2 × \d+ truth values, found an array"),
        ({"exponent": 21}, "exponent must be a number within ±20, found 21"),
        ({"exponent": NAN}, "exponent must be a number within ±20, found nan"),
        ({"floor": 0.0}, "floor must be a finite number above 0, found 0"),
        ({"scale": None}, "scale must be a finite number above 0, found None"),
    ],
)
def test_that_an_impossible_term_is_named(
    monkeypatch: pytest.MonkeyPatch, terms: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ObjectiveError, match=f"^objective own: .*{message}"):
        decided(monkeypatch, with_terms(**terms))


def test_that_an_objective_must_return_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ObjectiveError, match=r"^objective own: it must return Scores, found None$"):
        decided(monkeypatch, lambda *_: None)


def test_that_an_error_in_an_objective_is_one_line_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def own(*_: Any) -> Any:
        return undefined_name  # type: ignore[name-defined] # noqa: F821

    place = rf"\({Path(__file__).name}, line {own.__code__.co_firstlineno + 1}\)"
    message = f"^objective own: NameError: name 'undefined_name' is not defined {place}$"
    with pytest.raises(ObjectiveError, match=message):
        decided(monkeypatch, own)


def test_that_whole_numbers_and_a_problem_without_jobs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    own = with_terms(weight=np.array([1, 1]), scale=1)
    assert decided(monkeypatch, own) == {"old": 2, "young": 2}
    assert decide(problem(nodes(1))).jobs == ()
