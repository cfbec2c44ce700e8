"""`pollux web`: pages over the store, for a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    StoreOption,
    print_line,
    settings,
)
from pollux_slurm.errors import UsageError
from pollux_slurm.extras import INSTALL_VIEW


def web(
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 takes any.")] = 8265,
    token: Annotated[
        bool, typer.Option("--token", help="Ask for a token on loopback, too, where others can log in.")
    ] = False,
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name", metavar="NAME", help="A further name by which a proxy calls; repeatable."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", metavar="PREFIX", help="The prefix that a proxy leaves in the path.")
    ] = "",
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> None:
    """Serve pages over the store: the cluster now and over time, jobs, rounds, moves, fairness, accounts.

    They are read-only, show what this login may see, update themselves, and load nothing from elsewhere.
    On another address than loopback, the printed link has a token, without which nothing is shown.

    Examples: pollux web · pollux web --port 0 --token
    · pollux web --host 0.0.0.0 --root-path /node/$(hostname)/8265
    """
    try:
        from pollux_slurm.web.server import serve
    except ImportError:
        raise UsageError(f"pages need Starlette and uvicorn; {INSTALL_VIEW}") from None
    serve(
        settings(config_file, store_url).require_store_url(),
        host=host,
        port=port,
        with_token=token,
        host_names=tuple(host_name or ()),
        root_path=root_path.rstrip("/"),
        say=lambda link: print_line(f"pollux web: {link}   (Ctrl-C ends it)"),
    )
