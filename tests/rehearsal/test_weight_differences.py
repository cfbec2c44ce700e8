from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pollux_slurm.rehearsal.findings import SPLITS, VARIABLES, Finding, Level
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun
from pollux_slurm.rehearsal.weight_differences import (
    depends_on_shape,
    needs_rounding,
    replicas_that_differ,
    training_that_differs,
)
from tests.rehearsal.builders import MIDDLE, START, loop, script_run, snapshot, stepped

RESTORED = {"kind": "random_restored"}
OUT_OF_MEMORY = {"kind": "out_of_memory"}


def test_that_replicas_with_other_weights_are_found_and_rounding_is_not() -> None:
    ours = snapshot("checkpoint", weights=(1.0, 2.0))
    (finding,) = replicas_that_differ([script_run([ours], [snapshot("checkpoint", weights=(1.0, 2.1))])])
    assert (finding.level, finding.kind) == (Level.CHANGE, "replicas_differ")
    assert not list(
        replicas_that_differ([script_run([ours], [snapshot("checkpoint", weights=(1.0, 2.000001))])])
    )


def test_that_what_the_log_says_of_the_shape_is_found_once() -> None:
    text = "the forward of 'model-0' writes the buffer 1.entry: keep batches whole"
    run = script_run([{"kind": "depends_on_shape", "text": text}])
    (finding,) = depends_on_shape([script_run([]), run, run])
    assert (finding.level, finding.guide) == (Level.LOOK, SPLITS)
    assert finding.text == f"The{text[3:]}."


def drew(who: str) -> dict[str, Any]:
    return {"kind": "drew", "who": who, "generators": ["torch"]}


def at(step: int, off: float) -> dict[str, Any]:
    """Return a step whose weights differ by a part of `off` from those without moves."""
    return stepped(step, weights=(3.0, 4.0 + 5.0 * off))


def first_run(*events: dict[str, Any], layers: Sequence[str] = ("Linear",)) -> ScriptRun:
    seen = snapshot("epoch", layers=layers, weights=(3.0, 4.0))
    return script_run([START, loop(), seen, *events, *(at(step, 0.0) for step in range(1, 6))])


def moved(*runs: ScriptRun, by_chance: float = 0.0) -> list[ScriptRun]:
    """Return a run that is stopped after step 2, and those that go on."""
    return [script_run([at(1, 0.0), at(2, by_chance)], stop=MIDDLE), *runs]


def found(first: ScriptRun, chain: Sequence[ScriptRun], **more: Any) -> list[Finding]:
    return list(training_that_differs(first, chain, **more))


ONE_PROCESS = (RESTORED, at(3, 0.0), at(4, 0.06))
"""After a stop and a restart with as many processes, a step differs."""


@pytest.mark.parametrize("layers", [("Linear",), ("BatchNorm2d", "Dropout")])
def test_that_a_restart_with_as_many_processes_changes_nothing_also_not_with_random_layers(
    layers: Sequence[str],
) -> None:
    first = first_run(drew("model"), drew("workers"), layers=layers)
    (finding,) = found(first, moved(script_run(ONE_PROCESS)))
    assert (finding.level, finding.kind, finding.guide) == (Level.CHANGE, "weights", VARIABLES)
    assert finding.text == (
        "After a stop and a restart with as many processes, the same batches and the same random numbers, "
        "the weights of model-0 differ from those without moves by 6.0%; rounding explains 0.0e+00."
    )
    assert not found(first, moved(script_run([RESTORED, at(3, 1e-7), at(4, 1e-6)])))


def test_that_what_chance_changes_without_a_move_is_no_fault_of_one() -> None:
    (finding,) = found(first_run(), moved(script_run(ONE_PROCESS), by_chance=0.05))
    assert finding.level is Level.NOTE
    assert "two runs without a move differ by 5.00% (seed all random generators)" in finding.text


def test_that_random_numbers_that_cannot_go_on_do_not_convict_a_restart() -> None:
    # They were not restored, in a stream, or another run than the one after the first stop.
    first = first_run(drew("model"))
    (finding,) = found(first, moved(script_run(ONE_PROCESS[1:])))
    assert finding.level is Level.NOTE
    (finding,) = found(first_run(loop(order=None), drew("dataset")), moved(script_run(ONE_PROCESS)))
    assert finding.level is Level.NOTE
    other = script_run([at(3, 0.0)], [], stop=MIDDLE)
    (finding,) = found(first, moved(other, script_run(ONE_PROCESS, [])))
    assert finding.level is Level.NOTE


