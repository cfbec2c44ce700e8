"""`Sandbox`: start and end the daemons of a private cluster, one or all, and look at its nodes.

It has its own munged, its own slurmctld and one slurmd per node, on its own ports. Several sandboxes can run
side by side, and none affects a Slurm that the machine belongs to. DIR/sandbox.json records each process as
it starts, so that `down` ends exactly these, whoever calls it and however `up` ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.errors import SandboxError, SlurmError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.sandbox.daemons import (
    PortTaken,
    command_of,
    display_name,
    last_log_lines,
    raise_end_error,
    without_slurm,
)
from pollux_slurm.sandbox.files import (
    Layout,
    NodeGroup,
    SandboxNode,
    clear,
    find_programs,
    free_ports,
    layout_of,
    plan_nodes,
    search_path,
    slurm_release,
    write_files,
)
from pollux_slurm.sandbox.teardown import CONTROLLER, MUNGED, DownReport, stop_cluster
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.system.process_control import ProcessRecord, is_running, send_signal, spawn, stop_all

_FORMAT = 1
_TRIES = 5
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """One private cluster. `started_now` is False when `up` found it running already."""

    layout: Layout
    controller_port: int
    nodes: tuple[SandboxNode, ...]
    processes: tuple[ProcessRecord, ...]
    environ: Mapping[str, str]
    started_now: bool = False

    # ------------------------------------------------------------------------------------ up, find, down

    @classmethod
    def up(
        cls,
        folder: Path | str,
        groups: Sequence[NodeGroup] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        kill_wait_s: int = 10,
        slurmd_timeout_s: int = 60,
        timeout_s: float = 60.0,
        template_dir: Path | None = None,
        generator: random.Random | None = None,
    ) -> Sandbox:
        """Start a cluster below `folder` and return when all its nodes are idle.

        Without `groups`, it has the four nodes of `NodeGroup()`. A sandbox that already runs there is
        returned, unless its nodes differ from `groups`. On failure, and when interrupted, everything that was
        started is stopped again. Raises `SandboxError`.
        """
        surroundings = dict(os.environ if environ is None else environ)
        programs = find_programs(surroundings)
        layout = layout_of(folder)
        picker = generator if generator is not None else random.Random()
        try:
            layout.dir.mkdir(parents=True, exist_ok=True)
            if not layout.lock.exists():  # checked before the lock file is made in somebody else's folder
                _require_own_folder(layout)
            with _locked(layout):
                _require_own_folder(layout)
                running = _running_sandbox(layout, surroundings)
                if running is not None:
                    if groups is not None:
                        _require_shape(running, groups)
                    return running
                groups = (NodeGroup(),) if groups is None else groups
                release = slurm_release(programs[CONTROLLER])
                for _ in range(_TRIES):
                    ports = free_ports(1 + sum(group.num_nodes for group in groups), picker)
                    nodes = plan_nodes(groups, ports[1:])
                    sandbox = cls(
                        layout=layout,
                        controller_port=ports[0],
                        nodes=nodes,
                        processes=(),
                        environ=surroundings,
                        started_now=True,
                    )._saved(())  # this marks the folder as a sandbox's
                    write_files(
                        layout,
                        nodes=nodes,
                        controller_port=ports[0],
                        kill_wait_s=kill_wait_s,
                        slurmd_timeout_s=slurmd_timeout_s,
                        release=release,
                        template_dir=template_dir,
                    )
                    started = sandbox._launch(programs, time.monotonic() + timeout_s)
                    if started is not None:
                        return started
        except OSError as error:
            raise SandboxError(
                f"{layout.dir}: {error.strerror} ({error.filename}); name another folder with --dir"
            ) from None
        raise SandboxError(f"another program took a free port {_TRIES} times; try again")

    @classmethod
    def find(cls, folder: Path | str, *, environ: Mapping[str, str] | None = None) -> Sandbox:
        """Return the sandbox in `folder`, running or not. Raises `SandboxError` if there is none."""
        layout = layout_of(folder)
        sandbox = _load(layout, dict(os.environ if environ is None else environ))
        if sandbox is None:
            raise SandboxError(f"no sandbox in {layout.dir}; run: pollux sandbox up --dir {layout.dir}")
        return sandbox

    def down(self) -> DownReport:
        """End the jobs, then the daemons, and remove their files except logs and etc/.

        Only processes of this sandbox are ended: the recorded daemons, and what its jobs left behind. It also
        works when some of them have ended already. Raises `SandboxError` if a process cannot be ended.
        """
        with _locked(self.layout):
            current = _load(self.layout, self.environ) or self
            return current._stop_everything()

    # ---------------------------------------------------------------------------------------- using it

    @property
    def env(self) -> dict[str, str]:
        """The variables that point a command at this sandbox: `{**os.environ, **sandbox.env}`."""
        env = {"SLURM_CONF": str(self.layout.slurm_conf)}
        path = search_path(self.environ)
        own = self.environ.get("PATH", "")
        if shutil.which("sbatch", path=own) is None:
            env["PATH"] = path
        return env

    def runner(self, *, timeout_s: float = 30.0) -> CommandRunner:
        """Return a runner whose commands reach this sandbox."""
        return CommandRunner(environ=without_slurm(self.environ) | self.env, timeout_s=timeout_s)

    def daemons(self) -> dict[str, bool]:
        """Return which of munged, slurmctld and the nodes' slurmd runs, by name (`n0` for a node's)."""
        names = [MUNGED, CONTROLLER, *(node.name for node in self.nodes)]
        alive = {record.name for record in self.processes if is_running(record)}
        return {name: name in alive for name in names}

    @property
    def is_running(self) -> bool:
        """Whether every daemon runs."""
        return all(self.daemons().values())

    def node_states(self) -> dict[str, str]:
        """Return each node's state as sinfo prints it; `unreachable` for all while slurmctld does not run."""
        states = {node.name: "unreachable" for node in self.nodes}
        if not self.daemons()[CONTROLLER]:
            return states
        try:
            answer = self.runner(timeout_s=10.0).run("sinfo", "-h", "-N", "-o", "%N|%T")
        except SlurmError:
            return states
        for line in answer.stdout.splitlines() if answer.exit_code == 0 else []:
            name, _, state = line.partition("|")
            states[name.strip()] = state.strip()
        return states

    def stop(self, daemon: str, *, signum: int = signal.SIGTERM) -> Sandbox:
        """End one daemon (`slurmctld`, or a node's by the node's name), to simulate a fault."""
        with _locked(self.layout):
            current = _load(self.layout, self.environ) or self
            record = current._record_of(daemon)
            if record is not None and send_signal(record, signum) and stop_all([record], term_timeout_s=15.0):
                raise SandboxError(f"{daemon} (process {record.pid}) does not end")
            rest = tuple(known for known in current.processes if known.name != daemon)
            return current._saved(rest)

    def start(self, daemon: str) -> Sandbox:
        """Start one daemon again. Does nothing when it runs."""
        with _locked(self.layout):
            current = _load(self.layout, self.environ) or self
            if current.daemons().get(daemon):
                return current
            rest = tuple(known for known in current.processes if known.name != daemon)
            return current._with_daemon(find_programs(self.environ), daemon, rest)

    def wait_idle(self, *, timeout_s: float = 60.0) -> None:
        """Wait until every node is idle. Raises `SandboxError` with the last lines of the daemons' logs."""
        self._wait_idle(time.monotonic() + timeout_s)

    # ------------------------------------------------------------------------------------------ inside

    def _launch(self, programs: Mapping[str, str], deadline: float) -> Sandbox | None:
        """Start all daemons; return None when a port is in use. Stops them all again if it fails."""
        sandbox = self
        try:
            sandbox = sandbox._with_daemon(programs, MUNGED, sandbox.processes)
            while not self.layout.munge_socket.exists():
                sandbox._check_alive(deadline, "munged's socket is missing")
                time.sleep(_POLL_S)
            for name in (CONTROLLER, *(node.name for node in self.nodes)):
                sandbox = sandbox._with_daemon(programs, name, sandbox.processes)
            sandbox._wait_idle(deadline)
        except PortTaken:
            (_load(self.layout, self.environ) or sandbox)._stop_everything()
            return None
        except BaseException:
            (_load(self.layout, self.environ) or sandbox)._stop_everything()
            raise
        return sandbox

    def _with_daemon(
        self, programs: Mapping[str, str], name: str, others: tuple[ProcessRecord, ...]
    ) -> Sandbox:
        if name not in self.daemons():
            raise SandboxError(f"no daemon {name!r}; there are: {', '.join(self.daemons())}")
        argv = command_of(name, self.layout, programs)
        environ = without_slurm(self.environ) | self.env
        record = spawn(name, argv, environ=environ, output=self.layout.output(name))
        return self._saved((*others, record))

    def _saved(self, processes: tuple[ProcessRecord, ...]) -> Sandbox:
        """Return the sandbox with these processes, once they are on disk."""
        sandbox = dataclasses.replace(self, processes=processes)
        content = {
            "format": _FORMAT,
            "controller_port": self.controller_port,
            "nodes": [dataclasses.asdict(node) for node in self.nodes],
            "processes": [dataclasses.asdict(record) for record in processes],
        }
        draft = self.layout.record.with_suffix(".new")
        draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        draft.replace(self.layout.record)
        return sandbox

    def _record_of(self, daemon: str) -> ProcessRecord | None:
        if daemon not in self.daemons():
            raise SandboxError(f"no daemon {daemon!r}; there are: {', '.join(self.daemons())}")
        return next((record for record in self.processes if record.name == daemon), None)

    def _wait_idle(self, deadline: float) -> None:
        while True:
            states = self.node_states()
            waiting = [f"{name} {state}" for name, state in states.items() if state != "idle"]
            if not waiting:
                return
            self._check_alive(deadline, f"not idle: {', '.join(waiting[:8])}")
            time.sleep(_POLL_S)

    def _check_alive(self, deadline: float, waiting_for: str) -> None:
        """Raise when a daemon has ended, or the time has run out."""
        for record in self.processes:
            if not is_running(record):
                raise_end_error(record.name, self.layout)
        if time.monotonic() >= deadline:
            raise SandboxError(
                f"the nodes of the sandbox did not come up in time ({waiting_for}); "
                f"slurmctld: {last_log_lines(self.layout, CONTROLLER)}"
            )

    def _stop_everything(self) -> DownReport:
        report = stop_cluster(self.layout, self.processes, self.runner())
        self._saved(())
        clear(self.layout, keep_logs=True)
        return report


