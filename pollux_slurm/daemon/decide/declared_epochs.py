"""Check a job's declared number of epochs against its observed progress. Pure.

A false declaration could gain a job GPUs. So a declaration counts only while the observations agree with it.
Without a valid declaration, a job is treated like one that declares nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pollux_slurm.store.contract.interface import MAX_DECLARATIONS, Declaration, JobRecord, Sample

# By which factor progress may exceed what an earlier declaration implied to. The progress of an epoch is its
# examples over M0 times the efficiency. So an honest job exceeds it only if its first epochs had an
# efficiency below a quarter.
TOLERANCE = 4.0

# The largest part of the current epoch that is counted as done.
_MAX_OF_EPOCH = 0.99
# More useful examples than any training has; larger reports are cut to it.
MAX_PROGRESS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDeclaration:
    """The part of a job's declaration that counts; all three None where nothing was measured or declared.

    `progress` is in useful examples. `doubt` is why a declaration does not count.
    """

    progress: float | None = None
    epochs_done: float | None = None
    epochs_declared: float | None = None
    doubt: str | None = None


def check_declaration(record: JobRecord) -> CheckedDeclaration:
    """Return the length in a job's last report, as far as it counts.

    A declaration does not count in each of these cases:

    - It is higher than an earlier one.
    - The job trained beyond it.
    - The job made more than `TOLERANCE` times the progress that it implied.
    - Epochs passed without progress.
    """
    sample = record.sample
    if sample is None:
        return CheckedDeclaration()
    examples = None
    if record.model is not None:
        # Progress is in units of M0: each is worth M0 examples at an efficiency of 1.
        examples = min(sample.progress * record.model.limits.initial_batch_size, MAX_PROGRESS)
    if sample.total_epochs is None:
        return CheckedDeclaration(progress=examples)
    reason = declaration_doubt(
        record.declarations, declared=sample.total_epochs, epoch=sample.epoch, progress=sample.progress
    )
    if reason is not None:
        return CheckedDeclaration(progress=examples, doubt=reason)
    return CheckedDeclaration(
        progress=examples,
        epochs_done=_epochs_done(record, sample),
        epochs_declared=float(sample.total_epochs),
    )


def _epochs_done(record: JobRecord, sample: Sample) -> float:
    """Return the epochs done, including the estimated part of the current one.

    Jobs report whole epochs. Without the part, the remaining time would seem to grow during an epoch. The
    progress of one epoch is estimated by the smallest average so far; in the first epoch it is unknown.
    """
    known = [
        declared.least_total_progress / declared.total_epochs
        for declared in record.declarations
        if declared.least_total_progress is not None and declared.total_epochs > 0
    ]
    epoch_progress = min(known, default=0.0)
    if sample.epoch < 1 or not epoch_progress > 0:
        return float(sample.epoch)
    return min(max(sample.progress / epoch_progress, float(sample.epoch)), sample.epoch + _MAX_OF_EPOCH)


def declaration_doubt(
    declarations: Sequence[Declaration], *, declared: int, epoch: int, progress: float
) -> str | None:
    """Return why what a job declares now does not count, None where it does.

    `declarations` are all it ever made; `progress` is in units of M0.
    """
    if len(declarations) >= MAX_DECLARATIONS:
        return f"it has declared {len(declarations)} different numbers of epochs"
    least = min((earlier.total_epochs for earlier in declarations), default=declared)
    if least < declared:
        return f"it declared {least} epochs before it declared {declared}"
    if epoch >= declared:
        return f"it trains on after the {declared} epochs that it declared"
    if epoch > 0 and not progress > 0:
        return f"it reports {epoch} epochs without any progress"
    for earlier in declarations:
        implied = earlier.least_total_progress
        if implied is not None and progress > TOLERANCE * implied:
            times = min(progress / max(implied, 1e-12), 1e6)
            return f"it has made {times:.3g} times the progress that its earlier declaration implies"
    return None
