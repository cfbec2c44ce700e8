"""Real jobs, real Slurm, real daemon: what a user would see."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from pollux_slurm.model import Allocation, JobState, ReallocationStep
from tests.e2e.user_commands import UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]


def test_that_a_job_grows_shrinks_for_another_and_finishes_exactly(user: UserCommands) -> None:
    """Submit → grow → shrink → grow again → finish, every sample of every epoch used exactly once."""
    # Two GPUs are left: each further process costs seconds of CPU at each start.
    unmanaged = user.plain("sleep 900", "--gpus=4", "--nodes=1", "--nodelist=n1")
    beside = user.plain("sleep 900", "--gpus=2", "--nodes=1", "--nodelist=n0")
    user.wait(lambda: user.gpus(unmanaged) + user.gpus(beside) == 6, "the unmanaged jobs to start")
    first = user.digits("first", "--gpus=1", epochs=10, pass_s="0.015,0.012")
    user.wait(lambda: user.gpus(first) == 1, "the first job to start as it was submitted")
    user.start_daemon()
    growth = user.wait_confirmed(first, shrink=False)
    assert growth.target == Allocation.of({"n0": 2})
    # Nothing is free: it waits, and the first must shrink for it.
    second = user.digits("second", epochs=6, max_gpus=2, pass_s="0.01,0.008")
    shrink = user.wait_confirmed(first, shrink=True)

    for job_id, name in ((first, "first"), (second, "second")):
        record = user.wait_over(job_id)
        assert record.state is JobState.COMPLETED, user.log()
        result = json.loads((user.directory / f"{name}.json").read_text())
        assert result["accuracy"] >= 0.95
        assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]
    user.wait(lambda: not user.store.journal.open_reallocations(), "the journal to close")

    for move in (growth, shrink):
        steps = [step for step, _ in move.times]
        others = ("regroup_requested", "regrouped", "rolled_back", "failed")
        assert steps == [step for step in ReallocationStep if step.value not in others]
        runs = {run.restart_count: run for run in user.store.history.runs(first)}
        assert sum(runs[move.from_restart_count + 1].gpus_per_node) == move.target.num_gpus
    rigid = user.slurm.read_job(unmanaged)
    assert rigid is not None
    assert (rigid.state, rigid.restart_count) == (JobState.RUNNING, 0)
    assert rigid.allocation == Allocation.of({"n1": 4})
    log = (user.directory / f"{first}.log").read_text()
    assert f"pollux: job {first} is moved from n0:1 to n0:2, " in log
    run = growth.from_restart_count + 1  # people count from 1
    assert f"pollux: job {first} goes on from the checkpoint of its run {run}, with 2 replicas\n" in log
    # Runs do not overlap: each starts after the last report of the one before.
    for earlier, later in pairwise(user.store.history.runs(first)):
        assert earlier.last_report_at <= later.first_report_at
