"""What Slurm refused lately, and is not asked for again soon. Pure.

Slurm's rules are not copied: its answers are remembered, in the journal.

- NEVER (BadConstraints, PartitionNodeLimit, a command that it refuses): its rules exclude the allocation.
  This one and those with more GPUs on the same nodes are not tried for 10 minutes, then 20, 40, 80 and 160.
  After a second refusal for as many nodes, other nodes are not tried, either. More or fewer nodes may be.
- NOT_NOW (anything else): this allocation is not tried for 10 minutes.

A refusal ends sooner when slurmctld is configured anew, or when the job's request changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from pollux_slurm.model import Allocation, JobState, RefusedConfiguration, SlurmAnswer, SlurmJob
from pollux_slurm.store.contract.interface import Refusal

# In the words of Slurm 22.05 to 26.05.
_NEVER = frozenset({"BadConstraints", "PartitionNodeLimit"})
_NOT_TRIED_FOR = timedelta(minutes=10)
_LONGEST = timedelta(minutes=160)
_LIMITS = ("QOS", "Assoc", "Max", "JobArrayTaskLimit")
_BAR = "|"
# Reasons of a job whose turn Slurm has not come to, or that it has not renewed: they tell of no refusal.
_NO_REFUSAL = frozenset({"BeginTime", "None", "Priority"})


def answer_of(reason: str) -> SlurmAnswer:
    """Return what the reason of a job that waits means."""
    return SlurmAnswer.NEVER if reason in _NEVER else SlurmAnswer.NOT_NOW


def verb_of(reason: str) -> str:
    """Return what to say that Slurm did with the allocation of a job that waits for `reason`."""
    return "did not start" if reason in _NO_REFUSAL else "refused"


def is_of_limit(reason: str) -> bool:
    """Whether a job waits for a limit of its user, account, QOS or array: free GPUs do not help it."""
    return reason.startswith(_LIMITS)


def is_held_for_its_shape(job: SlurmJob) -> bool:
    """Whether Slurm itself holds a job because it can never start as it is.

    It sets priority 0 and this reason (22.05); a hold by a person has another reason, also afterwards.
    """
    return job.state is JobState.PENDING and job.held and job.reason == "BadConstraints"


def request_of(job: SlurmJob) -> str:
    """Return what a job asks for, without its size, as text to compare: its partitions come first."""
    features = "/".join(sorted("&".join(sorted(one)) for one in job.feature_sets))
    excluded = ",".join(sorted(job.excluded_nodes))
    return _BAR.join((job.partition, job.account, job.qos, job.requested_gpu_type or "", features, excluded))


def _is_same_request(before: str, now: str) -> bool:
    """Whether a request is unchanged; a job of several partitions shows only one of them while it runs."""
    partitions, _, rest = before.partition(_BAR)
    partitions_now, _, rest_now = now.partition(_BAR)
    return rest == rest_now and not {*partitions.split(",")}.isdisjoint(partitions_now.split(","))


def not_tried_because(
    refusals: Iterable[Refusal],
    request: str,
    allocation: Allocation,
    now: datetime,
    *,
    configured_at: datetime | None = None,
) -> str | None:
    """Return why a job with these `refusals` and `request` is not given an allocation now; None: it may be.

    `configured_at` is when slurmctld was last configured anew, None where that is not known.
    """
    counted = [
        one
        for one in refusals
        if _is_same_request(one.request, request) and (configured_at is None or one.at >= configured_at)
    ]
    same = [one for one in counted if one.answer is SlurmAnswer.NOT_NOW and one.allocation == allocation]
    if same and now < (until := same[-1].at + _NOT_TRIED_FOR):
        return _text(same[-1], until)
    # Refusals for as many nodes and no more GPUs.
    alike = [
        one
        for one in counted
        if one.answer is SlurmAnswer.NEVER
        and one.allocation.num_nodes == allocation.num_nodes
        and one.allocation.num_gpus <= allocation.num_gpus
    ]
    if not alike or (len(alike) == 1 and not _is_within(alike[0].allocation, allocation)):
        return None
    until = alike[-1].at + min(_NOT_TRIED_FOR * 2 ** (len(alike) - 1), _LONGEST)
    return _text(alike[-1], until) if now < until else None


def in_force(refusals: Sequence[Refusal], now: datetime) -> list[str]:
    """Return, for people, the refusals of a job that count now, if its request is still the same."""
    texts = [not_tried_because(refusals, one.request, one.allocation, now) for one in refusals]
    return list(dict.fromkeys(text for text in texts if text is not None))


def refused_configurations(
    allocation: Allocation, refusals: Iterable[Refusal]
) -> tuple[RefusedConfiguration, ...]:
    """Return what a decision leaves out, so that a job does not get an allocation that is not to be tried."""
    nodes, gpus = allocation.num_nodes, allocation.num_gpus
    never = any(
        one.answer is SlurmAnswer.NEVER
        and one.allocation.num_nodes == nodes
        and one.allocation.num_gpus <= gpus
        for one in refusals
    )
    return (RefusedConfiguration(num_nodes=nodes, least_gpus=gpus, most_gpus=None if never else gpus),)


def _is_within(refused: Allocation, allocation: Allocation) -> bool:
    """Whether an allocation is the refused one, or has more GPUs on the same nodes."""
    has = allocation.as_dict()
    return has.keys() == refused.as_dict().keys() and all(
        gpus <= has[node] for node, gpus in refused.gpus_by_node
    )


def _text(refusal: Refusal, until: datetime) -> str:
    verb, at = verb_of(refusal.reason), f"{refusal.at:%H:%M:%S} UTC"
    return (
        f"Slurm {verb} {refusal.allocation} at {at} ({refusal.reason}); "
        f"it is tried again from {until:%H:%M:%S} UTC"
    )
