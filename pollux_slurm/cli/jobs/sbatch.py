"""`pollux sbatch`: submit an adaptive job. All options but eleven are passed to sbatch."""

from __future__ import annotations

import os
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from pollux_slurm.cli.shared import clock
from pollux_slurm.cli.shared.settings_and_store import opened_store, print_note

if TYPE_CHECKING:
    from datetime import datetime

    from pollux_slurm.config import Config
    from pollux_slurm.launch.submit.submission_plan import SubmissionPlan
    from pollux_slurm.slurm.commands.runner import CommandRunner
    from pollux_slurm.store.contract.interface import Store

_ANSWER_S = 30.0

HELP = """
Submit a batch script as an adaptive job: the daemon changes its GPUs while it runs.

It takes sbatch's options and prints what sbatch prints. Eleven options are pollux's own. Like sbatch's,
they come before the script:

\b
  --min-gpus N          never fewer than N GPUs (default 1); the job starts with N, unless sbatch's
                        options request GPUs (--gpus, --gpus-per-node, --gres=gpu:...)
  --max-gpus N          never more than N GPUs (default: no limit)
  --checkpoint-dir DIR  where checkpoints and the job's token go; all nodes must see it
                        (default: NAME-NUMBER below the setting checkpoints.root, or below
                        pollux-checkpoints in the working directory)
  --total-time TIME     near the end of --time, the job writes a checkpoint and is requeued with another
                        --time, until all its runs together have taken TIME: in the form of
                        --time, or 90s, 5m, 12h, 2d, 1w
  --min-run TIME        the time after a start without growth and without a move to other nodes: 90s, 5m,
                        2h; or always (default: policy.min_age_s). It still gives up GPUs that others
                        need
  --kind NAME           what it trains: the daemon predicts its speed from your earlier jobs of this kind
                        (default: by script and arguments, but for seeds, names and outputs; '': none)
  --finish-by WHEN      ask to be finished by then: 'Mon 09:00', '2026-12-01 09:00', 8h; the daemon answers
                        whether your share allows it, here within 30 s or in pollux explain
  --in-place            its processes may join and leave while it trains: GPUs are in jobs of their own,
                        and this one, the anchor, takes a CPU (--no-in-place: none of this; docs/moves.md)
  --allow-unconfirmed   the daemon may requeue the job even when it does not confirm a checkpoint in time
  --dry-run             print what would be submitted, and submit nothing

Words after the script are the script's arguments. One of the eleven options there is an error, and nothing
is submitted. If the script has an option of that name, put -- before the script.

The script's body calls `pollux run -- python train.py`. Request CPUs and memory per GPU
(--cpus-per-gpu, --mem-per-gpu), so that they change with the GPUs.

\b
Examples:
  pollux sbatch train.sbatch
  pollux sbatch --min-gpus 2 --max-gpus 16 -p gpu -t 1-0 --mem-per-gpu=20G train.sbatch --lr 0.1
  pollux sbatch --max-gpus 8 --time=4:00:00 --total-time=2-00:00 train.sbatch
  pollux sbatch --max-gpus 8 --in-place train.sbatch
  pollux sbatch --max-gpus 8 -- train.sbatch --dry-run
  pollux sbatch --dry-run --wrap="pollux run -- python train.py"
"""


class RawCommand(TyperCommand):
    """A command that gets its arguments as they were typed, since typer cannot parse sbatch's options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store all arguments unparsed."""
        ctx.args = list(args)
        return []


