"""`pollux daemon`: the scheduler beside slurmctld."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import secrets
import signal
import socket
import threading
import time
from datetime import datetime, timezone
from types import FrameType
from typing import Annotated

import typer

from pollux_slurm.cli.common import ConfigOption, StoreOption, opened_store, settings
from pollux_slurm.errors import PolluxError


def daemon(
    once: Annotated[bool, typer.Option("--once", help="Hold one round, enact it, and exit.")] = False,
    interval: Annotated[
        float | None, typer.Option("--interval", min=0.5, max=86400, help="Seconds between rounds.")
    ] = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Decide and record, but enact nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log details, too.")] = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Give adaptive jobs the GPUs with which the whole cluster trains fastest, and fairly.

    Example: pollux daemon --shadow --interval 60
    """
    stop = threading.Event()

    def ask_to_stop(_signum: int, _frame: FrameType | None) -> None:
        stop.set()

    for signum in (signal.SIGTERM, signal.SIGINT):  # before anything that takes time
        signal.signal(signum, ask_to_stop)

    from pollux_slurm.daemon import rules
    from pollux_slurm.daemon.loop import Daemon
    from pollux_slurm.goodput import TableCache
    from pollux_slurm.policy import decide
    from pollux_slurm.slurm import connect

    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    config = settings(config_file, store_url)
    daemon_config = dataclasses.replace(
        config.daemon,
        interval_s=interval or config.daemon.interval_s,
        shadow=shadow or config.daemon.shadow,
    )
    rules.check(config.policy)
    with opened_store(config) as store:
        runner = Daemon(
            slurm=connect(config.slurm, os.environ),
            store=store,
            config=daemon_config,
            # Unlike every other daemon's, also that of a container with the same host name and pid.
            owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
            wall_clock=lambda: datetime.now(timezone.utc),
            monotonic=time.monotonic,
            stop=stop,
            # Goodput tables are kept from round to round: only what was reported anew is computed.
            decide=functools.partial(
                decide,
                tables=TableCache(),
                solver=config.policy.solver,
                time_limit_s=config.policy.time_limit_s,
            ),
            policy=config.policy,
        )
        if not once:
            runner.run()
            return
        result = runner.run_once()
    if result.skipped is not None:
        raise PolluxError(f"the round was skipped: {result.skipped}")
