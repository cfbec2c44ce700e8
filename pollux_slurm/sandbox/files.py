"""A sandbox's folder: its layout, the rendered files, its groups of nodes and their ports."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import SandboxError, UsageError
from pollux_slurm.rendering import render

_PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scancel": "slurm-client",
    "scontrol": "slurm-client",
    "sinfo": "slurm-client",
    "squeue": "slurm-client",
    "srun": "slurm-client",
}
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# In Slurm's files, spaces, quotes, #, commas, % and brackets have a meaning.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+@~-]+\Z")
# A UNIX socket's path has at most 107 characters; slurmstepd's is DIR/spool/NODE/NODE_JOB.STEP.
_MAX_PATH = 107 - len("/spool/n999/n999_4294967295.4294967295")
_PORTS = range(10000, 32000)  # below the range from which the kernel takes ports for outgoing connections


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes. By default a node has 2 CPUs and 2 GiB for each GPU, and at least 4 GiB.

    A CPU is a thread: with `threads_per_core` = 2, two of them are one core.
    """

    num_nodes: int = 4
    gpu_type: str = "t4"
    gpus_per_node: int = 4
    cpus_per_node: int | None = None
    memory_mb_per_node: int | None = None
    threads_per_core: int = 1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", self.gpu_type):
            raise UsageError(f"GPU type {self.gpu_type!r}: expected letters, digits and _, such as t4")
        limits = {
            "nodes": (self.num_nodes, 1, 500),
            "GPUs per node": (self.gpus_per_node, 0, 64),
            "CPUs per node": (self.num_cpus, 1, 4096),
            "MB of memory per node": (self.memory_mb, 1, 1 << 30),
            "threads per core": (self.threads_per_core, 1, 8),
        }
        for what, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise UsageError(f"{value} {what}: expected {low} to {high}")
        if self.num_cpus % self.threads_per_core:
            raise UsageError(f"{self.num_cpus} CPUs per node are not whole cores of {self.threads_per_core}")

    @property
    def num_cpus(self) -> int:
        return self.cpus_per_node if self.cpus_per_node is not None else max(2 * self.gpus_per_node, 2)

    @property
    def memory_mb(self) -> int:
        default = max(2048 * self.gpus_per_node, 4096)
        return self.memory_mb_per_node if self.memory_mb_per_node is not None else default