def test_that_another_number_of_processes_changes_nothing_where_nothing_is_drawn() -> None:
    chain = moved(script_run([at(4, 0.02)], [], stop=MIDDLE), script_run([at(5, 0.38)]))
    (finding,) = found(first_run(), chain)
    assert (finding.level, finding.kind) == (Level.CHANGE, "weights")
    assert finding.text.startswith(
        "After a move in mid-epoch (1 → 2 processes) the weights of model-0 differ from those without moves "
        "by 2.0%, later by up to 38.0%. No random numbers were drawn;"
    )
    assert "batch_size // world_size" in finding.cure
    (finding,) = found(first_run(), moved(), in_place=chain)
    assert finding.level is Level.CHANGE


@pytest.mark.parametrize(
    ("who", "layers", "causes"),
    [
        ("script", ("Linear",), "random numbers that the script draws while it trains"),
        ("script", ("BatchNorm2d",), "BatchNorm2d and random numbers that the script draws while it trains"),
        ("model", ("BatchNorm2d",), "BatchNorm2d and random numbers that the model draws"),
        ("model", ("Dropout",), "Dropout"),
        ("dataset", (), "random numbers that the dataset draws (augmentation)"),
        ("workers", (), "random numbers that the loader's workers draw (augmentation)"),
    ],
)
def test_that_what_another_number_changes_by_chance_or_batchnorm_is_a_note(
    who: str, layers: Sequence[str], causes: str
) -> None:
    (finding,) = found(first_run(drew(who), layers=layers), moved(script_run([at(4, 0.1)], [])))
    assert finding.level is Level.NOTE
    assert finding.text.endswith(f" by 10.0%. Possible reasons: {causes}.")


def test_that_dropout_that_draws_nothing_excuses_nothing() -> None:
    (finding,) = found(first_run(layers=("Dropout",)), moved(script_run([at(4, 0.1)], [])))
    assert finding.level is Level.CHANGE


def test_that_rounding_is_measured_where_it_decides() -> None:
    chain = moved(script_run([at(4, 0.004)], []))
    assert needs_rounding(first_run(), chain, ())
    assert not needs_rounding(first_run(), moved(script_run([at(4, 1e-6)], [])), ())
    # The reverse order would give other examples these numbers.
    assert not needs_rounding(first_run(drew("model")), moved(script_run(ONE_PROCESS)), ())

    rounded = script_run([at(5, 0.001)])
    (finding,) = found(first_run(), chain, rounding_run=rounded)
    assert finding.level is Level.NOTE
    assert "rounding alone changes them by 0.10%" in finding.text
    rounded = script_run([at(5, 0.0001)])
    (finding,) = found(first_run(), chain, rounding_run=rounded)
    assert finding.level is Level.CHANGE
    assert "rounding explains 1.0e-04" in finding.text
    (finding,) = found(first_run(), chain, is_measured=False)
    assert finding.level is Level.LOOK
    assert "no time to measure how much of it is rounding" in finding.text


@pytest.mark.parametrize(("precision", "number"), [("torch.float32", 1), ("torch.bfloat16", 0)])
def test_that_a_low_precision_allows_for_more(precision: str, number: int) -> None:
    first = first_run(snapshot("checkpoint", precisions=[precision], weights=(3.0, 4.0)))
    assert len(found(first, moved(script_run([at(4, 0.005)], [])))) == number


def test_that_smaller_micro_batches_are_named() -> None:
    out = replace(script_run([at(3, 0.0), OUT_OF_MEMORY], stop=MIDDLE), outcome=RunOutcome.OUT_OF_MEMORY)
    (finding,) = found(first_run(), moved(out, script_run([at(4, 0.1)])))
    assert finding.text.startswith("After an OutOfMemoryError, with smaller micro-batches, the weights")


def test_that_a_script_that_leaves_a_step_out_after_a_lack_of_memory_is_not_compared() -> None:
    assert not found(first_run(), moved(script_run([OUT_OF_MEMORY, at(4, 0.1)], [])))


def test_that_weights_that_are_not_finite_are_the_same_where_they_were_before() -> None:
    def run(weight: float) -> ScriptRun:
        return script_run([stepped(4, weights=(weight, 1.0))], [])

    nan = float("nan")
    assert not found(run(nan), moved(run(nan)))
    assert found(run(1.0), moved(run(nan)))


def test_that_differing_replicas_of_several_models_are_one_finding() -> None:
    models = ("model-0", "model-1")
    ours, theirs = (snapshot("checkpoint", weights=(1.0, at), models=models) for at in (2.0, 2.1))
    (finding,) = replicas_that_differ([script_run([ours], [theirs]), script_run([ours], [ours], [theirs])])
    assert finding.text.startswith("The weights of model-0 and model-1 differ between processes 0 and 1 of 2")
