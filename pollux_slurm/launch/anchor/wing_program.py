"""A wing's program: ask the anchor which processes to run, run them as a step, and say how they ended.

Where the anchor is heard no more, the processes are asked to stop: they write a checkpoint, as after any
SIGTERM. If they have not ended two minutes later, Slurm ends this job. A wing that has met no anchor within a
minute ends with 0: another start follows.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pollux_slurm.agent.environment.job_log import PREFIX
from pollux_slurm.agent.environment.layout import JOB_VARIABLE, RunLayout, RunMembership
from pollux_slurm.config import Config, load_config
from pollux_slurm.errors import LaunchError, PolluxError, SlurmError
from pollux_slurm.launch.anchor.link import Message, connect, watch_anchor
from pollux_slurm.launch.anchor.order import Order
from pollux_slurm.launch.node.containers import required_paths, srun_starts_container
from pollux_slurm.launch.node.rendezvous import node_address, reserve_port
from pollux_slurm.launch.node.torchrun import starts_torchrun
from pollux_slurm.launch.step.allocation import allocated_gpus
from pollux_slurm.launch.step.run_step import PreparedJob, run_step
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.connection import connect as connect_to_slurm
from pollux_slurm.slurm.connection import make_runner
from pollux_slurm.text import log_lines, one_line

_GO_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 120.0


def main() -> None:
    """Run the wing of the order in the file that is named first, and exit with its processes' exit code."""
    log_lines()
    try:
        code = _run(Path(sys.argv[1]), dict(os.environ))
    except PolluxError as error:
        _say(str(error))
        code = error.exit_code
    sys.exit(code)


def _say(text: str) -> None:
    print(one_line(PREFIX + text), file=sys.stderr, flush=True)


def _run(order_file: Path, environ: dict[str, str]) -> int:
    order, config = Order.read(order_file), load_config(environ)
    environ[JOB_VARIABLE] = order.anchor_id
    runner = make_runner(config.slurm, environ)
    slurm = partial(connect_to_slurm, config.slurm, environ)
    found = allocated_gpus(environ, connect=slurm, runner=runner, warn=_say, pause=time.sleep)
    uses_gpus = any(gpus > 0 for _, gpus in found)
    gpus = {name: count for name, count in found if count > 0 or not uses_gpus}
    processes = {name: order.num_processes or max(count, 1) for name, count in gpus.items()}

    job_id = environ["SLURM_JOB_ID"]
    try:
        link = connect(order.address, order.port, order.link_secret)
    except LaunchError as error:
        # Slurm is not to show the wing as failed: the job fails with the third.
        error.exit_code = 0
        raise
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    started, early = threading.Event(), list[int]()

    def take(message: Message) -> None:
        number = message.get("signal")
        if not isinstance(number, int):
            messages.put(message)
        elif started.is_set():
            os.kill(os.getpid(), number)
        else:
            early.append(number)

    def alone() -> None:
        messages.put({"go": None})
        if started.is_set():  # and its processes have not ended
            _say(f"job {order.anchor_id}: nothing is heard of the anchor: wing {job_id} stops its processes")
            os.kill(os.getpid(), signal.SIGTERM)
            _cancel_later(job_id, runner)

    link.send({"wing": job_id, "processes": processes, "partition": environ.get("SLURM_JOB_PARTITION", "")})
    watch_anchor(link, take, alone)
    go = _go(messages)
    if go is None:
        raise LaunchError(f"wing {job_id} is not wanted: job {order.anchor_id} trains without it")
    try:
        with reserve_port() as port:
            job = _prepare(
                order, go, gpus, processes, port, environ, runner, config, slurm, uses_gpus=uses_gpus
            )
            _change_directory(order.directory)
            started.set()
            for number in early:
                os.kill(os.getpid(), number)
            code = run_step(order.command, job).exit_code
    except PolluxError as error:
        # Else it would count as lost, and be started again and again.
        link.send({"exit": error.exit_code})
        raise
    finally:
        started.clear()
    link.send({"exit": code})
    link.close()
    return code


def _go(messages: queue.SimpleQueue[Message]) -> Message | None:
    deadline = time.monotonic() + _GO_TIMEOUT_S
    while (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(queue.Empty):
            message = messages.get(timeout=left_s)
            if "go" in message:
                go = message["go"]
                return go if isinstance(go, dict) else None
    return None


def _change_directory(path: str) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise LaunchError(f"the job's directory {path} is not on this node: {error.strerror}") from None


def _prepare(
    order: Order,
    go: Message,
    gpus: Mapping[str, int],
    processes: Mapping[str, int],
    port: socket.socket,
    environ: Mapping[str, str],
    runner: CommandRunner,
    config: Config,
    slurm: Callable[[], object],
    *,
    uses_gpus: bool,
) -> PreparedJob:
    """Return this wing's step. Its nodes are in the order of `Allocation`, as the anchor counts ranks."""
    nodes = tuple(sorted(processes.items()))
    membership = None
    if go["members"]:
        membership = RunMembership(
            members=tuple((str(name), str(node)) for name, node in go["members"]),
            own=tuple(str(name) for name in go["own"]),
            joins=go["joins"],
            addresses=tuple(node_address(name, runner) for name, _ in nodes),
        )
    directory = environ.get("POLLUX_CHECKPOINT_DIR")
    job_id = environ["SLURM_JOB_ID"]
    layout = RunLayout(
        nodes=nodes,
        master_addr=node_address(nodes[0][0], runner),
        master_port=port.getsockname()[1],
        secret=order.run_secret,
        uses_gpus=uses_gpus and order.num_processes is None,
        job_id=job_id,
        exit_file=None if directory is None else Path(directory) / f"pollux-{order.anchor_id}-{job_id}.exit",
        kill_after_s=order.kill_after_s,
        is_wrapped=bool(order.wrapper),
        starts_torchrun=starts_torchrun(order.command),
        restart_count=int(go["restart_count"]),
        membership=membership,
    )
    in_container = bool(order.wrapper) or srun_starts_container(order.srun_arguments, environ)
    return PreparedJob(
        layout=layout,
        environ=environ,
        runner=runner,
        connect=slurm,  # type: ignore[arg-type]
        warn=_say,
        all_nodes=all(gpus.values()) or not uses_gpus,
        port=port,
        wrapper=order.wrapper,
        srun_arguments=order.srun_arguments,
        required_paths=required_paths(environ, store_file=_store_file(config)) if in_container else (),
    )


def _store_file(config: Config) -> Path | None:
    if config.store.url is None:
        return None
    from pollux_slurm.store.access.url import parse_store_url  # SQLAlchemy is slow to import

    return parse_store_url(config.store.url).path


def _cancel_later(job_id: str, runner: CommandRunner) -> None:
    """Cancel this job where its processes do not stop: nobody else may be left to do so."""
    time.sleep(_STOP_TIMEOUT_S)
    with contextlib.suppress(SlurmError):
        runner.run("scancel", job_id)
