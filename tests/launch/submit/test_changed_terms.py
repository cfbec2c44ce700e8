"""`pollux change`: the Comment that a job gets, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from datetime import datetime, timezone
from typing import Any

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.launch.submit.changed_terms import allowed_text, changed_terms
from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.parsing.comment_terms import decode_comment, encode_comment, user_part
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node

TERMS = JobTerms(token_sha256="ab" * 32, user_id=1000, min_gpus=2, max_gpus=4)


@pytest.fixture
def slurm() -> FakeSlurm:
    made = FakeSlurm([fake_node("n0")], clock=FakeClock())
    made.submit("#!/bin/sh", ["--gpus=2", f"--comment={encode_comment('mine', TERMS)}"], [], {})
    made.submit("#!/bin/sh", ["--gpus=1", "--comment=mine"], [], {})
    made.snapshot()
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {"max_gpus": 8},
        {"max_gpus": None},
        {"min_gpus": 1, "max_gpus": 1},
        {"min_run_s": math.inf},
        {"finish_by": datetime(2026, 12, 1, 9, 0, tzinfo=timezone.utc)},
    ],
)
def test_that_only_what_was_asked_changes(slurm: FakeSlurm, changes: dict[str, Any]) -> None:
    terms, comment = changed_terms(slurm, "1", **changes)
    assert decode_comment(comment) == terms
    assert user_part(comment) == "mine"
    for name in ("token_sha256", "user_id", "min_gpus", "max_gpus", "min_run_s", "in_place", "finish_by"):
        assert getattr(terms, name) == changes.get(name, getattr(TERMS, name))


@pytest.mark.parametrize(
    ("job_id", "changes", "message"),
    [
        ("1", {"max_gpus": 1}, "at least 2 GPUs and at most 1 exclude each other; change both"),
        ("2", {"max_gpus": 8}, "job 2 is not adaptive: its Comment has no terms"),
        ("3", {"max_gpus": 8}, "job 3 is unknown to Slurm"),
    ],
)
def test_that_other_changes_are_refused(
    slurm: FakeSlurm, job_id: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        changed_terms(slurm, job_id, **changes)


def test_that_what_a_job_allows_is_said_with_its_moment() -> None:
    by = datetime(2026, 12, 1, 9, 0, tzinfo=timezone.utc)
    assert allowed_text(TERMS) == "at least 2 and at most 4 GPUs"
    assert allowed_text(dataclasses.replace(TERMS, max_gpus=None, finish_by=by)) == (
        "at least 2 and any number of GPUs, finished by 2026-12-01 09:00:00 UTC if that fits"
    )
