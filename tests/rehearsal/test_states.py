from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.rehearsal.findings import Level
from pollux_slurm.rehearsal.playing import Outcome
from pollux_slurm.rehearsal.states import (
    another_training,
    lost_states,
    lost_variables,
    replicas_that_differ,
    samples,
)
from tests.rehearsal.builders import CHECKPOINT, EPOCH_END, MIDDLE, handed, loop, loop_end, played, snapshot


def test_that_samples_shared_out_over_a_move_count_once() -> None:
    before = played([loop(), handed(0, 10), CHECKPOINT], stop=MIDDLE)
    after = played([loop(), handed(10, 5), loop_end()], [handed(15, 5)])
    assert list(samples([before, after])) == []


def test_that_samples_behind_the_last_checkpoint_of_a_run_do_not_count() -> None:
    before = played([loop(), handed(0, 10), CHECKPOINT, handed(10, 10)], stop=MIDDLE)
    after = played([loop(), handed(10, 10), loop_end()])
    assert list(samples([before, after])) == []


@pytest.mark.parametrize(
    ("again_from", "text"),
    [
        (13, "Over the moves 3 samples of epoch 0 were missed."),
        (8, "Over the moves 2 samples of epoch 0 were seen twice."),
    ],
)
def test_that_samples_missed_or_seen_twice_are_told(again_from: int, text: str) -> None:
    before = played([loop(), handed(0, 10), CHECKPOINT], stop=MIDDLE)
    after = played([loop(), handed(again_from, 20 - again_from), loop_end()])
    assert [finding.text for finding in samples([before, after])] == [text]


def test_that_an_epoch_that_ends_early_misses_samples_unless_the_rest_is_dropped() -> None:
    short = [handed(0, 15), loop_end()]
    (finding,) = samples([played([loop(), *short])])
    assert finding.text == "Over the moves 5 samples of epoch 0 were missed."
    assert not list(samples([played([loop(drops_last=True), *short])]))
    assert not list(samples([played([loop(length=None), *short])]))


def test_that_a_loop_that_was_left_is_not_looked_at() -> None:
    assert not list(samples([played([loop(), handed(0, 5), handed(0, 5)])]))


def test_that_another_order_or_length_after_a_move_is_told() -> None:
    before = played([loop(), handed(0, 10), CHECKPOINT], stop=MIDDLE)
    for changed in (loop(order="xyz"), loop(length=40)):
        found = list(samples([before, played([changed, handed(10, 10)])]))
        assert [finding.kind for finding in found] == ["order"]


def test_that_replicas_with_other_weights_are_found_and_rounding_is_not() -> None:
    ours = snapshot("checkpoint", weights=(1.0, 2.0))
    (finding,) = replicas_that_differ([played([ours], [snapshot("checkpoint", weights=(1.0, 2.1))])])
    assert (finding.level, finding.kind) == (Level.CHANGE, "replicas_differ")
    assert not list(replicas_that_differ([played([ours], [snapshot("checkpoint", weights=(1.0, 2.000001))])]))


def state(*numbers: float, kind: str = "optimizer", type_: str = "Adam") -> dict[str, Any]:
    return {"kind": kind, "type": type_, "numbers": list(numbers)}


def test_that_a_state_that_a_move_in_mid_epoch_has_lost_is_found() -> None:
    before = played([snapshot("checkpoint", objects={"adam": state(5.0), "sgd": state(2.0)})], stop=MIDDLE)
    after = played([snapshot("epoch", position=10, objects={"adam": state(), "sgd": state(2.0)})])
    (finding,) = lost_states([before, after])
    assert finding.text == "`adam` (Adam) is not in the checkpoint: after a move it began anew."
    assert finding.cure == "Give it to AdaptiveDataParallel, beside the model."


def test_that_states_are_not_compared_over_code_between_epochs() -> None:
    before = played([snapshot("checkpoint", in_loop=False, objects={"adam": state(5.0)})], stop=EPOCH_END)
    assert not list(lost_states([before, played([snapshot("epoch", epoch=1, objects={"adam": state()})])]))


def test_that_variables_that_began_anew_are_told_with_what_they_were() -> None:
    scouted = played(
        [snapshot("epoch", variables={"main:n": "0", "main:best": "0.0", "main:start": "100.5"})]
    )
    saved = snapshot("checkpoint", variables={"main:n": "640", "main:best": "0.0", "main:start": "200.5"})
    before = played([saved, CHECKPOINT], stop=MIDDLE)
    after = played([snapshot("epoch", variables={"main:n": "0", "main:best": "0.0", "main:start": "300.5"})])
    (finding,) = lost_variables(scouted, [before, after])
    assert finding.level is Level.LOOK
    assert "`n` (640 before a move in mid-epoch, 0 after it)" in finding.text
    assert "best" not in finding.text
    assert "start" not in finding.text


def test_that_over_an_epochs_end_variables_are_compared_with_those_of_an_unmoved_run() -> None:
    first = {"main:history": "[]", "main:n": "0"}
    scouted = played(
        [
            snapshot("epoch", variables=first),
            snapshot("epoch", epoch=1, variables={"main:history": "[0.5]", "main:n": "0"}),
        ]
    )
    before = played([snapshot("checkpoint", in_loop=False), CHECKPOINT], stop=EPOCH_END)
    after = played([snapshot("epoch", epoch=1, variables=first)])
    (finding,) = lost_variables(scouted, [before, after])
    assert "`history` ([0.5] before a move at an epoch's end, [] after it)" in finding.text
    assert "`n`" not in finding.text


def test_that_a_schedule_that_moves_have_shifted_is_found() -> None:
    def at(steps: float) -> dict[str, Any]:
        return snapshot("epoch", epoch=1, objects={"s": state(steps, kind="scheduler", type_="OneCycleLR")})

    scouted = played([snapshot("epoch"), at(24.0)])
    (finding,) = another_training(scouted, [played([at(12.0)])])
    assert finding.kind == "schedule"
    assert not list(another_training(scouted, [played([at(24.0)])]))


@pytest.mark.parametrize(("layers", "level"), [(("Linear",), Level.LOOK), (("Dropout",), Level.NOTE)])
def test_that_other_weights_than_without_moves_are_told_by_what_explains_them(
    layers: tuple[str, ...], level: Level
) -> None:
    scouted = played([snapshot("epoch"), snapshot("epoch", epoch=1, weights=(3.0, 4.0), layers=layers)])
    moved = played([snapshot("epoch", epoch=1, weights=(3.0, 4.5), layers=layers)])
    (finding,) = another_training(scouted, [moved])
    assert finding.level is level
    assert "by 10.0%" in finding.text


def test_that_a_run_that_failed_counts_with_all_it_did() -> None:
    failed = played([loop(), handed(0, 20), loop_end()], outcome=Outcome.FAILED, exit_code=1)
    assert not list(samples([failed]))
