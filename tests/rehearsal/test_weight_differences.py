from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.rehearsal.findings import VARIABLES, Level
from pollux_slurm.rehearsal.weight_differences import replicas_that_differ, training_that_differs
from tests.rehearsal.builders import loop, script_run, snapshot, state


def test_that_replicas_with_other_weights_are_found_and_rounding_is_not() -> None:
    ours = snapshot("checkpoint", weights=(1.0, 2.0))
    (finding,) = replicas_that_differ([script_run([ours], [snapshot("checkpoint", weights=(1.0, 2.1))])])
    assert (finding.level, finding.kind) == (Level.CHANGE, "replicas_differ")
    assert not list(
        replicas_that_differ([script_run([ours], [snapshot("checkpoint", weights=(1.0, 2.000001))])])
    )


def test_that_a_schedule_that_differs_after_moves_is_found() -> None:
    def at(steps: float) -> dict[str, Any]:
        return snapshot("epoch", epoch=1, objects={"s": state(steps, kind="scheduler", type_="OneCycleLR")})

    first_run = script_run([snapshot("epoch"), at(24.0)])
    (finding,) = training_that_differs(first_run, [script_run([at(12.0)])])
    assert finding.kind == "schedule"
    assert not list(training_that_differs(first_run, [script_run([at(24.0)])]))


@pytest.mark.parametrize(("layers", "level"), [(("Linear",), Level.LOOK), (("Dropout",), Level.NOTE)])
def test_that_weights_that_differ_by_moves_are_a_finding_with_possible_reasons(
    layers: tuple[str, ...], level: Level
) -> None:
    first_run = script_run([snapshot("epoch"), snapshot("epoch", epoch=1, weights=(3.0, 4.0), layers=layers)])
    moved = script_run([snapshot("epoch", epoch=1, weights=(3.0, 4.5), layers=layers)])
    (finding,) = training_that_differs(first_run, [moved])
    assert finding.level is level
    assert "by 10.0%" in finding.text


def runs_with(*drawn: dict[str, Any], layers: tuple[str, ...] = (), has_workers: bool = False) -> list[Any]:
    """Return a run without moves and one with, whose weights differ, and what was seen to draw numbers."""
    begun = [loop(has_workers=has_workers), snapshot("epoch"), *drawn]
    first_run = script_run([*begun, snapshot("epoch", epoch=1, layers=layers)])
    return [first_run, [script_run([snapshot("epoch", epoch=1, weights=(1.0, 2.5), layers=layers)])]]


@pytest.mark.parametrize(
    ("who", "layers", "causes"),
    [
        ("script", (), "random numbers that the script draws while it trains"),
        ("script", ("BatchNorm2d",), "BatchNorm2d and random numbers that the script draws while it trains"),
        ("model", ("BatchNorm2d",), "BatchNorm2d and random numbers that the model draws"),
        ("model", ("Dropout",), "Dropout"),
        ("dataset", (), "random numbers that the dataset draws (augmentation)"),
    ],
)
def test_that_random_numbers_are_named_by_their_source(
    who: str, layers: tuple[str, ...], causes: str
) -> None:
    drew = {"kind": "drew", "who": who, "generators": ["torch"]}
    (finding,) = training_that_differs(*runs_with(drew, layers=layers))
    assert finding.level is Level.NOTE
    assert finding.text.endswith(f". Possible reasons: {causes}.")


def test_that_augmentation_is_named_only_where_it_may_be() -> None:
    (finding,) = training_that_differs(*runs_with())
    assert finding.level is Level.LOOK
    assert "ugmentation" not in finding.text
    assert "something that affects the training is not in the checkpoint" in finding.text
    assert finding.guide == VARIABLES
    (finding,) = training_that_differs(*runs_with(has_workers=True))
    assert "augmentation there explains it" in finding.text


def test_that_models_and_epochs_whose_weights_differ_are_one_finding() -> None:
    models = ("model-0", "model-1")
    epochs = [snapshot("epoch", epoch=epoch, weights=(3.0, 4.0), models=models) for epoch in range(3)]
    moved = [
        script_run([snapshot("epoch", epoch=epoch, weights=(3.0, 4.0 + epoch / 2), models=models)])
        for epoch in (1, 2)
    ]
    (finding,) = training_that_differs(script_run(epochs), moved)
    assert "the weights of model-0 and model-1 differ from those without by up to 20.0%" in finding.text


def test_that_schedules_that_differ_are_one_finding() -> None:
    def at(steps: float) -> dict[str, Any]:
        schedules = {name: state(steps, kind="scheduler", type_="StepLR") for name in ("one", "two")}
        return snapshot("epoch", epoch=1, objects=schedules)

    (finding,) = training_that_differs(script_run([snapshot("epoch"), at(24.0)]), [script_run([at(12.0)])])
    assert finding.text.startswith("`one` (StepLR) and `two` (StepLR) differ after")


def test_that_differing_replicas_of_several_models_are_one_finding() -> None:
    models = ("model-0", "model-1")
    ours, theirs = (snapshot("checkpoint", weights=(1.0, at), models=models) for at in (2.0, 2.1))
    (finding,) = replicas_that_differ([script_run([ours], [theirs]), script_run([ours], [ours], [theirs])])
    assert finding.text.startswith("The weights of model-0 and model-1 differ between processes 0 and 1 of 2")
