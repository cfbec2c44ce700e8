"""What Slurm's accounting database says of people: who may act for others. Nothing where there is none."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.slurm.runner import CommandRunner


@dataclass(frozen=True, slots=True)
class Accounting:
    """Questions to slurmdbd through sacctmgr; `runner` finds and bounds it."""

    runner: CommandRunner

    def admin_level(self, user_name: str) -> str:
        """Return a user's AdminLevel: `None`, `Operator` or `Administrator`; empty for an unknown user.

        Raises `SlurmUnavailable` without sacctmgr, `SlurmReadError` when slurmdbd does not answer.
        """
        answer = self.runner.run(
            "sacctmgr", "-n", "-P", "show", "user", f"name={user_name}", "format=adminlevel"
        )
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacctmgr cannot tell the rights of {user_name}: {answer.complaint}")
        return answer.stdout.strip().splitlines()[0].strip() if answer.stdout.strip() else ""
