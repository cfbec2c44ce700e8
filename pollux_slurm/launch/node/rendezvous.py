"""The rendezvous of a run's processes, protected from other users' processes.

On one node it is a file in a folder that only their user can enter. On several nodes it is a port, which the
kernel chooses at random. The launcher passes all processes a secret in their environments, which no other
user can read: a process that does not know it does not belong to the run.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pollux_slurm.errors import LaunchError, SlurmError
from pollux_slurm.slurm.commands.runner import CommandRunner

LOOPBACK = "127.0.0.1"
RUN_FOLDER_PREFIX = "pollux-run-"


def new_secret() -> str:
    """Return a random secret for the processes of one run."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def rendezvous_file() -> Iterator[Path]:
    """Yield the path of a file that does not exist yet, in a folder that only this user can enter."""
    try:
        folder = tempfile.TemporaryDirectory(prefix=RUN_FOLDER_PREFIX, ignore_cleanup_errors=True)
    except OSError as error:
        raise LaunchError(
            f"no folder for the rendezvous of the training processes: {error.strerror} ({error.filename}); "
            "set TMPDIR to one on this machine"
        ) from None
    with folder as name:
        yield Path(name) / "ranks"


def reserve_port() -> socket.socket:
    """Return a socket that reserves a port of this machine, at all addresses, for rank 0 of a run.

    It is bound and does not listen. So only a process that sets SO_REUSEADDR can listen there, as torch does,
    and neither the kernel nor another launcher assigns the port again. Raises `LaunchError`.
    """
    try:
        reserved = _bound(socket.AF_INET6)
    except OSError:  # a machine without IPv6
        try:
            reserved = _bound(socket.AF_INET)
        except OSError as error:
            raise LaunchError(f"no free port for the rendezvous of the training processes: {error}") from None
    # Set after binding: before, the kernel might choose a port that is reserved in this way.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved


def _bound(family: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(("", 0))
    except OSError:
        bound.close()
        raise
    return bound


def node_address(node: str, runner: CommandRunner) -> str:
    """Return the address by which Slurm reaches a node; its name when Slurm does not answer.

    A host's own name does not help: on Debian it commonly resolves to 127.0.1.1.
    """
    try:
        answer = runner.run("scontrol", "show", "node", node)
    except SlurmError:
        return node
    found = re.search(r"(?<!\S)NodeAddr=(\S+)", answer.stdout)
    return found[1] if answer.exit_code == 0 and found is not None else node
