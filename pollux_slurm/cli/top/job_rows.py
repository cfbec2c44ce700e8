"""Which jobs the table shows and in which order: filter words, sort keys, and a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pollux_slurm.now.cluster import ClusterNow
from pollux_slurm.now.jobs import JobNow

MOST_ROWS = 200
"""The table shows no more rows: nobody scrolls through thousands, and filling it stays quick."""

SORT_KEYS = ("job", "user", "state", "gpus", "goodput", "share")


def matches(job: JobNow, picture: ClusterNow, words: str) -> bool:
    """Whether a job has every one of the words: `user:ada state:running resnet`. Case does not matter.

    `user:`, `account:`, `state:`, `name:` and `job:` look into one field, other words into all.
    """
    record = job.record
    fields = {
        "job": record.slurm_job_id,
        "name": record.name,
        "user": record.user_name,
        "account": record.account,
        "state": picture.state_of(job),
    }
    fields = {name: text.casefold() for name, text in fields.items()}
    for word in words.casefold().split():
        name, colon, wanted = word.partition(":")
        if colon and name in fields:
            if wanted not in fields[name]:
                return False
        elif not any(word in text for text in fields.values()):
            return False
    return True


def selected_jobs(
    picture: ClusterNow, *, words: str, sort_by: str, reverse: bool
) -> tuple[tuple[JobNow, ...], int]:
    """Return the jobs to show, in order, and how many more match."""
    found = [job for job in picture.jobs if matches(job, picture, words)]
    found.sort(key=_sort_key(picture, sort_by), reverse=reverse)
    return tuple(found[:MOST_ROWS]), max(len(found) - MOST_ROWS, 0)


def _sort_key(picture: ClusterNow, sort_by: str) -> Callable[[JobNow], Any]:
    """Return the key: numbers from large to small, texts and jobs from small to large."""
    keys: dict[str, Callable[[JobNow], Any]] = {
        "job": lambda job: job.record.submitted_at,
        "user": lambda job: (job.record.user_name, job.record.submitted_at),
        "state": lambda job: (picture.state_of(job), job.record.submitted_at),
        "gpus": lambda job: -job.record.allocation.num_gpus,
        "goodput": lambda job: -((job.measured and job.measured.goodput) or 0.0),
        "share": lambda job: -(job.record.last_decision_speedup or 0.0),
    }
    return keys[sort_by]
