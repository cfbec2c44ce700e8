"""The `pollux` command: its sub-commands, and one line instead of a traceback."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from pollux_slurm import __version__
from pollux_slurm.cli.config import app as config
from pollux_slurm.cli.daemon import daemon
from pollux_slurm.cli.db import app as db
from pollux_slurm.cli.doctor import doctor
from pollux_slurm.cli.explain import explain
from pollux_slurm.cli.orders import drain, pause, resume
from pollux_slurm.cli.replay import replay
from pollux_slurm.cli.report import app as report
from pollux_slurm.cli.run import run
from pollux_slurm.cli.sandbox import app as sandbox
from pollux_slurm.cli.sbatch import HELP as SBATCH_HELP
from pollux_slurm.cli.sbatch import RawCommand, sbatch
from pollux_slurm.cli.simulate import app as simulate
from pollux_slurm.cli.status import status
from pollux_slurm.errors import PolluxError

app = typer.Typer(
    name="pollux",
    help="Pollux for Slurm: adaptive deep-learning jobs that share a cluster by goodput.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Examples: pollux sbatch --max-gpus 8 train.sbatch · pollux status · pollux explain 1234 · "
    "pollux daemon --shadow",
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
app.command()(doctor)
app.command()(status)
app.command()(explain)
app.command()(replay)
app.command()(pause)
app.command()(resume)
app.command()(drain)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command(
    "sbatch",
    cls=RawCommand,
    help=SBATCH_HELP,
    add_help_option=False,
    options_metavar="[OPTIONS] SCRIPT [ARGUMENTS]...",
)(sbatch)
app.add_typer(config)
app.add_typer(db)
app.add_typer(report)
app.add_typer(sandbox)
app.add_typer(simulate)


def main() -> None:
    """Run the command line; every mistake becomes one line and an exit code, never a traceback."""
    try:
        code = app(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except PolluxError as error:
        _fail(str(error), error.exit_code)
    except TyperException as error:
        code = getattr(error, "exit_code", 2)
        message = _message(error)
        if not message:  # no command was given, and the help has been printed instead
            sys.exit(code)
        _fail(f"{message} (see: pollux --help)", code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _fail(message: str, exit_code: int) -> NoReturn:
    print("pollux: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(exit_code)


def _message(error: TyperException) -> str:
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)
