"""Run a function as the ranks of one job: real processes, real gloo on the loopback, bounded waits.

The processes are forked from a server that has imported torch once, so that a rank starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from pollux_slurm.launch.node.rendezvous import reserve_port

TIMEOUT_S = 300.0
# What the server of this process's ranks imports before it forks them; tests of frameworks add theirs.
PRELOADED = ["torch", "torch._dynamo", "pollux_slurm.torch", "pollux_slurm.goodput"]


@dataclass
class Run:
    """The ranks of one run, started."""

    kept_port: socket.socket
    processes: list[ForkServerProcess]
    results: list[Path]
    logs: list[Path]

    def wait(self, *, timeout_s: float = TIMEOUT_S) -> list[int]:
        """Return the exit codes; kill what has not ended in time, and fail with its stacks."""
        for process in self.processes:
            process.join(timeout_s)
        self.kept_port.close()
        late = [process for process in self.processes if process.is_alive()]
        for process in late:
            assert process.pid is not None
            # Its threads' stacks go to its log, then it dies.
            os.kill(process.pid, signal.SIGABRT)
            process.join(timeout_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert not late, f"{len(late)} of {len(self.processes)} ranks hung\n{self.output()}"
        return [process.exitcode if process.exitcode is not None else -1 for process in self.processes]

    def succeed(self, *, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """Wait for every rank to end well; return what each function returned."""
        codes = self.wait(timeout_s=timeout_s)
        assert codes == [0] * len(codes), f"exit codes {codes}\n{self.output()}"
        return [torch.load(path, weights_only=True) for path in self.results]

    def terminate(self) -> None:
        """Send SIGTERM to every rank, as Slurm does."""
        self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to every process of the ranks, their data-loading workers included."""
        for process in self.processes:
            if process.pid is not None and process.is_alive():
                os.killpg(process.pid, number)

    def output(self) -> str:
        return "\n".join(
            f"--- rank {rank}\n{log.read_text()}" for rank, log in enumerate(self.logs) if log.is_file()
        )


def context() -> ForkServerContext:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(PRELOADED)
    return server


def start(
    directory: Path,
    num_ranks: int,
    function: Callable[..., Any],
    *args: Any,
    env: Mapping[str, str] | None = None,
    gpus_per_node: str | None = None,
    restart_count: int = 0,
) -> Run:
    """Start `function(*args)` as `num_ranks` ranks; what it returns must be plain data."""
    # Kept open as a launcher does: no other process gets the port before rank 0 listens there.
    kept_port = reserve_port()
    port = kept_port.getsockname()[1]
    names = f"{restart_count}-{port}"
    run = Run(kept_port=kept_port, processes=[], results=[], logs=[])
    for rank in range(num_ranks):
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "POLLUX_GPUS_PER_NODE": gpus_per_node or str(num_ranks),
            "POLLUX_RESTART_COUNT": str(restart_count),
            "GLOO_SOCKET_IFNAME": "lo",
            **(env or {}),
        }
        result, log = directory / f"{names}-{rank}.pt", directory / f"{names}-{rank}.log"
        process = context().Process(target=_main, args=(environ, result, log, function, args))
        process.start()
        run.processes.append(process)
        run.results.append(result)
        run.logs.append(log)
    return run


def run_ranks(
    directory: Path, num_ranks: int, function: Callable[..., Any], *args: Any, **kw: Any
) -> list[Any]:
    """Start the ranks, wait for them to end well, return what each returned."""
    return start(directory, num_ranks, function, *args, **kw).succeed()


def run_program(directory: Path, text: str, *arguments: object, restart_count: int = 0) -> tuple[int, str]:
    """Run a script's text as the program of one rank; return its exit code and what it printed."""
    script = directory / "script.py"
    script.write_text(text, encoding="utf-8")
    words = [str(script), *map(str, arguments)]
    started = start(directory, 1, _as_program, words, restart_count=restart_count)
    (code,) = started.wait()
    return code, started.output()


def _as_program(words: list[str]) -> None:
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.exit(1)


def _main(
    environ: Mapping[str, str], result: Path, log: Path, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    os.setpgid(0, 0)
    # What the server has imported stays: else each full collection looks at all of it.
    gc.freeze()
    # As in an ordinary script: else each rank's loaders begin with a server that imports torch anew.
    multiprocessing.set_start_method("fork", force=True)
    os.environ.update(environ)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    faulthandler.enable(fd)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    torch.set_num_threads(1)
    try:
        value = function(*args)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)
    torch.save(value, result)
    _leave()


def _leave() -> None:
    """Do what the end of an ordinary script does: multiprocessing skips `atexit`."""
    from pollux_slurm.torch.session.current_session import current_session, has_session

    if has_session():
        current_session().close()
