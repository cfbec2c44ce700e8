"""Whether what a job declares of its length may count: it is a claim that can pay, so it is checked. Pure.

A claim counts as long as what was observed does not contradict it. One that does not count costs the job
nothing but the claim: it is then treated like a job that declares nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pollux_slurm.store.contract.interface import MAX_DECLARATIONS, Declaration, JobRecord, Sample

# How far progress may grow beyond what a claim once amounted to. An epoch's progress is its examples over M0
# times the efficiency, at most 1: an honest job comes there only if its first epochs ran below a quarter.
TOLERANCE = 4.0


# The most of an epoch under way that is counted as done.
_MOST_OF_ONE = 0.99
# More useful examples than any training has; a job that tells of more counts as having had so many.
MOST_PROGRESS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What of a job's declaration is passed on: all three None where nothing was measured or declared.

    `progress` is in useful examples. `doubt` says why a declaration is not passed on.
    """

    progress: float | None = None
    epochs_done: float | None = None
    epochs_declared: float | None = None
    doubt: str | None = None


def checked(record: JobRecord) -> Claim:
    """Return what a job's last report says of its length, as far as it may count.

    Not counted: what was raised after it had been declared lower (of all that a job ever declared, only a
    first number and lower ones count); what the job has passed without ending; what amounts, by the progress
    at some time, to less than a quarter of the progress made since; epochs without any progress.
    """
    sample = record.sample
    if sample is None:
        return Claim()
    examples = None
    if record.model is not None:
        # A scale-invariant iteration is worth M0 examples at an efficiency of 1.
        examples = min(sample.progress * record.model.limits.initial_batch_size, MOST_PROGRESS)
    if sample.total_epochs is None:
        return Claim(progress=examples)
    reason = doubt(
        record.declarations, declared=sample.total_epochs, epoch=sample.epoch, progress=sample.progress
    )
    if reason is not None:
        return Claim(progress=examples, doubt=reason)
    return Claim(
        progress=examples,
        epochs_done=_epochs_done(record, sample),
        epochs_declared=float(sample.total_epochs),
    )


def _epochs_done(record: JobRecord, sample: Sample) -> float:
    """Return the epochs done, and by its progress what is done of the one under way.

    Jobs tell whole epochs. Were a part of one not counted, what is left would seem to grow until it ends: of
    two epochs, the second would seem as long at its end as both. What an epoch amounts to is the least that
    any has on average; of the first, nobody knows.
    """
    known = [
        claim.least_total_progress / claim.total_epochs
        for claim in record.declarations
        if claim.least_total_progress is not None and claim.total_epochs > 0
    ]
    each = min(known, default=0.0)
    if sample.epoch < 1 or not each > 0:
        return float(sample.epoch)
    return min(max(sample.progress / each, float(sample.epoch)), sample.epoch + _MOST_OF_ONE)


def doubt(claims: Sequence[Declaration], *, declared: int, epoch: int, progress: float) -> str | None:
    """Return why what a job declares now does not count, None where it does.

    `claims` are all that it has declared; `progress` is in scale-invariant iterations.
    """
    if len(claims) >= MAX_DECLARATIONS:
        return f"it has declared {len(claims)} different numbers of epochs"
    least = min((claim.total_epochs for claim in claims), default=declared)
    if least < declared:
        return f"it declared {least} epochs before it declared {declared}"
    if epoch >= declared:
        return f"it goes on after the {declared} epochs that it declared"
    if epoch > 0 and not progress > 0:
        return f"it tells of {epoch} epochs without any progress"
    for claim in claims:
        amounted = claim.least_total_progress
        if amounted is not None and progress > TOLERANCE * amounted:
            times = min(progress / max(amounted, 1e-12), 1e6)
            return (
                f"it has made {times:.3g} times all the progress that there was by what it declared earlier"
            )
    return None
