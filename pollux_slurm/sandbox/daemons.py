"""A sandbox's daemons, one at a time: how each is started, and what it said when it ended."""

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


def raise_of_end(daemon: str, layout: Layout) -> NoReturn:
    """Raise `PortTaken` or `SandboxError` for a daemon that has ended by itself."""
    said = last_words(layout, daemon)
    if "Address already in use" in said:
        raise PortTaken(daemon)
    raise SandboxError(f"{title_of(daemon)} ended at once: {said}")


def last_words(layout: Layout, daemon: str) -> str:
    """Return what a daemon said last that sounds like a reason, and where the rest can be read."""
    file = layout.output(daemon)
    try:
        lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    reasons = [
        line for line in lines if ("error" in line.lower() or "fatal" in line) and "mpi" not in line.lower()
    ]
    return f"{' / '.join((reasons or lines)[-2:]) or 'nothing'} (log: {file})"


def title_of(daemon: str) -> str:
    """Return a daemon's name for people: a node's name alone would not say which daemon is meant."""
    return daemon if daemon in (CONTROLLER, MUNGED) else f"slurmd of {daemon}"


def without_slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` without what another Slurm's job or user settings put there."""
    prefixes = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCONTROL_", "SCANCEL_")
    return {key: value for key, value in environ.items() if not key.startswith(prefixes)}
