"""Submit a script as an adaptive job.

Two files are laid into the checkpoint directory before sbatch is called, the token and the script as it is
submitted; if sbatch refuses the job they are removed again.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pollux_slurm.agent.submit.submission_plan import SubmissionPlan
from pollux_slurm.agent.submit.token import make_private_dir, remove_empty_dirs, write_token
from pollux_slurm.errors import LaunchError, SlurmCommandError
from pollux_slurm.slurm.commands.runner import CommandRunner

_SUBMIT_TIMEOUT_S = 120.0


def run_sbatch(
    plan: SubmissionPlan, *, token: str, runner: CommandRunner, environ: Mapping[str, str], cwd: Path
) -> int:
    """Carry out a plan; sbatch prints to this process's own outputs. Returns sbatch's exit code.

    Not through the runner's `run`: sbatch may take as long as it likes (`--wait` ends with the job).
    """
    sbatch = runner.find("sbatch")
    with _written(plan, token) as (script_file, undo):
        done = subprocess.run(
            [sbatch, *plan.options, str(script_file), *plan.arguments],
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # --export-file may name a descriptor that the user's shell has opened
            check=False,
        )
        # With --wait the code may be the job's own, so nothing tells whether there is a job: all stays.
        if done.returncode > 0 and not plan.waits:
            undo()
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def submit(plan: SubmissionPlan, *, token: str, runner: CommandRunner, environ: Mapping[str, str]) -> str:
    """Carry out a plan quietly and return the job's number.

    Raises `SlurmCommandError` with sbatch's words when it refuses the job, and `SlurmUnavailable` when it
    does not answer: then there may or may not be a job.
    """
    runner.find("sbatch")
    with _written(plan, token) as (script_file, undo):
        words = ["--parsable", *plan.options, str(script_file), *plan.arguments]
        done = runner.run("sbatch", *words, environ=environ, timeout_s=_SUBMIT_TIMEOUT_S)
        if done.exit_code != 0:
            undo()
            raise SlurmCommandError(f"sbatch refused the job: {done.complaint}")
    return done.stdout.strip().partition(";")[0]


@contextlib.contextmanager
def _written(plan: SubmissionPlan, token: str) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Write the plan's files; gives the script's path and what removes everything again."""
    content = plan.script.encode("utf-8", "surrogateescape")
    if not plan.creates_job:
        with tempfile.TemporaryDirectory(prefix="pollux-") as folder:
            file = Path(folder) / plan.script_file.name
            file.write_bytes(content)
            yield file, lambda: None
        return
    made = make_private_dir(plan.checkpoint_dir)
    files: list[Path] = []

    def undo() -> None:
        for file in files:
            file.unlink(missing_ok=True)
        remove_empty_dirs(made)

    try:
        write_token(plan.token_file, token)
        files.append(plan.token_file)
        plan.script_file.touch(mode=0o600, exist_ok=False)
        files.append(plan.script_file)
        plan.script_file.write_bytes(content)
    except (LaunchError, OSError) as error:
        undo()
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(f"{error.filename} cannot be written: {error.strerror}") from None
    yield plan.script_file, undo