def sbatch(ctx: typer.Context) -> None:
    from pollux_slurm.agent.environment.token import new_token
    from pollux_slurm.config import load_config
    from pollux_slurm.errors import SlurmError
    from pollux_slurm.launch.submit.checkpoint_folder import checkpoint_budget
    from pollux_slurm.launch.submit.given_words import POLLUX_OPTIONS
    from pollux_slurm.launch.submit.room_for_wings import RoomForWings
    from pollux_slurm.launch.submit.submission import run_sbatch
    from pollux_slurm.launch.submit.submission_plan import plan_submission
    from pollux_slurm.slurm.commands.runner import CommandRunner
    from pollux_slurm.slurm.connection import require_conf
    from pollux_slurm.slurm.sbatch.options import parse_words

    environ, cwd = dict(os.environ), Path.cwd()
    parsed = parse_words(ctx.args, exact=POLLUX_OPTIONS)
    names = {option.name for option in parsed.options}
    if "help" in names:
        typer.echo(ctx.get_help())
        return
    config = load_config(environ)
    bin_dir = Path(config.slurm.bin_dir) if config.slurm.bin_dir is not None else None
    runner = CommandRunner(environ=environ, bin_dir=bin_dir, timeout_s=config.slurm.command_timeout_s)
    if names & {"usage", "version"}:
        os.execve(runner.find("sbatch"), ["sbatch", *ctx.args], environ)
    token = new_token(os.getuid())
    plan = plan_submission(
        parsed,
        environ=environ,
        cwd=cwd,
        config=config,
        token=token,
        identifier=secrets.token_hex(4),
        read_stdin=sys.stdin.buffer.read,
        room_for_wings=RoomForWings(runner, config.moves),
        may_start_larger=partial(_may_start_larger, config),
    )
    for line in plan.warnings:
        print_note(f"pollux: {line}")
    budget = f"pollux: {checkpoint_budget(plan.checkpoint_dir, num_kept=config.checkpoints.keep)}"
    if plan.is_dry_run:
        sys.stdout.buffer.write(plan.as_shell_commands().encode("utf-8", "surrogateescape"))
        print_note(budget)
        return

    def say(line: str) -> None:
        print_note(f"pollux: {line}")

    code = run_sbatch(plan, token=token, runner=runner, environ=environ, cwd=cwd, say=say)
    if code != 0 and not plan.waits:
        # sbatch has said what it tried; this says what to do.
        try:
            require_conf(runner, environ)
        except SlurmError as error:
            print_note(f"pollux: {error}")
    elif code == 0 and plan.creates_job and "quiet" not in names:
        print_note(budget)
        if plan.terms.finish_by is not None and not plan.waits:
            print_note(f"pollux: {_answer(plan, plan.terms.finish_by, token, config, runner)}")
    raise typer.Exit(code)


def _may_start_larger(config: Config, kind: str, num_gpus: int) -> bool:
    """Whether a daemon may move jobs, and jobs on more than so many GPUs may teach one of the kind.

    Which account the job will have is known to Slurm alone, so jobs of all accounts count. A person's login
    on PostgreSQL finds the person's own jobs only.
    """
    import pwd
    from datetime import timedelta

    from pollux_slurm.errors import PolluxError

    if config.store.url is None or config.kinds.shared_by == "nobody" or config.daemon.shadow:
        return False
    try:
        with opened_store(config) as store:
            user = pwd.getpwuid(os.getuid()).pw_name
            known = store.kinds.all(kind, since=clock.now() - timedelta(seconds=config.kinds.expires_s))
            teaches_all = config.kinds.shared_by == "account"
            seen = [one.max_gpus_seen for one in known if teaches_all or one.user_name == user]
            return max(seen, default=0) > num_gpus and _may_move_jobs(store)
    except (PolluxError, KeyError):  # the job starts at once, with what it requests
        return False


def _may_move_jobs(store: Store) -> bool:
    """Whether a daemon moves jobs, or may: a person's login on PostgreSQL does not learn that none does."""
    from pollux_slurm.errors import PolluxError
    from pollux_slurm.now.daemon_text import daemon_absence_text

    try:
        daemon = store.lease.daemon_status()
    except PolluxError:
        return True
    return not daemon.is_shadow and daemon_absence_text(daemon, clock.now()) is None


def _answer(plan: SubmissionPlan, by: datetime, token: str, config: Config, runner: CommandRunner) -> str:
    """Return the daemon's answer to a job that was just submitted, if it comes within 30 s."""
    from contextlib import closing

    from pollux_slurm.errors import PolluxError
    from pollux_slurm.now.promises import wait_for_answer
    from pollux_slurm.slurm.commands.sbatch_answer import find_submitted_job
    from pollux_slurm.store import open_agent_store

    job_id, found = None, None
    try:
        job_id = find_submitted_job(runner, plan.terms.token_sha256, clusters=plan.clusters)
        if job_id is not None and config.store.url is not None:
            wait_s = _ANSWER_S if _may_be_answered(config) else 0.0
            with closing(open_agent_store(config.store.url)) as jobs:
                found = wait_for_answer(jobs, token, by, job_id, wait_s=wait_s)
    except PolluxError:  # the job is submitted
        pass
    return found or f"whether it is finished by then, say: pollux explain {job_id or 'JOB'}"


def _may_be_answered(config: Config) -> bool:
    """Whether a daemon may answer a new job; the shared login of jobs does not learn that none runs."""
    from pollux_slurm.errors import PolluxError

    try:
        with opened_store(config) as store:
            return _may_move_jobs(store)
    except PolluxError:
        return True
