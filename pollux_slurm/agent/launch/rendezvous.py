"""Where the processes of a run meet, and what keeps a stranger's away from there.

On one node they meet in a file of a folder that only their user can enter. On several nodes it is a port,
which the kernel chooses at random. Their launcher gives all of them a secret, in their environments, which no
other user can read: whoever does not know it is no process of this run.
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


def new_secret() -> str:
    """Return what the processes of one launch know, and nobody else."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def rendezvous_file() -> Iterator[Path]:
    """Give the path of a file that is not there yet, in a folder that only this user can enter."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="pollux-run-", ignore_cleanup_errors=True)
    except OSError as error:
        raise LaunchError(
            f"no folder for the training processes to meet in: {error.strerror} ({error.filename}); "
            "set TMPDIR to one on this machine"
        ) from None
    with folder as name:
        yield Path(name) / "ranks"


def reserve_port() -> socket.socket:
    """Return a socket that keeps a port of this machine, at all addresses, for rank 0 of a run.

    Bound, and not listening, it lets only those listen there who ask to share (SO_REUSEADDR), as torch does:
    neither the kernel nor another launcher gives the port away. Raises `LaunchError`.
    """
    try:
        kept = _bound(socket.AF_INET6)
    except OSError:  # a machine without IPv6
        try:
            kept = _bound(socket.AF_INET)
        except OSError as error:
            raise LaunchError(f"no free port for the training processes to meet at: {error}") from None
    # Only now: it is not to be bound to a port that somebody else keeps in this way.
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return kept


def _bound(family: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        made.bind(("", 0))
    except OSError:
        made.close()
        raise
    return made


def node_address(node: str, runner: CommandRunner) -> str:
    """Return the address by which Slurm itself reaches a node; its name when Slurm does not answer.

    A host's own idea of its address is no help: on Debian its name commonly stands for 127.0.1.1.
    """
    try:
        answer = runner.run("scontrol", "show", "node", node)
    except SlurmError:
        return node
    found = re.search(r"^\s*(?:\S.*\s)?NodeAddr=(\S+)", answer.stdout, re.MULTILINE)
    return found[1] if answer.exit_code == 0 and found is not None else node
