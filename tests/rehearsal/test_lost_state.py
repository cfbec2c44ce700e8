from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.rehearsal.findings import AVERAGES, CHANGES, VARIABLES, Level
from pollux_slurm.rehearsal.lost_state import lost_states, lost_variables, wrong_samples
from pollux_slurm.rehearsal.runs.script_run import RunOutcome
from tests.rehearsal.builders import (
    CHECKPOINT,
    EPOCH_END,
    MIDDLE,
    loop,
    loop_end,
    micro_batch,
    script_run,
    snapshot,
    state,
)

ROOT = Path(__file__).resolve().parents[2]


def test_that_samples_on_both_sides_of_a_move_count_once() -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], stop=MIDDLE)
    after = script_run([loop(), micro_batch(10, 5), loop_end()], [micro_batch(15, 5)])
    assert list(wrong_samples([[before, after]])) == []


def test_that_samples_after_the_last_checkpoint_of_a_run_do_not_count() -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT, micro_batch(10, 10)], stop=MIDDLE)
    after = script_run([loop(), micro_batch(10, 10), loop_end()])
    assert list(wrong_samples([[before, after]])) == []


@pytest.mark.parametrize(
    ("again_from", "text"),
    [
        (13, "Over the moves 3 samples of epoch 0 were missed."),
        (8, "Over the moves 2 samples of epoch 0 were used twice."),
    ],
)
def test_that_samples_missed_or_used_twice_are_a_finding(again_from: int, text: str) -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], stop=MIDDLE)
    after = script_run([loop(), micro_batch(again_from, 20 - again_from), loop_end()])
    assert [finding.text for finding in wrong_samples([[before, after]])] == [text]


def test_that_an_epoch_that_ends_early_misses_samples_unless_the_rest_is_dropped() -> None:
    short = [micro_batch(0, 15), loop_end()]
    (finding,) = wrong_samples([[script_run([loop(), *short])]])
    assert finding.text == "Over the moves 5 samples of epoch 0 were missed."
    assert not list(wrong_samples([[script_run([loop(drops_last=True), *short])]]))
    assert not list(wrong_samples([[script_run([loop(length=None), *short])]]))


def test_that_a_loop_that_the_script_left_is_not_checked() -> None:
    assert not list(wrong_samples([[script_run([loop(), micro_batch(0, 5), micro_batch(0, 5)])]]))


def test_that_another_order_or_length_after_a_move_is_a_finding() -> None:
    before = script_run([loop(), micro_batch(0, 10), CHECKPOINT], stop=MIDDLE)
    for changed in (loop(order="xyz"), loop(length=40)):
        found = list(wrong_samples([[before, script_run([changed, micro_batch(10, 10)])]]))
        assert [finding.kind for finding in found] == ["order"]


def test_that_a_state_that_a_move_in_mid_epoch_has_lost_is_found() -> None:
    before = script_run(
        [snapshot("checkpoint", objects={"adam": state(5.0), "sgd": state(2.0)})], stop=MIDDLE
    )
    after = script_run([snapshot("epoch", position=10, objects={"adam": state(), "sgd": state(2.0)})])
    (finding,) = lost_states([[before, after]])
    assert finding.text == "`adam` (Adam) is not in the checkpoint: after a move it began anew."
    assert finding.cure == "Pass it to AdaptiveDataParallel, with the model."


def test_that_states_with_one_cure_are_one_finding_over_all_runs() -> None:
    def move(numbers: float) -> list[Any]:
        saved = {name: state(numbers) for name in ("adam", "sgd")}
        before = script_run([snapshot("checkpoint", objects=saved)], stop=MIDDLE)
        return [
            before,
            script_run([snapshot("epoch", position=10, objects={"adam": state(), "sgd": state()})]),
        ]

    (finding,) = lost_states([move(5.0), move(7.0)])
    assert finding.text.startswith("`adam` (Adam) and `sgd` (Adam) are not in the checkpoint")


@pytest.mark.parametrize(
    ("kind", "type_", "guide"),
    [
        ("module", "AveragedModel", AVERAGES),
        ("module", "Linear", VARIABLES),
        ("optimizer", "Adam", CHANGES),
        ("scheduler", "StepLR", CHANGES),
    ],
)
def test_that_a_lost_state_points_at_the_section_that_cures_it(kind: str, type_: str, guide: str) -> None:
    before = script_run(
        [snapshot("checkpoint", objects={"it": state(5.0, kind=kind, type_=type_)})], stop=MIDDLE
    )
    after = script_run([snapshot("epoch", position=10, objects={"it": state(kind=kind, type_=type_)})])
    (finding,) = lost_states([[before, after]])
    assert finding.guide == guide
    file, _, heading = guide.partition(", ")
    section = (
        (ROOT / file).read_text(encoding="utf-8").split(f"## {heading.strip('“”')}\n")[1].split("\n## ")[0]
    )
    words = {"module": "pollux.State", "optimizer": "optimizers", "scheduler": "lr_scheduler"}
    assert words[kind] in section
    assert type_ != "AveragedModel" or "AveragedModel" in section


