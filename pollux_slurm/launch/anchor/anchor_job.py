"""`pollux run` in a job that was submitted with `pollux sbatch --in-place`: it is the anchor.

An upgrade replaces the files of the code that it runs, and a wing's program runs the new ones. So, before the
next start of the training, the anchor replaces itself with the same command: all that it has to remember
is in files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from pollux_slurm.agent.environment.token import read_token, token_sha256
from pollux_slurm.config import Config
from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.anchor.anchor import RESTART_WAIT_S, Anchor
from pollux_slurm.launch.anchor.generation_watch import GenerationWatch
from pollux_slurm.launch.anchor.link import LinkListener
from pollux_slurm.launch.anchor.order import Order
from pollux_slurm.launch.anchor.wing_jobs import WingJobs
from pollux_slurm.launch.node.rendezvous import new_secret, node_address
from pollux_slurm.launch.node.torchrun import starts_torchrun
from pollux_slurm.launch.run_options import RunOptions
from pollux_slurm.launch.submit.wing_request import ANCHOR_VARIABLE, WingRequest
from pollux_slurm.resources import code_on_disk
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.connection import connect, make_runner
from pollux_slurm.store.contract.interface import MembershipStore

# Set in the environment of an anchor that has replaced itself: its training was started before.
_GOES_ON_VARIABLE = "POLLUX_ANCHOR_GOES_ON"


def run_anchor(
    command: Sequence[str],
    options: RunOptions,
    *,
    environ: Mapping[str, str],
    config: Config,
    cwd: Path,
    warn: Callable[[str], None],
) -> int:
    """Train in wings, to the end, and return the exit code. Raises `LaunchError` and `SlurmError`."""
    code, goes_on = code_on_disk(), environ.get(_GOES_ON_VARIABLE)
    environ = {name: value for name, value in environ.items() if name != _GOES_ON_VARIABLE}
    request_file = Path(environ[ANCHOR_VARIABLE])
    request = WingRequest.read(request_file)
    token, runner = _token(environ), make_runner(config.slurm, environ)
    address = _address(environ, runner)
    listener = LinkListener(secret := new_secret())
    order_file = request_file.with_suffix(".order")
    watch = _watch(token, config, warn) if not starts_torchrun(command) else None
    try:
        Order(
            command=tuple(command),
            directory=str(cwd),
            anchor_id=environ["SLURM_JOB_ID"],
            address=address,
            port=listener.port,
            link_secret=secret,
            run_secret=new_secret(),
            num_processes=options.num_processes,
            kill_after_s=options.kill_after_s,
            wrapper=options.wrapper,
            srun_arguments=options.srun_arguments,
        ).write(order_file)
        jobs = WingJobs(
            environ=environ,
            client=connect(config.slurm, environ),
            runner=runner,
            config=config,
            order_file=order_file,
            cwd=cwd,
            token_sha256=token_sha256(token),
        )
        exit_code = Anchor(
            jobs=jobs,
            listener=listener,
            watch=watch,
            request=request,
            starts_file=request_file.with_suffix(".starts"),
            kill_after_s=options.kill_after_s,
            say=warn,
            begin_s=RESTART_WAIT_S if goes_on else 0.0,
            is_replaced=lambda: code_on_disk() != code,
        ).run()
    finally:
        if watch is not None:
            watch.close()
        listener.close()
        order_file.unlink(missing_ok=True)
    return _go_on() if exit_code is None else exit_code


def _go_on() -> NoReturn:
    """Replace this process with one of the same command, and so of the code on disk."""
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _GOES_ON_VARIABLE: "1"})


def _token(environ: Mapping[str, str]) -> str:
    token_name = environ.get("POLLUX_TOKEN_FILE")
    if not token_name:
        raise LaunchError("an anchor has a token: submit it with pollux sbatch --in-place")
    return read_token(Path(token_name))


def _address(environ: Mapping[str, str], runner: CommandRunner) -> str:
    """Return by which address wings reach this anchor."""
    node = environ.get("SLURMD_NODENAME")
    if node is None:
        raise LaunchError("an anchor is a batch job: SLURMD_NODENAME is missing")
    return node_address(node, runner)


def _watch(token: str, config: Config, warn: Callable[[str], None]) -> GenerationWatch | None:
    url = config.store.url
    if url is None:
        warn("without a store the training is never moved: set POLLUX_STORE_URL, or [store] url")
        return None

    def open_store() -> MembershipStore:
        from pollux_slurm.store import open_agent_store  # SQLAlchemy is slow to import

        return open_agent_store(url, keep_connection=config.agent.keep_connection)

    return GenerationWatch(open_store, token, poll_interval_s=config.agent.poll_interval_s)
