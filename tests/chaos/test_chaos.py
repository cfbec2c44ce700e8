"""A short run: each kind of fault at least once while six real jobs train. `make chaos` is the long one."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.chaos import verdict
from tests.chaos.__main__ import sandbox_in
from tests.chaos.run import Run
from tests.chaos.site import running_site

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch]

NUM_FAULTS = 14


def test_that_no_job_is_lost_held_doubled_or_short_of_a_sample_whatever_fails(slurm_programs: None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pollux-chaos-", dir="/tmp"))
    folder.chmod(0o755)
    with (
        sandbox_in(folder / "slurm") as sandbox,
        running_site(folder, sandbox, epochs=15, pass_s="0.005,0.002") as site,
    ):
        run = Run(
            site=site,
            num_faults=NUM_FAULTS,
            seed=14,
            pause_s=(0.2, 1.5),
            deadline_s=3600,
            most_jobs=7,
            tries=3,
        )
        run.inject_all()
        run.let_finish(timeout_s=3600)
        verdict.judge(site, run.outcome)
        for line in verdict.lines(run.outcome):
            print(line)
        assert not run.outcome.wrong, f"everything is kept in {folder}\n{site.user.log(60)}"
        assert sum(run.outcome.faults.values()) >= NUM_FAULTS - len(run.outcome.not_reached)
    shutil.rmtree(folder, ignore_errors=True)
