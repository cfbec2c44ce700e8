"""Why a training does not regroup, or a newcomer does not join, as who has asked for it hears."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import pytest

import pollux_slurm.torch as pollux
from tests.torch.regroup import script
from tests.torch.regroup.members import Members

pytestmark = pytest.mark.torch


def wait_for_end(home: str, asks: bool) -> None:
    """Do what a script does before its first loop, and wait there."""
    pollux.init_process_group(in_place=asks, checkpoint_dir=f"{home}/checkpoints", checkpoint_interval_s=None)
    if pollux.is_joining():
        raise ValueError("no data on this machine\nand more")
    Path(home, "begun").touch()
    while not Path(home, "end").exists():
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("asks", "reason", "num_started"),
    [
        (False, "cannot be moved in place: its script does not ask for it: init_process_group(in_place=", 1),
        (True, "(exit code 1) before it could join: ValueError: no data on this machine", 2),
    ],
)
def test_that_who_asks_for_a_resize_hears_why_it_is_not_done(
    tmp_path: Path, asks: bool, reason: str, num_started: int
) -> None:
    members = Members(tmp_path, 1, wait_for_end, str(tmp_path), asks)
    members.until((tmp_path / "begun").exists, what="the beginning")
    answer = members.resize(2)
    assert answer is not None
    assert not answer.is_done
    assert reason in answer.text
    assert "and more" not in answer.text
    (tmp_path / "end").touch()
    assert members.wait()["0"] == 0
    # What is known not to work is not tried.
    assert len(members.started) == num_started


def test_that_a_script_that_communicates_between_loops_and_declares_no_epochs_is_refused(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    (gate / "open").write_text("7")
    variant = script.Variant(has_epochs=False, schedule="step", evaluation="after")
    args = (str(tmp_path / "checkpoints-of-the-job"), str(gate), asdict(variant), 4, 70, None)
    members = Members(tmp_path, 1, script.train, *args)
    members.until(lambda: script.reached(gate) == 7, what="step 7")
    request = members.ask(2)
    members.until(lambda: members.folder.plan_after(0), what="the plan")
    (gate / "open").write_text("12")
    answer = members.until(lambda: members.answered(request), what="the answer", timeout_s=60)
    (gate / "open").write_text("1000")
    assert members.wait()["0"] == 0
    assert not answer.is_done
    assert "communicates outside of its loops" in answer.text
    assert "remaining_epochs_until" in answer.text
