"""Runs in which replicas join and leave as a rehearsal has planned, under the real launcher."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.all_findings import all_findings
from pollux_slurm.rehearsal.lost_state import wrong_samples
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun, run_script
from pollux_slurm.rehearsal.weight_differences import replicas_that_differ
from tests.rehearsal.builders import (
    FIRST_STEP,
    START,
    loop,
    loop_end,
    micro_batch,
    rehearsal_runs,
    script_run,
)
from tests.rehearsal.test_rehearse import SCRIPTS, of_level, rehearse

pytestmark = pytest.mark.torch

JOIN = Stop(
    moment=StopMoment.STEP,
    method=StopMethod.REGROUP,
    epoch=0,
    loader="loader-0",
    position=40,
    num_processes=2,
)
LEAVE = Stop(moment=StopMoment.EPOCH_END, method=StopMethod.REGROUP, epoch=0, num_processes=1, leaves=(0,))
END = Stop(moment=StopMoment.STEP, method=StopMethod.SIGTERM, epoch=1)
LIMIT_S = 300.0


def regrouped(directory: Path, script: str, *arguments: str) -> tuple[ScriptRun, ...]:
    """Return a script's run of one process: another joins in mid-epoch, and the first leaves at its end."""
    return run_script(
        [sys.executable, str(SCRIPTS / script), *arguments],
        number=0,
        num_processes=1,
        stop=END,
        varies_batch=False,
        chain=directory / "in-place",
        environ=os.environ,
        limit_s=LIMIT_S,
        progress=lambda event: None,
        raise_if_interrupted=lambda: None,
        regroups=(JOIN, LEAVE),
    )


def in_short(runs: tuple[ScriptRun, ...]) -> list[tuple[int, RunOutcome]]:
    return [(run.num_processes, run.outcome) for run in runs]


# Three rehearsals of real processes; `test_in_place.py` tests what they find.
@pytest.mark.full
def test_that_each_generation_of_a_run_has_its_own_events(tmp_path: Path) -> None:
    runs = regrouped(tmp_path, "in_place.py")
    assert in_short(runs) == [
        (1, RunOutcome.REGROUPED),
        (2, RunOutcome.REGROUPED),
        (1, RunOutcome.STOPPED),
    ], runs[0].tail(50)
    first, joined, left = runs
    assert (first.stop, joined.stop) == (JOIN, LEAVE)
    # Only the process that joined has begun then.
    assert [len(list(joined.of("start", rank=rank))) for rank in (0, 1)] == [0, 1]
    assert [list(run.of("left")) != [] for run in runs] == [False, True, False]
    # Each sees what it trains on first after a regroup.
    for rank in (0, 1):
        (begun, *_) = joined.of("snapshot", rank=rank)
        assert (begun["moment"], begun["epoch"], begun["in_loop"]) == ("epoch", 0, True)
    (begun, *_) = left.of("snapshot")
    assert (begun["epoch"], begun["position"]) == (1, 0)
    assert list(wrong_samples([runs])) == []
    assert list(replicas_that_differ(runs)) == []
    assert left.first("begun") is not None


def findings_of(runs: tuple[ScriptRun, ...]) -> dict[str, str]:
    """Return what is found in a run that was regrouped, by kind."""
    ends = [micro_batch(0, 120), loop_end(steps=12)]
    unmoved = script_run([{**START, "in_place": True}, FIRST_STEP, loop(120), *ends])
    alone, both = ([[{**_SHARE, "variables": {"main:share": share}}]] for share in ("1", "0.5"))
    stopped = [script_run(*alone), script_run(*(both * 2))]
    rehearsed = rehearsal_runs(unmoved, *stopped, in_place=runs, processes=(1, 2))
    return {finding.kind: finding.text for finding in all_findings(rehearsed)}


_SHARE: dict[str, Any] = {
    "kind": "snapshot",
    "moment": "epoch",
    "epoch": 0,
    "step": 1,
    "precisions": [],
    "in_loop": True,
    "position": 10,
    "objects": {},
    "tensors": {},
    "models": {},
    "layers": [],
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("fault", "processes", "kind", "words"),
    [
        ("kept_size", [1], "regroup_refused", "it keeps world_size = 1 in a variable"),
        ("kept_share", [1, 2, 1], "stale_variables", "`share` (1 as before"),
        ("kept_list", [1, 2], "failed", "IndexError"),
        ("fails_to_join", [1, 2], "did_not_join", "FileExistsError: results."),
        ("communicates_first", [1, 2], "did_not_join", "a collective of torch.distributed"),
        ("communicates_in_epoch", [1, 2, 1], "regroup_waits", "communicates outside of its loops"),
        ("communicates_last", [1, 2, 1], "failed_to_leave", "A process that left at an epoch's end"),
    ],
)
def test_that_a_fault_that_shows_in_place_only_is_found(
    tmp_path: Path, fault: str, processes: list[int], kind: str, words: str
) -> None:
    runs = regrouped(tmp_path, "in_place.py", fault)
    assert [run.num_processes for run in runs] == processes, runs[0].tail(50)
    assert words in findings_of(runs)[kind]


@pytest.mark.full
def test_that_a_script_that_asks_for_it_is_moved_in_place_too(tmp_path: Path) -> None:
    result = rehearse(tmp_path, SCRIPTS / "in_place.py", processes="1,2,3")
    assert not result["must_change"], result["findings"]
    assert not of_level(result, "look"), result["findings"]
    assert [(move["where"], move["processes"], move["leaves"]) for move in result["moves"][5:]] == [
        ("in mid-epoch", [2, 3], []),
        ("in mid-epoch", [3, 2], [0]),
        ("at an epoch's end", [2, 3], []),
        ("in mid-epoch", [3, 2], [0]),
    ]
    assert set(result["regroup_times"]) == {"ready_s", "standstill_s"}