def parse_group(
    text: str,
    *,
    cpus_per_node: int | None = None,
    memory_mb_per_node: int | None = None,
    threads_per_core: int = 1,
) -> NodeGroup:
    """Parse `NODES:TYPE:GPUS`, such as `2:t4:4`. Raises `UsageError`."""
    match = re.fullmatch(r"([0-9]{1,6}):([^:]+):([0-9]{1,6})", text)
    if match is None:
        raise UsageError(f"node group {text!r}: expected NODES:TYPE:GPUS, such as 2:t4:4")
    return NodeGroup(
        num_nodes=int(match[1]),
        gpu_type=match[2],
        gpus_per_node=int(match[3]),
        cpus_per_node=cpus_per_node,
        memory_mb_per_node=memory_mb_per_node,
        threads_per_core=threads_per_core,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxNode:
    """One node of a sandbox, as in its slurm.conf."""

    name: str
    port: int
    num_cpus: int
    memory_mb: int
    gpu_type: str
    num_gpus: int
    threads_per_core: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below a sandbox's folder."""

    dir: Path

    @property
    def etc_dir(self) -> Path:
        return self.dir / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc_dir / "slurm.conf"

    @property
    def munge_key(self) -> Path:
        return self.etc_dir / "munge.key"

    @property
    def log_dir(self) -> Path:
        return self.dir / "log"

    @property
    def run_dir(self) -> Path:
        return self.dir / "run"

    @property
    def munge_socket(self) -> Path:
        return self.run_dir / "munge.socket"

    @property
    def state_dir(self) -> Path:
        return self.dir / "state"

    @property
    def spool_dir(self) -> Path:
        return self.dir / "spool"

    @property
    def device_dir(self) -> Path:
        return self.dir / "dev"

    @property
    def record(self) -> Path:
        return self.dir / "sandbox.json"

    @property
    def lock(self) -> Path:
        return self.dir / "sandbox.lock"

    def output(self, daemon: str) -> Path:
        """Return the file of a daemon's output; the daemon's own log has the same with timestamps."""
        return self.log_dir / f"{daemon}.out"


def layout_of(folder: Path | str) -> Layout:
    """Return the layout below `folder`. Raises `SandboxError` for a path that Slurm cannot use."""
    path = Path(os.path.abspath(Path(folder).expanduser()))  # noqa: PTH100 - links stay as they are
    if not _PLAIN_PATH.match(str(path)):
        raise SandboxError(
            f"{str(path)!r}: Slurm's files allow only letters, digits and / . _ + @ ~ - in a sandbox's path; "
            "name another with --dir"
        )
    if len(str(path)) > _MAX_PATH:
        raise SandboxError(
            f"{path}: longer than the {_MAX_PATH} characters that leave room for Slurm's sockets; "
            "name a shorter one with --dir"
        )
    return Layout(path)


def search_path(environ: Mapping[str, str]) -> str:
    """Return PATH with the sbin folders, where Debian has daemons and which a user's PATH may lack."""
    folders = [part for part in environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(os.pathsep) if part]
    return os.pathsep.join(folders + [sbin for sbin in _SBIN if sbin not in folders])


def find_programs(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the path of each program a sandbox needs. Raises `SandboxError` with what to install."""
    path = search_path(environ)
    found = {program: shutil.which(program, path=path) for program in _PACKAGES}
    missing = [program for program, place in found.items() if place is None]
    if missing:
        packages = " ".join(sorted({_PACKAGES[program] for program in missing}))
        raise SandboxError(
            f"a sandbox needs {', '.join(missing)}, missing here; run: apt-get install {packages}"
        )
    return {program: place for program, place in found.items() if place is not None}


def slurm_release(slurmctld: str) -> tuple[int, int]:
    """Return (major, minor) of an installed slurmctld."""
    try:
        done = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(f"{slurmctld} cannot be run: {error}") from None
    match = re.search(r"([0-9]+)\.([0-9]+)", done.stdout)
    if match is None:
        raise SandboxError(f"{slurmctld} -V prints no release: {(done.stdout + done.stderr).strip()[:120]!r}")
    return int(match[1]), int(match[2])


def free_ports(count: int, generator: random.Random) -> list[int]:
    """Return unused ports in random order, so that sandboxes on one machine rarely pick the same."""
    found: list[int] = []
    for port in generator.sample(_PORTS, min(len(_PORTS), 50 * count)):
        with contextlib.closing(socket.socket()) as listener:
            # Like Slurm's daemons: a port with only closed connections counts as unused.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise SandboxError(f"fewer than {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def plan_nodes(groups: Sequence[NodeGroup], ports: Sequence[int]) -> tuple[SandboxNode, ...]:
    """Number the groups' nodes n0, n1, ... and give each its port."""
    shapes = [group for group in groups for _ in range(group.num_nodes)]
    return tuple(
        SandboxNode(
            name=f"n{index}",
            port=port,
            num_cpus=group.num_cpus,
            memory_mb=group.memory_mb,
            gpu_type=group.gpu_type,
            num_gpus=group.gpus_per_node,
            threads_per_core=group.threads_per_core,
        )
        for index, (group, port) in enumerate(zip(shapes, ports, strict=True))
    )


def write_files(
    layout: Layout,
    *,
    nodes: Sequence[SandboxNode],
    controller_port: int,
    kill_wait_s: int,
    slurmd_timeout_s: int,
    release: tuple[int, int],
    template_dir: Path | None = None,
) -> None:
    """Make the folders anew, with slurm.conf, gres.conf, a new munge key and fake GPUs.

    `release` is the release of the Slurm that reads the files, such as `(22, 5)`.
    """
    clear(layout, keep_logs=False)
    for folder in (layout.etc_dir, layout.log_dir, layout.run_dir, layout.device_dir, layout.spool_dir):
        folder.mkdir()
    layout.state_dir.mkdir(mode=0o700)
    values = {
        "cluster_name": "sandbox",
        "layout": layout,
        "host": socket.gethostname().partition(".")[0],
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "nodes": nodes,
        "controller_port": controller_port,
        "memory_mb_per_cpu": max(min(node.memory_mb // node.num_cpus for node in nodes), 1),
        "kill_wait_s": kill_wait_s,
        "slurmd_timeout_s": slurmd_timeout_s,
    }
    names = ["slurm.conf", "gres.conf"]
    if release >= (23, 2):  # slurmd does not start without it; that of 22.05 does not start with it
        names.append("cgroup.conf")
    for file in (layout.etc_dir / name for name in names):
        file.write_text(
            render(f"{file.name}.j2", override_dir=template_dir, **values).rstrip() + "\n", encoding="utf-8"
        )
    descriptor = os.open(layout.munge_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as key:
        key.write(os.urandom(128))
    # slurmd accepts a link to any character device as a GPU. A regular file leaves CUDA_VISIBLE_DEVICES unset
    # (22.05), and mknod needs root.
    for index in range(max(node.num_gpus for node in nodes)):
        (layout.device_dir / f"gpu{index}").symlink_to(os.devnull)
    for node in nodes:
        (layout.spool_dir / node.name).mkdir()


def clear(layout: Layout, *, keep_logs: bool) -> None:
    """Remove the files of `write_files` and of the daemons."""
    folders = [layout.run_dir, layout.device_dir, layout.spool_dir, layout.state_dir]
    for folder in folders if keep_logs else [*folders, layout.etc_dir, layout.log_dir]:
        shutil.rmtree(folder, ignore_errors=True)
