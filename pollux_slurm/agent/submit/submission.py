"""Submit a script as an adaptive job.

Before sbatch is called, the token and the submitted script are written to the checkpoint directory. If
sbatch refuses the job they are removed again.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pollux_slurm.agent.submit.submission_plan import SubmissionPlan
from pollux_slurm.agent.submit.token import make_private_dir, remove_empty_dirs, write_token
from pollux_slurm.agent.submit.wing_request import wing_environ
from pollux_slurm.errors import LaunchError, SlurmCommandError, SlurmError
from pollux_slurm.slurm.commands.runner import CommandRunner

# Slurm's words for a request that no wing can ever have: "Invalid feature specification", "invalid partition
# specified", "Invalid account or account/partition combination specified", "User's group not permitted to use
# this partition". Others may pass, as "Requested node configuration is not available" for drained nodes does.
_NEVER = re.compile(r"\binvalid\b|unrecognized|not permitted", re.IGNORECASE)


def run_sbatch(
    plan: SubmissionPlan, *, token: str, runner: CommandRunner, environ: Mapping[str, str], cwd: Path
) -> int:
    """Submit a plan; sbatch prints to this process's stdout and stderr. Returns sbatch's exit code.

    Raises `SlurmCommandError` where the wings of a job in place would be refused. It does not use the
    runner's `run`, which has a time limit: with `--wait`, sbatch ends with the job.
    """
    sbatch = runner.find("sbatch")
    _refuse_impossible_wings(plan, runner)
    with _plan_files(plan, token) as (script_file, undo):
        # --export-file may name a file descriptor of the user's shell.
        done = _call_sbatch(sbatch, plan, script_file, environ, cwd, close_fds=False)
        # With --wait the exit code may be the job's: it may exist, so its files stay.
        if done.returncode > 0 and not plan.waits:
            undo()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def submit_plan(
    plan: SubmissionPlan, *, token: str, runner: CommandRunner, environ: Mapping[str, str], cwd: Path
) -> str:
    """Submit a plan that has `--parsable`, print nothing, and return the job's number.

    Raises `SlurmCommandError` with sbatch's message when it refuses the job, or would refuse its wings.
    """
    sbatch = runner.find("sbatch")
    _refuse_impossible_wings(plan, runner)
    with _plan_files(plan, token) as (script_file, undo):
        done = _call_sbatch(sbatch, plan, script_file, environ, cwd, capture_output=True)
        if done.returncode != 0:
            undo()
            text = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
            raise SlurmCommandError(f"sbatch has refused the job: {text.removeprefix('sbatch: error: ')}")
    # With a cluster's name after a semicolon for `--clusters`.
    return done.stdout.strip().partition(";")[0]


def _refuse_impossible_wings(plan: SubmissionPlan, runner: CommandRunner) -> None:
    """Raise `SlurmCommandError` where Slurm would never start a wing of the job, which then never trained.

    The anchor's own sbatch does not see what its wings ask for. Where Slurm does not answer, nothing is said.
    """
    if plan.wings is None:
        return
    try:
        tried = runner.run(
            "sbatch",
            "--test-only",
            *plan.first_wing_options,
            stdin=plan.wing_script,
            environ=wing_environ(runner.environ),
        )
    except SlurmError:
        return
    if tried.exit_code != 0 and _NEVER.search(tried.error_text):
        text = re.sub(r"(sbatch: error: |sbatch: fatal: |allocation failure: )+", "", tried.error_text)
        raise SlurmCommandError(
            f"Slurm would refuse the job's wings, which have its GPUs: {text}; nothing was submitted. They "
            f"ask for: {shlex.join(plan.first_wing_options)}"
        )


def _call_sbatch(
    sbatch: str,
    plan: SubmissionPlan,
    script_file: Path,
    environ: Mapping[str, str],
    cwd: Path,
    *,
    capture_output: bool = False,
    close_fds: bool = True,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sbatch, *plan.options, str(script_file), *plan.arguments],
        env={key: value for key, value in environ.items() if key not in plan.hidden_variables},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=capture_output,
        close_fds=close_fds,
        text=True,
        errors="replace",
        check=False,
    )


@contextlib.contextmanager
def _plan_files(plan: SubmissionPlan, token: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Write the plan's files; yield the script's path and a function that removes the files again."""
    content = plan.script.encode("utf-8", "surrogateescape")
    if not plan.creates_job:
        with tempfile.TemporaryDirectory(prefix="pollux-") as folder:
            file = Path(folder) / plan.script_file.name
            file.write_bytes(content)
            yield file, lambda: None
        return
    created = make_private_dir(plan.checkpoint_dir)
    files: list[Path] = []

    def undo() -> None:
        for file in files:
            file.unlink(missing_ok=True)
        remove_empty_dirs(created)

    try:
        write_token(plan.token_file, token)
        files.append(plan.token_file)
        plan.script_file.touch(mode=0o600, exist_ok=False)
        files.append(plan.script_file)
        plan.script_file.write_bytes(content)
        if plan.wings is not None:
            plan.wings.write(plan.wing_file)
            files.append(plan.wing_file)
    except (LaunchError, OSError) as error:
        undo()
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(f"{error.filename} cannot be written: {error.strerror}") from None
    yield plan.script_file, undo
