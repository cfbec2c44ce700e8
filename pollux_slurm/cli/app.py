"""The `pollux` command: its sub-commands, and one line instead of a traceback."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from pollux_slurm import __version__
from pollux_slurm.cli.lazy import Known, LazyGroup
from pollux_slurm.errors import PolluxError


class _Commands(LazyGroup):
    known = (
        Known(
            name="daemon",
            module="pollux_slurm.cli.daemon",
            attribute="daemon",
            line="Give adaptive jobs the GPUs with which the whole cluster trains fastest, and fairly.",
        ),
        Known(
            name="doctor",
            module="pollux_slurm.cli.doctor",
            attribute="doctor",
            line="Check settings, store and Slurm for what would make trouble, and say what to change.",
        ),
        Known(
            name="status",
            module="pollux_slurm.cli.status",
            attribute="status",
            line="Show adaptive jobs: state, GPUs, batch size, goodput, speedup, restarts, last decision.",
        ),
        Known(
            name="explain",
            module="pollux_slurm.cli.explain",
            attribute="explain",
            line="Say why a job has the GPUs it has, what is predicted of them, and what would have to "
            "change for more.",
        ),
        Known(
            name="replay",
            module="pollux_slurm.cli.replay",
            attribute="replay",
            line="Solve a saved round: allocations, fitness, upper bound, gap, and where the time went.",
        ),
        Known(
            name="pause",
            module="pollux_slurm.cli.orders",
            attribute="pause",
            line="Let a running job write a checkpoint and wait in the queue until `pollux resume`.",
        ),
        Known(
            name="resume",
            module="pollux_slurm.cli.orders",
            attribute="resume",
            line="Let a paused or drained job run again.",
        ),
        Known(
            name="drain",
            module="pollux_slurm.cli.orders",
            attribute="drain",
            line="Let a running job write a checkpoint, and leave it held in the queue, as by "
            "`scontrol hold`.",
        ),
        Known(
            name="run",
            module="pollux_slurm.cli.run",
            attribute="run",
            line="Run training processes, one for each GPU: on all nodes of a Slurm job, or on this machine.",
            settings={"context_settings": {"allow_interspersed_args": False}},
        ),
        Known(
            name="rehearse",
            module="pollux_slurm.cli.rehearse",
            attribute="rehearse",
            line="Run a training script on this machine, move it for real, and say what a cluster would see.",
            settings={"context_settings": {"allow_interspersed_args": False}},
        ),
        Known(
            name="sbatch",
            module="pollux_slurm.cli.sbatch",
            attribute="app",
            line="Submit a batch script as an adaptive job, which the daemon may give more or fewer GPUs "
            "while it lives.",
        ),
        Known(
            name="config",
            module="pollux_slurm.cli.config",
            attribute="app",
            line="Check settings, or print an example of them.",
        ),
        Known(
            name="db",
            module="pollux_slurm.cli.db",
            attribute="app",
            line="Make, upgrade, check and prune the store.",
        ),
        Known(
            name="report",
            module="pollux_slurm.cli.report",
            attribute="app",
            line="Report on a job, an account, the cluster or a shadow daemon: on the terminal, as CSV, JSON "
            "or one HTML page.",
        ),
        Known(
            name="sandbox",
            module="pollux_slurm.cli.sandbox",
            attribute="app",
            line="A private Slurm cluster with fake GPUs on this machine.",
        ),
        Known(
            name="simulate",
            module="pollux_slurm.cli.simulate",
            attribute="app",
            line="Replay workloads through scheduling policies and compare completion times.",
        ),
    )


app = typer.Typer(
    name="pollux",
    cls=_Commands,
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
        _fail(f"{message} (see: {' '.join(_command(getattr(error, 'ctx', None)))} --help)", code)
    except (typer.Abort, KeyboardInterrupt):
        _fail("interrupted", 130)
    except BrokenPipeError:
        _give_up_output()
        sys.exit(141)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _give_up_output()
        _fail(f"cannot write what is to be said: {error.strerror}", 1)


def _give_up_output() -> None:
    """Let what is still to be written go nowhere: Python would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, exit_code: int) -> NoReturn:
    print("pollux: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(exit_code)


def _command(context: Any) -> list[str]:
    """Return the words of the command that Typer's context is of, however Python was told to run it."""
    if context is None or context.parent is None:
        return ["pollux"]
    return [*_command(context.parent), str(context.info_name)]


def _message(error: TyperException) -> str:
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)
