"""Where the processes of a run meet: an address that all nodes reach, and a port that is free there."""

from __future__ import annotations

import errno
import re
import socket
import zlib
from collections.abc import Mapping
from pathlib import Path

from pollux_slurm.errors import LaunchError, SlurmError
from pollux_slurm.slurm.runner import CommandRunner

LOOPBACK = "127.0.0.1"
_USUAL_EPHEMERAL = 32768
_WINDOW = 8192
_LOWEST = 10_000
# Neighbouring job numbers start side by side; steps of this length keep their searches apart.
_STRIDE = 131
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def candidate_ports(seed: int, *, first_ephemeral: int) -> list[int]:
    """Return the ports of the window just below the ephemeral ones, in the order that `seed` gives.

    The kernel hands out ephemeral ports to any connection, so a free one of those may be gone a moment
    later. Where they begin too low to leave room, the usual window is taken.
    """
    end = first_ephemeral if first_ephemeral >= _LOWEST + _WINDOW else _USUAL_EPHEMERAL
    return [end - _WINDOW + (seed + step * _STRIDE) % _WINDOW for step in range(_WINDOW)]


def first_ephemeral_port(file: Path = _EPHEMERAL_RANGE) -> int:
    """Return where this machine's ephemeral ports begin."""
    try:
        return int(file.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _USUAL_EPHEMERAL


def seed_of(job_id: str, environ: Mapping[str, str]) -> int:
    """Return where a job's search for a port begins: neighbours of its cluster beside it, another's apart.

    Clusters that share a host, as sandboxes do, number their jobs alike, and a port that is free when the
    launcher looks is taken only seconds later: two jobs of one number would choose the same.
    """
    cluster = "\0".join(environ.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_CONF"))
    return zlib.crc32(cluster.encode()) + (int(job_id) if job_id.isdecimal() else 0)


def find_free_port(seed: int) -> int:
    """Return a port that nothing on this machine listens on at this moment. Raises `LaunchError`."""
    for port in candidate_ports(seed, first_ephemeral=first_ephemeral_port()):
        if _is_free(port):
            return port
    raise LaunchError("no free port for the rendezvous of the training processes on this machine")


def _is_free(port: int) -> bool:
    """Try to listen as torch's store does: on every address of both families."""
    try:
        with socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True):
            return True
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return False
    try:  # a machine without IPv6
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False


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
