"""A short run: each kind of fault at least once while six real jobs train. `make chaos` is the long one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.chaos import verdict
from tests.chaos.__main__ import NODES
from tests.chaos.run import Run
from tests.chaos.site import running_site
from tests.conftest import running_sandbox

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slurm,
    pytest.mark.torch,
]

NUM_FAULTS = 14


def test_that_no_job_is_lost_held_doubled_or_short_of_a_sample_whatever_fails(slurm_programs: None) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pollux-chaos-", dir="/tmp") as folder,
        running_sandbox(NODES) as sandbox,
        running_site(Path(folder), sandbox, epochs=15, pass_s="0.005,0.002") as site,
    ):
        run = Run(
            site=site,
            num_faults=NUM_FAULTS,
            seed=14,
            pause_s=(0.2, 1.5),
            deadline_s=600,
            most_jobs=7,
            tries=3,
        )
        run.inject_all()
        run.let_finish(timeout_s=900)
        verdict.judge(site, run.outcome)
        for line in verdict.lines(run.outcome):
            print(line)
        assert not run.outcome.wrong, site.road.log(60)
        assert sum(run.outcome.faults.values()) >= NUM_FAULTS - len(run.outcome.not_reached)
