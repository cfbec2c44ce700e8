"""Submit a script as an adaptive job.

Before sbatch is called, the token and the submitted script are written to the checkpoint directory. If
sbatch refuses the job they are removed again. Where its answer was lost, as where slurmctld is slow, the job
may be in the queue all the same: it is looked up there by its Comment, and the files stay unless Slurm has
refused it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

from pollux_slurm.agent.environment.token import write_token
from pollux_slurm.errors import LaunchError, SlurmCommandError, SlurmError, SlurmUnavailable
from pollux_slurm.launch.submit.checkpoint_folder import make_private_dir, remove_empty_dirs
from pollux_slurm.launch.submit.submission_plan import SubmissionPlan
from pollux_slurm.launch.submit.wing_request import wing_environ
from pollux_slurm.slurm.commands.job_commands import error_of_text
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.commands.sbatch_answer import find_submitted_job, submitted_job_id
from pollux_slurm.system.private_files import write_private

# Slurm's words for a request that no wing can ever have: "Invalid feature specification", "invalid partition
# specified", "Invalid account or account/partition combination specified", "User's group not permitted to use
# this partition". Others may pass, as "Requested node configuration is not available" for drained nodes does.
_NEVER = re.compile(r"\binvalid\b|unrecognized|not permitted", re.IGNORECASE)
# Slurm sets them in the runs of a requeued job, or in a step, only: a job that is submitted there keeps them.
_OF_ANOTHER_JOB = ("SLURM_RESTART_COUNT", "SLURM_STEP", "POLLUX_RESTART_COUNT")
_KEPT_OUTPUT = 20_000


def run_sbatch(
    plan: SubmissionPlan,
    *,
    token: str,
    runner: CommandRunner,
    environ: Mapping[str, str],
    cwd: Path,
    say: Callable[[str], None],
) -> int:
    """Submit a plan; sbatch prints to this process's stdout and stderr. Returns sbatch's exit code.

    It is 0 where the job is in the queue although sbatch has failed; `say` gets a line of that. Raises
    `SlurmCommandError` where the wings of a job in place would be refused. It does not use the runner's
    `run`, which has a time limit: with `--wait`, sbatch ends with the job.
    """
    sbatch = runner.find("sbatch")
    _refuse_impossible_wings(plan, runner)
    with _script(plan) as script, _plan_files(plan, token) as undo:
        # --export-file may name a file descriptor of the user's shell.
        process = subprocess.Popen(
            _sbatch_words(sbatch, plan),
            env=_sbatch_environ(plan, environ),
            cwd=cwd,
            stdin=script,
            stderr=subprocess.PIPE,
            close_fds=False,
        )
        errors = _pass_on(process)
        # With --wait the exit code may be the job's: it may exist, so its files stay.
        if process.returncode > 0 and plan.creates_job and not plan.waits:
            job_id = _find_accepted(plan, runner, errors, undo, say)
            if job_id is not None:
                is_parsable = "--parsable" in plan.options
                print(job_id if is_parsable else f"Submitted batch job {job_id}", flush=True)
                return 0
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def submit_plan(
    plan: SubmissionPlan,
    *,
    token: str,
    runner: CommandRunner,
    environ: Mapping[str, str],
    cwd: Path,
    say: Callable[[str], None],
) -> str:
    """Submit a plan that has `--parsable`, print nothing, and return the job's number.

    Raises `SlurmCommandError` with sbatch's message when it refuses the job, or would refuse its wings, and
    `SlurmUnavailable` where it is not known whether the job is in the queue: then its files stay.
    """
    sbatch = runner.find("sbatch")
    _refuse_impossible_wings(plan, runner)
    with _script(plan) as script, _plan_files(plan, token) as undo:
        done = subprocess.run(
            _sbatch_words(sbatch, plan),
            env=_sbatch_environ(plan, environ),
            cwd=cwd,
            stdin=script,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        job_id = submitted_job_id(done.stdout) if done.returncode == 0 else None
        if job_id is not None:
            return job_id
        text = " ".join(done.stderr.split()).removeprefix("sbatch: error: ")
        text = text or f"exit code {done.returncode}"
        said: list[str] = []
        # An sbatch that ended with 0, or by a signal, has not refused anything.
        refusal = text if done.returncode > 0 else None
        job_id = _find_accepted(plan, runner, refusal, undo, said.append)
        if job_id is None and said:
            raise SlurmUnavailable(f"{text}: {said[0]}")
        if job_id is None:
            raise SlurmCommandError(f"sbatch has refused the job: {text}")
        for line in said:
            say(line)
        return job_id


def _find_accepted(
    plan: SubmissionPlan,
    runner: CommandRunner,
    refusal: str | None,
    undo: Callable[[], None],
    say: Callable[[str], None],
) -> str | None:
    """Return the number of a job that Slurm has although sbatch did not say so.

    None where it has not: its files are removed if `refusal`, what sbatch printed, is one. Else they stay,
    and `say` gets what to do.
    """
    is_known = refusal is not None and not isinstance(
        error_of_text(refusal, SlurmCommandError), SlurmUnavailable
    )
    try:
        job_id = find_submitted_job(runner, plan.terms.token_sha256, clusters=plan.clusters)
    except SlurmError:
        job_id = None
    if job_id is not None:
        say(f"sbatch has failed, and Slurm has accepted the job all the same: it is job {job_id}")
    elif is_known:
        undo()
    else:
        say(
            "whether Slurm has accepted the job is not known: look for it with squeue --me before you submit "
            f"it again; its files stay in {plan.checkpoint_dir}"
        )
    return job_id


def _pass_on(process: subprocess.Popen[bytes]) -> str:
    """Pass on what a process writes to stderr, until it has ended, and return the end of that."""
    assert process.stderr is not None
    kept = b""
    with process, process.stderr:
        while chunk := os.read(process.stderr.fileno(), 1 << 16):
            with contextlib.suppress(OSError):
                os.write(2, chunk)
            kept = (kept + chunk)[-_KEPT_OUTPUT:]
    return kept.decode("utf-8", "replace")


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


def _sbatch_words(sbatch: str, plan: SubmissionPlan) -> list[str]:
    return [sbatch, *plan.options, "/dev/stdin", *plan.arguments]


def _sbatch_environ(plan: SubmissionPlan, environ: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in environ.items()
        if key not in plan.hidden_variables and not key.startswith(_OF_ANOTHER_JOB)
    }


@contextlib.contextmanager
def _script(plan: SubmissionPlan) -> Iterator[IO[bytes]]:
    """Yield the script as a file without a name, which nobody can exchange before sbatch reads it."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.TemporaryFile())
            file.write(_content(plan))
            file.seek(0)
        except OSError as error:
            raise LaunchError(
                f"nothing was submitted: no temporary file can be written ({error.strerror}); set TMPDIR to "
                "a folder with some space"
            ) from None
        yield file


def _content(plan: SubmissionPlan) -> bytes:
    return plan.script.encode("utf-8", "surrogateescape")


@contextlib.contextmanager
def _plan_files(plan: SubmissionPlan, token: str) -> Iterator[Callable[[], None]]:
    """Write the plan's files, the script's for people; yield a function that removes them again."""
    if not plan.creates_job:
        yield lambda: None
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
        write_private(plan.script_file, _content(plan), is_new=True, in_any_folder=True)
        files.append(plan.script_file)
        if plan.wings is not None:
            plan.wings.write(plan.wing_file)
            files.append(plan.wing_file)
    except (LaunchError, OSError) as error:
        undo()
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(f"nothing can be written in {plan.checkpoint_dir}: {error.strerror}") from None
    yield undo
