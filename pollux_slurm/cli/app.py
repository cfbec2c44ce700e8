"""The `pollux` command: its sub-commands, and one line instead of a traceback."""

from __future__ import annotations

import os
import sys

import typer

from pollux_slurm import __version__
from pollux_slurm.cli.daemon import daemon
from pollux_slurm.cli.status import status
from pollux_slurm.errors import PolluxError

app = typer.Typer(
    name="pollux",
    help="Pollux for Slurm: adaptive deep-learning jobs that share a cluster by goodput.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pollux {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Hold the options of `pollux` itself."""


app.command()(daemon)
app.command()(status)


def main() -> None:
    """Run the command line; errors raised on purpose become one line and an exit code."""
    try:
        app()
    except PolluxError as error:
        print(f"pollux: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
