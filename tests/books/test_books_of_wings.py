"""The GPU seconds of a job that moves in place, against sacct's of its wings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone

import pytest

from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from pollux_slurm.store.contract.interface import Store
from tests.books.compare import runs_of_sacct
from tests.conftest import running_sandbox
from tests.slurm.accounting_site import accounting_of, missing_programs
from tests.waiting import cancel_all, wait_until

MISSING = ", ".join(missing_programs())
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"no {MISSING}: apt install slurmdbd mariadb-server-core"),
]
TERMS = JobTerms(token_sha256="ab" * 32, user_id=os.geteuid(), in_place=True)
SLEEP = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture
def site(slurm_programs: None) -> Iterator[Sandbox]:
    with running_sandbox(NodeGroup(num_nodes=2)) as box, accounting_of(box):
        yield box


class Job:
    """An anchor and its wings on a real Slurm, and a store that observes it as a round does."""

    def __init__(self, site: Sandbox, store: Store) -> None:
        self.site, self.store = site, store
        self.slurm = CommandClient(site.runner(timeout_s=120))
        self.anchor = self._submit(encode_comment("", TERMS))
        self.wings: list[str] = []

    def wing(self, gpus: int, *options: str, restart: int = 0, plan: int = 0) -> str:
        """Submit a wing and wait until it runs."""
        terms = WingTerms(
            anchor_id=self.anchor, restart_count=restart, plan=plan, token_sha256=TERMS.token_sha256
        )
        options = ("--no-requeue", f"--gpus={gpus}", *options)
        self.wings.append(self._submit(encode_wing_comment(terms), *options))
        self.wait(self.wings[-1], lambda job: job.state is JobState.RUNNING, "run")
        return self.wings[-1]

    def end(self, wing: str) -> None:
        """Cancel a wing a moment later, and wait until it is over."""
        began = self.slurm.controller_time()
        wait_until(lambda: self.slurm.controller_time() > began, timeout_s=60, what="a second to pass")
        self.slurm.cancel(wing)
        self.wait(wing, lambda job: job.state.is_over, "end")

    def wait(self, job_id: str, condition: Callable[[SlurmJob], bool], what: str) -> None:
        def seen() -> bool:
            found = self.slurm.read_job(job_id)
            return found is not None and condition(found)

        wait_until(seen, timeout_s=120, what=f"job {job_id} to {what}")

    def look(self) -> None:
        """Record what a round reads."""
        now = datetime.now(timezone.utc)
        snapshot = MergingClient(self.slurm).snapshot()
        self.store.jobs.register(cluster_picture.registrations(snapshot), at=now)
        seen, _ = cluster_picture.observations(
            snapshot, self.store.jobs.active(), vanished_before=frozenset()
        )
        self.store.jobs.observe(seen, at=now)

    def _submit(self, comment: str, *options: str) -> str:
        given = (f"--comment={comment}", "--mem=100", "--output=/dev/null", *options)
        return self.slurm.submit(SLEEP, given, [], {**os.environ, **self.site.env})


def test_that_they_are_the_sum_over_its_wings_to_the_second(site: Sandbox, store: Store) -> None:
    job = Job(site, store)
    job.look()
    assert store.jobs.all() == ()
    first = job.wing(2)
    job.look()
    joined = job.wing(1, "--nodelist=n1", plan=1)
    left_again = job.wing(2, "--nodelist=n1", plan=2)
    job.end(left_again)
    job.look()
    runner = site.runner(timeout_s=120)
    assert runner.run("scontrol", "suspend", joined).exit_code == 0
    began = job.slurm.controller_time()
    wait_until(lambda: job.slurm.controller_time() > began, timeout_s=60, what="a second to pass")
    assert runner.run("scontrol", "resume", joined).exit_code == 0
    job.end(joined)
    job.end(first)
    job.look()
    later = job.wing(3, restart=1)
    job.end(later)
    job.slurm.cancel(job.anchor)
    cancel_all(job.slurm, [])
    job.look()
    (record,) = store.jobs.all()
    assert (record.slurm_job_id, record.state) == (job.anchor, JobState.CANCELLED)

    def accounted() -> dict[int, float] | None:
        runs = runs_of_sacct(runner)
        of_wings = [runs.get(wing, []) for wing in job.wings]
        if not all(found and found[-1].ended_at for found in of_wings):
            return None
        seconds = [sum((run.gpus or 0) * run.counted_s for run in found) for found in of_wings]
        return {0: sum(seconds[:3]), 1: seconds[3]}

    slurms = wait_until(accounted, timeout_s=120, what="slurmdbd to have the ends of all wings")
    history = store.history.allocations(job.anchor)
    booked = {0: 0.0, 1: 0.0}
    for interval in history:
        assert interval.ended_at is not None
        assert interval.restart_count is not None
        lasted_s = (interval.ended_at - interval.started_at).total_seconds()
        booked[interval.restart_count] += interval.allocation.num_gpus * lasted_s
    assert booked == slurms
    assert not any(interval.estimated for interval in history)
