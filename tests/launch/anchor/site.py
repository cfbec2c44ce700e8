"""Slurm as a folder of scripts: what an anchor's commands answer, and what was asked of them."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.config import Config
from pollux_slurm.launch.anchor.wing_jobs import WingJobs
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.commands.runner import CommandRunner

TOKEN_SHA256 = "ab" * 32


class ScriptedSlurm:
    """Commands in a folder. Each notes its arguments, and does nothing else until it is given a script."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        for name in ("sbatch", "squeue", "scontrol", "scancel", "sinfo"):
            self.command(name, "")

    def command(self, name: str, body: str) -> None:
        """Let a command run lines of sh from now on."""
        text = f'#!/bin/sh\necho {name} "$@" >> {self.folder}/asked\n{body}\n'
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def asked(self, name: str) -> list[str]:
        """Return the calls of a command."""
        file = self.folder / "asked"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(name)]

    def jobs(self) -> WingJobs:
        """Return the wings of anchor 1, which is on n0."""
        runner = CommandRunner(environ={"PATH": "/usr/bin:/bin"}, bin_dir=self.folder, timeout_s=300.0)
        return WingJobs(
            environ={"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n0", "PATH": "/usr/bin:/bin"},
            client=CommandClient(runner),
            runner=runner,
            config=Config(),
            order_file=self.folder / "p.order",
            cwd=self.folder,
            token_sha256=TOKEN_SHA256,
        )
