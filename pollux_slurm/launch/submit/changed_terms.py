"""Change the terms of a job that waits or runs: they are in its Comment, where the daemon reads them."""

from __future__ import annotations

import dataclasses

from pollux_slurm.errors import UsageError
from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment, parse_comment
from pollux_slurm.text import moment_text


def changed_terms(client: SlurmClient, job_id: str, **changes: object) -> tuple[JobTerms, str]:
    """Return a job's terms with `changes`, and the Comment that has them.

    Raises `UsageError` for a job that is over or not adaptive, and for bounds that contradict each other.
    """
    job = client.read_job(job_id)
    if job is None or job.state.is_over:
        state = "unknown to Slurm" if job is None else f"over: it is {job.state.value}"
        raise UsageError(f"job {job_id} is {state}")
    terms = parse_comment(job.comment).terms
    if terms is None:
        raise UsageError(
            f"job {job_id} is not adaptive: its Comment has no terms. A job of plain sbatch has them once it "
            "has started pollux run"
        )
    terms = dataclasses.replace(terms, **changes)  # type: ignore[arg-type]
    if terms.max_gpus is not None and terms.min_gpus > terms.max_gpus:
        raise UsageError(
            f"job {job_id}: at least {terms.min_gpus} GPUs and at most {terms.max_gpus} exclude each other; "
            "change both: --min-gpus and --max-gpus"
        )
    return terms, encode_comment(job.comment, terms)


def allowed_text(terms: JobTerms) -> str:
    """Return what a job allows, and the moment by which it asks to be finished, in words."""
    most = "any number of" if terms.max_gpus is None else f"at most {terms.max_gpus}"
    wish = "" if terms.finish_by is None else f", finished by {moment_text(terms.finish_by)} UTC if that fits"
    return f"at least {terms.min_gpus} and {most} GPUs{wish}"
