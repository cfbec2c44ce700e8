"""One line of text about a job's decision: its allocation and the reason for it."""

from __future__ import annotations

from pollux_slurm.model import Configuration, JobDecision, ReallocationWay
from pollux_slurm.text import duration_text, plural

# What each `JobDecision.bound_by` means.
BOUND_TEXTS = {
    "capacity": "more GPUs are worth more to others",
    "max_gpus": "its owner's maximum",
    "exploration": "it may have at most four times what it was measured on",
    "penalty": "a move would cost more than it gains",
    "placement": "the free GPUs are not where a larger allocation would fit",
    "cpus": "too few CPUs where GPUs are free",
    "memory": "too little memory where GPUs are free",
    "partition": "the nodes that it may use have no more",
    "rigid": "it has one size only",
    "young": "it is too young, or too near its end, to be moved",
    "not_tried": "Slurm recently refused more, or would not keep its place there",
    "limit": "its account's or user's limit of GPUs",
    "moves": "this round's budget of reallocations",
    "share": "other jobs of its user, or account, take up the share",
    "waiting": "GPUs are kept for a job that has waited for too long",
    "pinned": "it keeps its allocation",
    "nothing": "no larger size that it may have is faster",
}


def explanation(job: JobDecision, excluded: str | None = None) -> str:
    """Return one line about a job's allocation and its reason; `excluded` is why it is excluded, if it is."""
    if excluded is not None:
        return f"job {job.job_id} is left as it is: {excluded}"
    of_type = f" ({job.gpu_type})" if job.gpu_type else ""
    parts = [f"job {job.job_id}: {job.allocation}{of_type}"]
    if job.allocation:
        parts.append(f"speedup {job.speedup:.3g}")
    if job.goodput is not None:
        parts.append(f"goodput {job.goodput:.4g}/s")
    if job.penalty != 1.0:
        parts.append(f"restart factor {job.penalty:.2f}")
    if job.way is not None:
        parts.append(f"moves {way_text(job.way, job.move_delay_s)}")
    bound = job.pinned_because or BOUND_TEXTS.get(job.bound_by, "see the docs")
    parts.append(f"bound by {job.bound_by} ({bound})")
    if job.runner_up is not None and job.runner_up_speedup is not None:
        cost = "" if job.runner_up_cost is None else f", at a price of {job.runner_up_cost:+.3g} to others"
        parts.append(
            f"next best {configuration_text(job.runner_up, job)}, speedup {job.runner_up_speedup:.3g}{cost}"
        )
    if job.declared_gain is not None:
        parts.append(f"what it declares changes its weight by a factor of {job.declared_gain:.2f}")
    if job.declaration_doubt is not None:
        parts.append(f"what it declares does not count: {job.declaration_doubt}")
    return "; ".join(parts)


def way_text(way: ReallocationWay, delay_s: float | None) -> str:
    """Return how a job moves, and how long that is expected to take."""
    if way is ReallocationWay.IN_PLACE:
        return "in place" + (
            "" if delay_s is None else f", about {duration_text(round(delay_s))} until it trains there"
        )
    return "by requeue" + (
        "" if delay_s is None else f", about {duration_text(round(delay_s))} standing still"
    )


def configuration_text(of: Configuration, job: JobDecision) -> str:
    """Return the runner-up's configuration as text."""
    if not of.num_gpus:
        return "nothing"
    kind = f"{job.runner_up_gpu_type} GPU" if job.runner_up_gpu_type else "GPU"
    return f"{plural(of.num_gpus, kind)} on {plural(of.num_nodes, 'node')}"
