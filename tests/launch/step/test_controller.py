"""Whether a step waits for slurmctld, with a fake scontrol; on real Slurm: tests/chaos."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.launch.step.controller import wait_for_controller
from pollux_slurm.slurm.commands.runner import CommandRunner

DOWN, UP = "Slurmctld(primary) at a is DOWN", "Slurmctld(primary) at a is UP"
BACKUP = f"{DOWN}\nSlurmctld(backup) at b is UP"


def runner(folder: Path, answer: str) -> CommandRunner:
    (folder / "answer").write_text(answer)
    scontrol = folder / "scontrol"
    scontrol.write_text(f"#!/bin/sh\n/bin/cat {folder}/answer\n")
    scontrol.chmod(0o755)
    return CommandRunner(environ={}, bin_dir=folder)


def test_that_a_step_waits_until_slurmctld_answers_and_says_so_once(tmp_path: Path) -> None:
    asked = runner(tmp_path, DOWN)
    pauses: list[float] = []
    said: list[str] = []

    def pause(wait_s: float) -> None:
        pauses.append(wait_s)
        if len(pauses) == 3:
            (tmp_path / "answer").write_text(UP)

    wait_for_controller(asked, said.append, pause)
    assert (len(pauses), said) == (3, ["slurmctld does not answer: the processes start when it does"])


@pytest.mark.parametrize("answer", [UP, BACKUP, ""])
def test_that_nothing_is_waited_for_where_one_answers_or_none_is_known(tmp_path: Path, answer: str) -> None:
    said: list[str] = []
    wait_for_controller(runner(tmp_path, answer), said.append)
    wait_for_controller(CommandRunner(environ={}, bin_dir=tmp_path / "none"), said.append)
    assert said == []
