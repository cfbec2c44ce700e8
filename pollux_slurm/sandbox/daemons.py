"""One daemon of a sandbox: its command line, and the error when it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from pollux_slurm.errors import SandboxError
from pollux_slurm.sandbox.files import Layout
from pollux_slurm.sandbox.teardown import CONTROLLER, MUNGED


class PortTaken(Exception):  # noqa: N818 - a condition, not a failure
    """Another program bound a daemon's port between the check and the daemon's start."""


def command_of(daemon: str, layout: Layout, programs: Mapping[str, str]) -> list[str]:
    """Return the command that runs munged, slurmctld or the slurmd of the node that `daemon` names."""
    if daemon == CONTROLLER:
        return [programs["slurmctld"], "-D"]
    if daemon != MUNGED:
        return [programs["slurmd"], "-D", "-N", daemon]
    return [
        programs[MUNGED],
        "--foreground",
        "--force",  # its folder may lie below one that others can write to, such as /tmp
        f"--key-file={layout.munge_key}",
        f"--socket={layout.munge_socket}",
        f"--pid-file={layout.run_dir / 'munged.pid'}",
        f"--log-file={layout.log_dir / 'munged.log'}",
        f"--seed-file={layout.run_dir / 'munged.seed'}",
    ]


def raise_end_error(daemon: str, layout: Layout) -> NoReturn:
    """Raise `PortTaken` or `SandboxError` for a daemon that has ended by itself."""
    lines = last_log_lines(layout, daemon)
    if "Address already in use" in lines:
        raise PortTaken(daemon)
    raise SandboxError(f"{display_name(daemon)} ended at once: {lines}")


def last_log_lines(layout: Layout, daemon: str) -> str:
    """Return the last error lines of a daemon's log (else its last lines), and the log's path."""
    file = layout.output(daemon)
    try:
        lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    reasons = [
        line for line in lines if ("error" in line.lower() or "fatal" in line) and "mpi" not in line.lower()
    ]
    return f"{' / '.join((reasons or lines)[-2:]) or 'nothing'} (log: {file})"


def display_name(daemon: str) -> str:
    """Return a daemon's name for messages, such as `slurmd of n0`."""
    return daemon if daemon in (CONTROLLER, MUNGED) else f"slurmd of {daemon}"


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without the variables of another Slurm and of users' Slurm settings."""
    prefixes = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_")
    return {key: value for key, value in environ.items() if not key.startswith(prefixes)}
