"""`pollux top`: reads its options, and starts the live view."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pollux_slurm.cli.shared.duration_options import LEAST_REFRESH_S, seconds
from pollux_slurm.cli.shared.settings_and_store import ConfigOption, StoreOption, settings
from pollux_slurm.errors import UsageError
from pollux_slurm.extras import INSTALL_VIEW


def top(
    every_s: Annotated[
        float,
        typer.Option("--every", parser=seconds(), metavar="TIME", help="How often it reads: 3, 30s, 1m."),
    ] = 3.0,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Show cluster, jobs, moves and decisions live in the terminal; look into a job, pause it, resume it.

    Example: pollux top --every 10
    """
    try:
        from pollux_slurm.cli.top.app import TopApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise UsageError(f"pollux top needs Textual; {INSTALL_VIEW}") from None
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("pollux top needs a terminal; in a pipe or a log: pollux status --watch")
    config = settings(config_file, store_url)
    config.require_store_url()
    is_ascii = not (sys.stdout.encoding or "").lower().startswith("utf")
    TopApp(config, every_s=max(every_s, LEAST_REFRESH_S), is_ascii=is_ascii).run()
