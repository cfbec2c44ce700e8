"""What an objective asks of a move, unless the settings say something else."""

from __future__ import annotations

import pytest

from pollux_slurm.model import MovingRules
from pollux_slurm.policy import OBJECTIVES
from pollux_slurm.policy.objectives.moving_rules import moving_rules


@pytest.mark.parametrize(
    ("objective", "pauses", "hysteresis"),
    [
        ("generalized-mean", False, 0.1),
        ("osdi21", False, 0.0),
        ("price-rank", True, 0.0),
        ("attained-work", True, 0.0),
    ],
)
def test_that_each_objective_has_rules_of_its_own(objective: str, pauses: bool, hysteresis: float) -> None:
    assert objective in OBJECTIVES
    assert moving_rules(objective) == MovingRules(pauses=pauses, hysteresis=hysteresis)


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_that_what_is_set_counts_under_every_objective(objective: str) -> None:
    for pauses, hysteresis in ((True, 0.3), (False, 0.0)):
        found = moving_rules(objective, pauses=pauses, hysteresis=hysteresis)
        assert found == MovingRules(pauses=pauses, hysteresis=hysteresis)
