from __future__ import annotations

from pathlib import Path
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH
from pollux_slurm.rehearsal.findings import AVERAGES, Level
from pollux_slurm.rehearsal.runs.stop_plan import plan_stops
from pollux_slurm.rehearsal.script_counters import averages_over_micro_batches, own_epochs
from tests.rehearsal.builders import loop, loop_end, micro_batch, script_run

ROOT = Path(__file__).resolve().parents[2]
STEPPED = {"kind": "first_step"}


def trained(number: int, *, epoch: int = NO_EPOCH) -> list[dict[str, Any]]:
    return [
        loop(epoch=epoch, number=number),
        micro_batch(0, 20, epoch=epoch, loop=number),
        loop_end(epoch=epoch, number=number, steps=2 * number + 2),
    ]


def test_that_several_loops_outside_of_epochs_are_counted_as_epochs() -> None:
    (finding,) = own_epochs(script_run([STEPPED, *trained(0), *trained(1)]))
    assert (finding.level, finding.kind) == (Level.CHANGE, "own_epochs")
    assert "remaining_epochs_until(n)" in finding.cure
    file, _, heading = finding.guide.partition(", ")
    section = (
        (ROOT / file).read_text(encoding="utf-8").split(f"## {heading.strip('“”')}\n")[1].split("\n## ")[0]
    )
    assert "remaining_epochs_until(n)" in section


def test_that_a_single_loop_outside_of_epochs_may_be_all_there_is() -> None:
    (finding,) = own_epochs(script_run([STEPPED, *trained(0)]))
    assert finding.level is Level.NOTE
    assert not list(own_epochs(script_run([STEPPED, *trained(0, epoch=0), *trained(0, epoch=1)])))


def test_that_loops_outside_of_epochs_are_moved_like_epochs() -> None:
    stops = plan_stops(script_run([STEPPED, *trained(0), *trained(1)]))
    assert [(stop.moment.value, stop.loader, stop.epoch, stop.loop, stop.position) for stop in stops] == [
        ("step", "loader-0", NO_EPOCH, 0, 10),
        ("after_loop", "loader-0", NO_EPOCH, 0, 0),
        ("step", "loader-0", NO_EPOCH, 1, 10),
        ("step", "", 1, 0, 0),
    ]


def averaged(*names: str) -> dict[str, Any]:
    return {"kind": "averaged", "names": list(names)}


def test_that_averages_over_micro_batches_are_one_finding_and_a_single_update_is_none() -> None:
    runs = [
        script_run([averaged("ema", ""), averaged("ema", "once")]),
        script_run([averaged("shadow"), averaged("shadow")]),
    ]
    (finding,) = averages_over_micro_batches(runs)
    assert finding.text.startswith("An average of the weights (`ema` and `shadow`) is also updated after")
    assert (finding.level, finding.guide) == (Level.CHANGE, AVERAGES)
    assert not list(averages_over_micro_batches([script_run([averaged("once")])]))
