"""Make clients for the Slurm that the settings and the environment point to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pollux_slurm.config import SlurmConfig, own_state_dir
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.accounting import Accounting
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.commands.job_commands import SlurmJobCommands
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.pyslurm.job_commands import PySlurmJobCommands
from pollux_slurm.slurm.pyslurm.process import PySlurmWorker

COMMANDS = ("squeue", "sinfo", "scontrol", "scancel", "sbatch")
_USUAL_CONFS = (
    Path("/etc/slurm/slurm.conf"),
    Path("/etc/slurm-llnl/slurm.conf"),
    Path("/run/slurm/conf/slurm.conf"),
)


def connect(
    config: SlurmConfig, environ: Mapping[str, str], *, on_run: Callable[[str], None] = lambda _command: None
) -> SlurmClient:
    """Return a client for the Slurm of `config` and `environ`; `on_run` is called for each command.

    Raises `SlurmUnavailable` when its commands or its slurm.conf are missing here, or when PySlurm is
    configured and cannot be used. Does not check that slurmctld answers; that may change at any time.
    """
    runner = make_runner(config, environ, on_run)
    for command in COMMANDS:
        runner.find(command)
    require_conf(runner, environ)
    if config.backend == "commands":
        return MergingClient(CommandClient(runner))
    worker = PySlurmWorker(environ, timeout_s=config.command_timeout_s, on_run=on_run)
    worker.release()  # raises when PySlurm cannot be used here
    commands = PySlurmJobCommands(worker, SlurmJobCommands(runner))
    return MergingClient(CommandClient(runner, job_commands=commands))


def accounting(
    config: SlurmConfig, environ: Mapping[str, str], *, on_run: Callable[[str], None] = lambda _command: None
) -> Accounting:
    """Return a client of the accounting database of the same Slurm. Does not check that there is one."""
    return Accounting(make_runner(config, environ, on_run))


def make_runner(
    config: SlurmConfig, environ: Mapping[str, str], on_run: Callable[[str], None] = lambda _command: None
) -> CommandRunner:
    """Return a runner of Slurm's commands with the settings of `config`."""
    return CommandRunner(
        environ=environ,
        bin_dir=Path(config.bin_dir) if config.bin_dir is not None else None,
        timeout_s=config.command_timeout_s,
        on_run=on_run,
    )


def require_conf(runner: CommandRunner, environ: Mapping[str, str]) -> None:
    """Raise `SlurmUnavailable` with the cure where Slurm's commands find no slurm.conf."""
    named = environ.get("SLURM_CONF")
    if named:
        if not Path(named).is_file():
            raise SlurmUnavailable(
                f"SLURM_CONF={named}: no such file; is the sandbox or cluster it belongs to still there?"
            )
        return
    if any(conf.is_file() for conf in _USUAL_CONFS):
        return
    # The commands may have another path built in, or ask DNS. They fail at once when there is none.
    answer = runner.run("scontrol", "show", "config", timeout_s=min(runner.timeout_s, 15.0))
    if answer.exit_code != 0 and "configuration source" in answer.error_text:
        if (own_state_dir(environ) / "sandbox").is_dir():
            cure = "start your private cluster (pollux sandbox up), or point this shell at it: "
            cure += 'eval "$(pollux sandbox env)"'
        else:
            cure = "set SLURM_CONF to a cluster's, or start a private cluster: pollux sandbox up"
        raise SlurmUnavailable(f"no slurm.conf on this machine: {cure}")
