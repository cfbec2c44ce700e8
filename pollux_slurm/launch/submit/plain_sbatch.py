"""Make a job adaptive that was submitted with plain sbatch: at its first start it sets its own Comment.

Where that fails, the job trains at its fixed size, and the reason is returned as one line for its log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pollux_slurm.agent.environment.token import ensure_token, token_sha256
from pollux_slurm.errors import PolluxError, SlurmCommandError
from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.comment_terms import encode_comment, parse_comment
from pollux_slurm.slurm.parsing.job_json import MAY_NOT_BE_REQUEUED

_TRY_AGAIN = "try again"  # "DB index is being set, try again in a bit" (22.05)
_PAUSES_S = (1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveResult:
    """The token file of a job that is adaptive now, else the problem."""

    token_file: Path | None
    problem: str | None = None


def make_adaptive(
    job_id: str,
    *,
    token_file: Path,
    min_gpus: int,
    max_gpus: int | None,
    allow_unconfirmed: bool,
    min_run_s: float | None = None,
    kind: str | None = None,
    finish_by: datetime | None = None,
    client: SlurmClient,
    runner: CommandRunner,
    pause: Callable[[float], None] = time.sleep,
) -> AdaptiveResult:
    """Write the terms of a running job into its Comment, after what the user wrote there.

    Does nothing if the job has terms with this token already, as in a later run: its owner may have changed
    them. Allows the job's requeue, without which it cannot be moved, unless its owner has forbidden it.
    """
    try:
        job = client.read_job(job_id)
        if job is None:
            return AdaptiveResult(token_file=None, problem=f"Slurm does not know job {job_id}")
        if job.allocation.num_gpus == 0:
            return AdaptiveResult(token_file=None, problem=f"job {job_id} owns no GPUs")
        if job.unschedulable_reason is not None:
            is_not_requeued = job.unschedulable_reason == MAY_NOT_BE_REQUEUED
            if is_not_requeued and client.settings().get("JobRequeue") == "1":
                # The site lets jobs be requeued, so that its owner does not.
                return AdaptiveResult(token_file=None, problem=f"job {job_id} has --no-requeue")
            # The usual reason is Requeue=0. With another reason, the second read returns it again.
            runner.run("scontrol", "update", f"JobId={job_id}", "Requeue=1")
            job = client.read_job(job_id) or job
        if job.unschedulable_reason is not None:
            reason = job.unschedulable_reason
            return AdaptiveResult(token_file=None, problem=f"job {job_id} cannot be moved: {reason}")
        terms = JobTerms(
            token_sha256=token_sha256(ensure_token(token_file, job.user_id)),
            user_id=job.user_id,
            min_gpus=min_gpus,
            max_gpus=max_gpus,
            allow_unconfirmed=allow_unconfirmed,
            min_run_s=min_run_s,
            kind=kind,
            finish_by=finish_by,
        )
        known = parse_comment(job.comment).terms
        if known is None or (known.token_sha256, known.user_id) != (terms.token_sha256, terms.user_id):
            _set_comment(client, job_id, encode_comment(job.comment, terms), pause)
    except PolluxError as error:
        return AdaptiveResult(token_file=None, problem=str(error))
    return AdaptiveResult(token_file=token_file)


def _set_comment(client: SlurmClient, job_id: str, comment: str, pause: Callable[[float], None]) -> None:
    """Set the Comment, with retries: right after a start Slurm's accounting may not know the job yet."""
    for wait_s in _PAUSES_S:
        try:
            client.set_comment(job_id, comment)
        except SlurmCommandError as error:
            if _TRY_AGAIN not in str(error).lower():
                raise
            pause(wait_s)
        else:
            return
    client.set_comment(job_id, comment)