@contextlib.contextmanager
def _locked(layout: Layout) -> Iterator[None]:
    """Let only one `up` or `down` at a time work on a folder."""
    try:
        handle = layout.lock.open("w")
    except OSError as error:
        raise SandboxError(f"{layout.lock}: {error.strerror}") from None
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _load(layout: Layout, environ: Mapping[str, str]) -> Sandbox | None:
    try:
        content: Any = parse_json(layout.record.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise SandboxError(f"{layout.record}: written by another release of pollux; remove {layout.dir}")
        return Sandbox(
            layout=layout,
            controller_port=int(content["controller_port"]),
            nodes=tuple(SandboxNode(**node) for node in content["nodes"]),
            processes=tuple(ProcessRecord(**record) for record in content["processes"]),
            environ=environ,
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise SandboxError(f"{layout.record}: not a sandbox's record ({error})") from None


def _require_own_folder(layout: Layout) -> None:
    """Raise `SandboxError` unless the folder is empty or a sandbox's, because `up` clears it."""
    others = sorted(entry.name for entry in layout.dir.iterdir() if entry != layout.lock)
    if others and not layout.record.exists():
        raise SandboxError(
            f"{layout.dir} contains other files ({others[0]}, ...): name an empty or new folder with --dir"
        )


def _require_shape(running: Sandbox, groups: Sequence[NodeGroup]) -> None:
    """Raise `SandboxError` when a running cluster has other nodes than `groups`."""

    def shape(nodes: Sequence[SandboxNode]) -> list[str]:
        return [
            f"{node.name}: {node.num_gpus} {node.gpu_type}, {node.num_cpus} CPUs "
            f"({node.threads_per_core} a core), {node.memory_mb} MB"
            for node in nodes
        ]

    there = shape(running.nodes)
    asked = shape(plan_nodes(groups, [0] * sum(group.num_nodes for group in groups)))
    if there != asked:
        raise SandboxError(
            f"the sandbox in {running.layout.dir} runs already, with another shape ({'; '.join(there)}): end "
            f"it first (pollux sandbox down --dir {running.layout.dir}), or name another folder with --dir"
        )


def _running_sandbox(layout: Layout, environ: Mapping[str, str]) -> Sandbox | None:
    """Return the sandbox that runs in the folder, None if a new one can be started there."""
    sandbox = _load(layout, environ)
    if sandbox is None:
        return None
    daemons = sandbox.daemons()
    if all(daemons.values()):
        return sandbox
    if any(daemons.values()):
        gone = ", ".join(display_name(name) for name, alive in daemons.items() if not alive)
        raise SandboxError(
            f"the sandbox in {layout.dir} has lost {gone}; run: pollux sandbox down --dir {layout.dir}"
        )
    sandbox._stop_everything()  # jobs of a crashed sandbox may still run
    return None
