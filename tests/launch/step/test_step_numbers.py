"""How many step numbers a run uses up, with a fake srun; on real Slurm: test_on_slurm.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.launch.step.step_numbers import skip_step_numbers
from pollux_slurm.slurm.commands.runner import CommandRunner


def runner(folder: Path, body: str) -> CommandRunner:
    srun = folder / "srun"
    srun.write_text(f"#!/bin/sh\necho once >> {folder}/calls\n{body}\n")
    srun.chmod(0o755)
    return CommandRunner(environ={}, bin_dir=folder)


@pytest.mark.parametrize(("restarts", "steps"), [(0, 0), (1, 1), (3, 3), (4, 0), (6, 2)])
def test_that_successive_runs_have_different_step_numbers(tmp_path: Path, restarts: int, steps: int) -> None:
    for body in ("exit 0", "exit 1"):  # a refused one may have taken its number all the same
        (tmp_path / "calls").write_text("")
        skip_step_numbers(restarts, runner=runner(tmp_path, body), environ={"PATH": "/usr/bin:/bin"})
        assert (tmp_path / "calls").read_text().count("once") == steps


def test_that_without_srun_no_step_numbers_are_used_up(tmp_path: Path) -> None:
    skip_step_numbers(3, runner=CommandRunner(environ={}, bin_dir=tmp_path), environ={})
