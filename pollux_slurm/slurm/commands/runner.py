"""Run Slurm's commands: an argument list, a time-out, never a shell. No other module runs them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import SlurmUnavailable

# Variables with which a user filters or formats the commands' output. They must not affect ours.
_UNWANTED_PREFIXES = ("SACCT_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_")
# With FederationParameters=fed_display a plain squeue shows the jobs of other clusters, too. Without these
# variables each squeue also asks slurmctld for its federation (22.05).
_THIS_CLUSTER_ONLY = {"SQUEUE_LOCAL": "1", "SINFO_LOCAL": "1", "SCONTROL_LOCAL": "1"}
_UNWANTED = ("SLURM_CLUSTERS", "SLURM_BITSTR_LEN", "SLURM_TOPO_LEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Output and exit code of a command. Bytes that are not UTF-8 become U+FFFD."""

    arguments: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str

    @property
    def error_text(self) -> str:
        """Slurm's message on one line, without the command's name in front."""
        text = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        return text or f"{self.arguments[0]} ended with exit code {self.exit_code} and printed nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRunner:
    """Runs Slurm's commands from `bin_dir` (or PATH of `environ`), each for at most `timeout_s`.

    `on_run` is called with the name of each command before it is run.
    """

    environ: Mapping[str, str]
    bin_dir: Path | None = None
    timeout_s: float = 30.0
    on_run: Callable[[str], None] = lambda _command: None

    def find(self, command: str) -> str:
        """Return the path of a command; `SlurmUnavailable` when this machine lacks it."""
        where = str(self.bin_dir) if self.bin_dir is not None else self.environ.get("PATH", "/usr/bin:/bin")
        found = shutil.which(command, path=where)
        if found is None:
            place = f"in {self.bin_dir}" if self.bin_dir is not None else "on PATH"
            raise SlurmUnavailable(
                f"no {command} {place}: install Slurm's commands (Debian: apt-get install slurm-client), "
                "or set bin_dir under [slurm] to their folder"
            )
        return found

    def run(
        self,
        command: str,
        *arguments: str,
        stdin: str | None = None,
        environ: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run a command to its end, whatever its exit code.

        With `environ` the command runs with exactly that, otherwise with `clean_environ` of the runner's.
        Raises `SlurmUnavailable` when the command is missing, or does not end in time and is killed.
        """
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        argv = (self.find(command), *arguments)
        self.on_run(command)
        try:
            done = subprocess.run(
                argv,
                input=(stdin or "").encode("utf-8", "surrogateescape"),
                capture_output=True,
                timeout=limit_s,
                env=dict(environ) if environ is not None else clean_environ(self.environ),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmUnavailable(
                f"{command} did not end within {limit_s:g} s: slurmctld does not answer"
            ) from None
        except OSError as error:
            raise SlurmUnavailable(f"{argv[0]} cannot be run: {error.strerror}") from None
        return CommandResult(
            arguments=(command, *arguments),
            exit_code=done.returncode,
            stdout=done.stdout.decode("utf-8", "replace"),
            stderr=done.stderr.decode("utf-8", "replace"),
        )


def clean_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with language, time zone and cluster fixed, and without output filters."""
    kept = {
        key: value
        for key, value in environ.items()
        if not key.startswith(_UNWANTED_PREFIXES) and key not in _UNWANTED
    }
    return kept | _THIS_CLUSTER_ONLY | {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}
