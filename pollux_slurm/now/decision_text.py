"""A decision in the terms of the job's owner: GPUs, examples per second, what would have to change.

`pollux_slurm.policy.explain.wording` has the policy's terms, which `--details` prints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux_slurm.model import Allocation, JobState, ReallocationStep, ReallocationWay
from pollux_slurm.text import moment_text, plural

if TYPE_CHECKING:
    from pollux_slurm.report.job import Told
    from pollux_slurm.store.contract.interface import DecisionRecord, JobRecord, Reallocation, Store

_MORE = {
    "capacity": "other jobs gain more from more GPUs for now; it gets more when some of those end",
    "max_gpus": "its owner allows no more: pollux change JOB --max-gpus N",
    "exploration": "it may have at most four times the GPUs that it has reported from; it can grow further "
    "once it has reported from this number",
    "penalty": "a move would cost it more than more GPUs bring; each round decides that anew",
    "placement": "the free GPUs are not where a larger allocation would fit",
    "cpus": "where GPUs are free there are too few CPUs: request fewer per GPU (--cpus-per-gpu)",
    "memory": "where GPUs are free there is too little memory: request less per GPU (--mem-per-gpu)",
    "partition": "the nodes that it may use have no more",
    "rigid": "its number of GPUs is fixed: --min-gpus and --max-gpus are equal, or it cannot be requeued",
    "young": "it started too recently (--min-run, policy.min_age_s), or ends too soon, to be moved",
    "limit": "the GPU limit of its account, user or QOS is reached; an admin can raise that",
    "moves": "this round moves no more jobs; it may be moved in the next",
    "share": "other jobs of the same user (or account) use that one's share of the cluster; it gets more "
    "when one of them ends, or when other users need less",
    "waiting": "GPUs are reserved for a job that has waited for too long",
    "not_tried": "Slurm recently refused a larger allocation, or would not keep the job's place in it",
    "pinned": "it has to stay as it is for now",
    "nothing": "no larger number of GPUs is predicted to make it faster",
}


_MOVED_SINCE = "it was being moved when this round decided; the next one decides anew"
_ENDS = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "ran into its time limit",
}


def ended(record: JobRecord) -> str:
    """Return how and when a job ended."""
    when = "" if record.finished_at is None else f" at {moment_text(record.finished_at)} UTC"
    return f"is over: it {_ENDS.get(record.state, record.state.value)}{when}"


def move_text(move: Reallocation, state: JobState) -> str:
    """Return source, target, way and step of an open reallocation of a job that is in `state`."""
    step = move.step
    if step is ReallocationStep.RELEASED and state is JobState.RUNNING:
        step = ReallocationStep.RUNNING  # Slurm has started it, and the daemon has not seen that yet
    way = " in place" if move.way is ReallocationWay.IN_PLACE else ""
    return f"{move.source} → {move.target}{way} ({step.text})"


def summary(decided: DecisionRecord, record: JobRecord, now: str | None = None) -> str:
    """Return the last decision about a job in one line, without the policy's numbers.

    `now` is its present state, where that differs (`pollux_slurm.now.present_state`).
    """
    job, excluded = decided.job, decided.excluded_reason
    if record.state.is_over:
        last = gpus_text(job.allocation, job.gpu_type)
        return f"job {job.job_id} {ended(record)}; the last round about it: {last}"
    if record.open_reallocation is not None:
        return f"job {job.job_id} is being moved: {move_text(record.open_reallocation, record.state)}"
    if record.paused_at is not None:
        return f"job {job.job_id} is {paused(record)}"
    first = f"job {job.job_id}" if now is None else f"job {job.job_id} {now}; the last round"
    if excluded is not None:
        return f"{first} {'is left' if now is None else 'left it'} as it is: {excluded}"
    has = gpus_text(job.allocation, job.gpu_type)
    size = record.allocation.num_gpus or job.allocation.num_gpus
    bound = present_bound(size, record.terms.max_gpus, job.bound_by)
    why = why_not_more(bound, job.pinned_because, was_moving=moved_since(decided, record))
    return f"{first}: {has}; not more: {why}"


# Bounds of a job that say more than its owner's maximum does, where it has that.
_STRONGER = ("max_gpus", "nothing", "rigid")


def present_bound(num_gpus: int, max_gpus: int | None, bound_by: str) -> str:
    """Return what keeps a job from more GPUs: what bound a decision, or the maximum that it has by now."""
    has_maximum = max_gpus is not None and num_gpus >= max_gpus and bound_by not in _STRONGER
    return "max_gpus" if has_maximum else bound_by


def short_reason(record: JobRecord) -> str:
    """Return why a job has no more GPUs by its last decision, in one short sentence."""
    if record.paused_at is not None:
        return f"it is {paused(record)}"
    bound = record.last_decision_bound_by or "nothing"
    bound = present_bound(record.allocation.num_gpus, record.terms.max_gpus, bound)
    return record.not_moved_reason or why_not_more(bound, None, was_moving=False)


def paused(record: JobRecord) -> str:
    """Return until when a paused job waits."""
    until = (
        f"pollux resume {record.slurm_job_id}" if record.is_pause_ordered else "a round gives it GPUs again"
    )
    return f"paused until {until}"


def moved_since(decided: DecisionRecord, record: JobRecord) -> bool:
    """Tell whether the job was being moved at the time of the decision, and that move has ended."""
    last = record.last_reallocation
    if record.open_reallocation is not None or last is None or last.is_pause or not last.step.is_end:
        return False
    begin, end = last.times[0][1], last.times[-1][1]
    return decided.job.pinned_because is not None and begin < decided.at <= end


def why_not_more(bound_by: str, pinned_because: str | None, *, was_moving: bool) -> str:
    """Return why a job has no more GPUs; `was_moving` at the time of the decision, and is not any more."""
    if bound_by == "max_gpus":
        return _MORE["max_gpus"]
    return _MOVED_SINCE if was_moving else pinned_because or _MORE.get(bound_by, bound_by)


def gpus_text(allocation: Allocation, gpu_type: str | None) -> str:
    """Return how many GPUs a job has, and where."""
    return (
        f"{kind_text(allocation.num_gpus, allocation.num_nodes, gpu_type)} ({allocation})"
        if allocation
        else "no GPUs"
    )


def kind_text(num_gpus: int, num_nodes: int, gpu_type: str | None) -> str:
    """Return a number of GPUs of a type on a number of nodes."""
    return f"{plural(num_gpus, f'{gpu_type} GPU' if gpu_type else 'GPU')} on {plural(num_nodes, 'node')}"


def told_of(store: Store, job_id: str) -> Told:
    """Return a job's last decision in a line, and what its newest model predicts for the size it asked for.

    Raises `UnknownJobError`, and what the store raises.
    """
    from pollux_slurm.report.job import Told

    decided, record = store.rounds.decision(job_id), store.jobs.get(job_id)
    return Told(
        explanation="" if decided is None else summary(decided, record),
        asked_gpus=record.submitted_gpus,
        asked_goodput=_goodput_as_asked(
            record, max((node.num_gpus for node in store.rounds.nodes()), default=1)
        ),
    )


def _goodput_as_asked(record: JobRecord, gpus_per_node: int) -> float | None:
    """Return the predicted goodput on the GPUs that a job asked for, on as few nodes as they fit on."""
    from pollux_slurm.goodput import best_batch
    from pollux_slurm.model import Configuration

    model, num_gpus = record.model, record.submitted_gpus
    if model is None or not num_gpus:
        return None
    shape = Configuration(num_nodes=-(-num_gpus // max(gpus_per_node, 1)), num_gpus=num_gpus)
    found = best_batch(model, shape)
    return None if found is None else found.goodput