def test_that_a_lost_module_that_holds_an_average_points_at_averages() -> None:
    objects = {"it": state(5.0, kind="module", type_="Linear")}
    averaged = {"kind": "averaged", "names": ["it"]}
    before = script_run([averaged, snapshot("checkpoint", objects=objects)], stop=MIDDLE)
    lost = {"it": state(kind="module", type_="Linear")}
    (finding,) = lost_states([[before, script_run([snapshot("epoch", position=10, objects=lost)])]])
    assert finding.guide == AVERAGES


def test_that_wrong_sample_counts_in_several_epochs_are_one_finding() -> None:
    def short(epoch: int) -> list[Any]:
        return [loop(epoch=epoch), micro_batch(0, 15, epoch=epoch), loop_end(epoch=epoch)]

    (finding,) = wrong_samples([[script_run(short(0))], [script_run([*short(0), *short(1)])]])
    assert (
        finding.text
        == "Over the moves 5 samples of epoch 0 were missed and 5 samples of epoch 1 were missed."
    )


def test_that_states_are_not_compared_over_code_between_epochs() -> None:
    before = script_run([snapshot("checkpoint", in_loop=False, objects={"adam": state(5.0)})], stop=EPOCH_END)
    assert not list(
        lost_states([[before, script_run([snapshot("epoch", epoch=1, objects={"adam": state()})])]])
    )


def test_that_reset_variables_are_named_with_their_values() -> None:
    def values(n: str, start: str) -> dict[str, str]:
        return {"main:n": n, "train:n": n, "main:best": "0.0", "main:start": start}

    first_run = script_run([snapshot("epoch", variables=values("0", "100.5"))])
    saved = snapshot("checkpoint", variables=values("640", "200.5"))
    before = script_run([saved, CHECKPOINT], stop=MIDDLE)
    after = script_run([snapshot("epoch", variables=values("0", "300.5"))])
    (finding,) = lost_variables(first_run, [before, after])
    assert finding.level is Level.LOOK
    assert finding.text.endswith("reset: `n` (640 before a move in mid-epoch, 0 after it).")
    assert "best" not in finding.text
    assert "start" not in finding.text


def test_that_variables_that_training_depends_on_come_first_and_meters_last() -> None:
    names = ["running_loss", "losses.count", "name", "best_loss", "global_step", "other", "cur_lr"]
    first_run = script_run([snapshot("epoch", variables={f"main:{name}": "0" for name in names})])
    saved = snapshot("checkpoint", variables={f"main:{name}": "7" for name in names})
    after = script_run([snapshot("epoch", variables={f"main:{name}": "0" for name in names})])
    (finding,) = lost_variables(first_run, [script_run([saved, CHECKPOINT], stop=MIDDLE), after])
    assert re.findall(r"`([^`]+)`", finding.text) == [
        *("best_loss", "global_step", "cur_lr"),
        *("name", "other"),
        *("running_loss", "losses.count"),
    ]


def test_that_a_variable_of_the_number_of_processes_was_not_reset() -> None:
    one, two = (
        [snapshot(moment, variables={"main:size": size, "main:n": n})]
        for moment, size, n in (("checkpoint", "2", "7"), ("epoch", "1", "0"))
    )
    first_run = script_run(two)
    before = script_run(
        [snapshot("epoch", variables={"main:size": "2", "main:n": "0"}), *one], [], stop=MIDDLE
    )
    (finding,) = lost_variables(first_run, [before, script_run(two)])
    assert "`n` (7 before" in finding.text
    assert "size" not in finding.text


def test_that_the_scripts_tensors_that_differ_after_a_move_are_a_finding() -> None:
    kept, first_run = {"main:points": "9 numbers #0000000a"}, script_run([snapshot("epoch")])
    saved = snapshot("checkpoint", tensors={**kept, "main:queue": "8 numbers #0000000b"})
    after = snapshot("epoch", tensors={**kept, "main:queue": "8 numbers #0000000c"})
    (finding,) = lost_variables(
        first_run, [script_run([saved, CHECKPOINT], stop=MIDDLE), script_run([after])]
    )
    assert finding.text.endswith(
        "reset: `queue` (8 numbers #0000000b before a move in mid-epoch, 8 numbers #0000000c after it)."
    )


def test_that_over_an_epochs_end_variables_are_compared_with_those_of_an_unmoved_run() -> None:
    first = {"main:history": "[]", "main:n": "0"}
    first_run = script_run(
        [
            snapshot("epoch", variables=first),
            snapshot("epoch", epoch=1, variables={"main:history": "[0.5]", "main:n": "0"}),
        ]
    )
    before = script_run([snapshot("checkpoint", in_loop=False), CHECKPOINT], stop=EPOCH_END)
    after = script_run([snapshot("epoch", epoch=1, variables=first)])
    (finding,) = lost_variables(first_run, [before, after])
    assert "`history` ([0.5] before a move at an epoch's end, [] after it)" in finding.text
    assert "`n`" not in finding.text


def test_that_all_events_of_a_failed_run_count() -> None:
    failed = script_run([loop(), micro_batch(0, 20), loop_end()], outcome=RunOutcome.FAILED, exit_code=1)
    assert not list(wrong_samples([[failed]]))
