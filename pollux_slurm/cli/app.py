"""The `pollux` command: its subcommands, and one line instead of a traceback for every error.

All commands' modules are imported at the start. Each imports numpy, SQLAlchemy or the solver when it runs.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from pollux_slurm import __version__
from pollux_slurm.cli.jobs.change import change
from pollux_slurm.cli.jobs.explain import explain
from pollux_slurm.cli.jobs.pause_resume_drain import drain, pause, resume
from pollux_slurm.cli.jobs.rehearse import rehearse
from pollux_slurm.cli.jobs.resize import resize
from pollux_slurm.cli.jobs.run import run
from pollux_slurm.cli.jobs.sbatch import HELP, RawCommand, sbatch
from pollux_slurm.cli.jobs.standing import standing_lines
from pollux_slurm.cli.jobs.status import status
from pollux_slurm.cli.shared.settings_and_store import print_line, print_note
from pollux_slurm.cli.simulate import command
from pollux_slurm.cli.site import config, db, kinds, report, sandbox
from pollux_slurm.cli.site.daemon import daemon
from pollux_slurm.cli.site.doctor import doctor
from pollux_slurm.cli.site.init import init
from pollux_slurm.cli.site.replay import replay
from pollux_slurm.cli.site.web import web
from pollux_slurm.cli.top.command import top
from pollux_slurm.errors import PolluxError
from pollux_slurm.text import log_lines

app = typer.Typer(
    name="pollux",
    help="Pollux for Slurm: adaptive deep-learning jobs that share a cluster by goodput.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    epilog="Examples: pollux sbatch --max-gpus 8 train.sbatch · pollux status · pollux explain 1234 · "
    "pollux daemon --shadow",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"pollux {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Pollux for Slurm: adaptive deep-learning jobs that share a cluster by goodput.

    Without a command: where you stand, and what is likely wanted next. After pollux --install-completion, TAB
    completes commands, options, job numbers and accounts.
    """
    if context.invoked_subcommand is None:
        for line in standing_lines():
            print_line(line)


# In the order in which the help lists them.
app.command()(init)
app.command()(daemon)
app.command()(doctor)
app.command()(status)
app.command()(top)
app.command()(explain)
app.command()(web)
app.command()(replay)
app.command()(pause)
app.command()(resume)
app.command()(drain)
app.command()(change)
# All arguments after the command belong to the training.
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command(context_settings={"allow_interspersed_args": False})(rehearse)
app.command()(resize)
app.command(
    cls=RawCommand, help=HELP, add_help_option=False, options_metavar="[OPTIONS] SCRIPT [ARGUMENTS]..."
)(sbatch)
app.add_typer(config.app)
app.add_typer(db.app)
app.add_typer(kinds.app)
app.add_typer(report.app)
app.add_typer(sandbox.app)
app.add_typer(command.app)


def main() -> None:
    """Run the command line; every expected error becomes one line and an exit code, not a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A character that the terminal's encoding lacks is printed as an escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    log_lines()
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
        _fail(f"{message} (see: {' '.join(_command(getattr(error, 'ctx', None)))} --help)", code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        _discard_output()
        sys.exit(141)
    except OSError as error:
        from pollux_slurm.agent.checkpoints.disk_space import is_disk_full

        if not is_disk_full(error):
            raise
        _discard_output()
        _fail(f"cannot write the output: {error.strerror}", 1)


def _discard_output() -> None:
    """Redirect stdout to /dev/null: else Python reports an error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int) -> NoReturn:
    print_note(f"pollux: {message}")
    sys.exit(exit_code)


def _command(context: Any) -> list[str]:
    """Return the words of the command in Typer's context, starting with `pollux`."""
    if context is None or context.parent is None:
        return ["pollux"]
    return [*_command(context.parent), str(context.info_name)]


def _message(error: TyperException) -> str:
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)
