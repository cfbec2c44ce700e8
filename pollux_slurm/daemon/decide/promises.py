"""The answers to jobs that ask to be finished by a moment, as the store keeps them. Pure.

`pollux_slurm.policy.promises` decides them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pollux_slurm.model import Promise, PromiseState
from pollux_slurm.store.contract.interface import JobRecord, PromiseRecord

# A prediction that moves by less is the same answer.
_SAME = timedelta(minutes=1)


def finish_by_s(record: JobRecord, now: datetime) -> float | None:
    """Return the seconds until a job's moment; None for no moment."""
    by = record.terms.finish_by
    return None if by is None else (by - now).total_seconds()


def new_answers(
    records: Iterable[JobRecord], answers: Mapping[str, Promise], now: datetime
) -> dict[str, PromiseRecord]:
    """Return the answers that differ from those on record, by job id.

    A promise that has ended keeps its answer.
    """
    found = {}
    for record in records:
        answer, known = answers.get(record.slurm_job_id), record.promise
        if answer is None or (known is not None and known.state is PromiseState.ENDED):
            continue
        new = PromiseRecord(
            state=answer.state,
            least_gpus=answer.least_gpus if answer.state is PromiseState.ACCEPTED else None,
            finish_at=None if answer.finish_s is None else now + timedelta(seconds=answer.finish_s),
            reason=answer.reason,
        )
        if known is None or not _is_same(known, new):
            found[record.slurm_job_id] = new
    return found


def _is_same(known: PromiseRecord, new: PromiseRecord) -> bool:
    if (known.state, known.least_gpus, known.reason) != (new.state, new.least_gpus, new.reason):
        return False
    if known.finish_at is None or new.finish_at is None:
        return known.finish_at is new.finish_at
    return abs(known.finish_at - new.finish_at) < _SAME
