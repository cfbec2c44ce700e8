"""What is said of a job before its last decision."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pollux_slurm.model import Allocation, JobState
from pollux_slurm.now.decision_text import present_bound
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.now.present_state import present_state
from pollux_slurm.store.contract.types import Sample
from tests.daemon.builders import TERMS, job, record, sample

ON = {"n0": 2}


def said(
    state: JobState,
    *,
    in_place: bool = False,
    on: dict[str, int] | None = None,
    newest: Sample | None = None,
    **of_job: Any,
) -> str:
    slurm = job("7", state, on=on, **of_job)
    known = record(
        "7",
        state=state,
        terms=dataclasses.replace(TERMS, in_place=in_place),
        allocation=slurm.allocation,
        last_decision=Allocation.of({"n0": 2, "n1": 2}),
        sample=newest,
    )
    held = slurm.held and state is JobState.PENDING
    return present_state(JobNow(record=known, is_now=True, held=held, job=slurm)) or ""


@pytest.mark.parametrize(
    ("of_job", "text"),
    [
        ({"held": True, "reason": "JobHeldUser"}, "is held by its owner (scontrol release 7)"),
        ({"held": True, "reason": "JobHeldAdmin"}, "is held by an admin (scontrol release 7)"),
        ({"reason": "Resources"}, "waits in the queue (Resources)"),
        ({"in_place": True, "reason": "Priority"}, "waits for its anchor to start (Priority)"),
    ],
)
def test_that_a_waiting_job_says_what_it_waits_for(of_job: dict[str, Any], text: str) -> None:
    assert said(JobState.PENDING, **of_job) == text


def test_that_a_job_in_place_says_that_it_has_lost_a_wing() -> None:
    assert said(JobState.RUNNING, in_place=True, on=ON) == "has lost its wing on n1"
    assert said(JobState.COMPLETING, in_place=True).startswith("has no GPUs now")
    assert said(JobState.RUNNING, in_place=True, on={"n0": 2, "n1": 2}) == ""


@pytest.mark.parametrize(("epoch", "text"), [(29, "has no GPUs now"), (30, "has trained all its epochs")])
def test_that_a_job_in_place_without_an_epoch_left_is_ending(epoch: int, text: str) -> None:
    last = sample(epoch=epoch, total_epochs=30)
    assert said(JobState.COMPLETING, in_place=True, newest=last).startswith(text)


def test_that_a_job_at_its_maximum_is_bound_by_that() -> None:
    assert present_bound(8, 8, "pinned") == "max_gpus"
    assert present_bound(7, 8, "pinned") != "max_gpus"
    assert present_bound(8, None, "pinned") != "max_gpus"
    # That more GPUs would not help says more.
    assert present_bound(8, 8, "nothing") != "max_gpus"
