from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.rehearsal.findings import Level
from pollux_slurm.rehearsal.unsynchronized_sums import unsynchronized_sums
from tests.rehearsal.builders import loop, script_run

COMBINED = {"kind": "combined"}
EPOCH_END = {"kind": "epoch_end", "epoch": 0}


def summed(**sums: float) -> dict[str, Any]:
    values = {f"validate:{name}": [value, value] for name, value in sums.items()}
    place = {"variable": "held_out", "loader": "loader-1", "epoch": 0, "loop": 0}
    return {"kind": "summed", **place, "sums": values}


def validated(*behind: dict[str, Any], within: tuple[dict[str, Any], ...] = (), **sums: float) -> list[Any]:
    return [loop(30, loader="loader-1"), *within, summed(**sums), *behind]


def test_that_sums_that_are_never_combined_are_found_in_a_run_of_several_processes() -> None:
    ranks = [validated(EPOCH_END, n=n, correct=right, best=0.0, i=4) for n, right in ((15, 7), (15, 9))]
    (finding,) = unsynchronized_sums([script_run(*ranks)])
    assert (finding.level, finding.kind) == (Level.LOOK, "unshared_sums")
    assert finding.text.startswith("After the loop over `held_out`, in which nothing is trained, each of 2")
    assert "`n` (15 of 30 samples in process 0), `correct` (7 in process 0, 9 in process 1). " in finding.text
    assert not list(unsynchronized_sums([script_run(ranks[0])]))


@pytest.mark.parametrize(
    ("within", "behind"),
    [
        ((), (COMBINED, EPOCH_END)),
        ((COMBINED,), (EPOCH_END,)),
        # Another loop in between: they may be brought together behind both.
        ((), (loop(30, loader="loader-2"), COMBINED, EPOCH_END)),
        # Stopped before the script came to it.
        ((), ()),
    ],
)
def test_that_sums_that_were_or_may_have_been_combined_are_correct(
    within: tuple[dict[str, Any], ...], behind: tuple[dict[str, Any], ...]
) -> None:
    ranks = [validated(*behind, within=within, correct=right) for right in (7, 9)]
    assert not list(unsynchronized_sums([script_run(*ranks)]))


def test_that_sums_that_are_equal_in_each_process_are_correct() -> None:
    ranks = [validated(EPOCH_END, correct=16.0, batches=3) for _ in range(2)]
    assert not list(unsynchronized_sums([script_run(*ranks)]))
