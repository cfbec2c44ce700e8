"""What Slurm lets an owner, and another user, do about wings: with real users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pollux_slurm.daemon.enact.prioritised_wings import PrioritisedWings
from pollux_slurm.model import JobState, JobTerms, SlurmJob
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from tests.people import SLEEP, User, two_users
from tests.waiting import cancel_all, wait_until

pytestmark = pytest.mark.slurm

HEX = "ab" * 32


@pytest.fixture(scope="module")
def users(sandbox: Sandbox) -> Iterator[tuple[User, User]]:
    with two_users(sandbox.env) as made:
        yield made


def sbatch(user: User, *options: str) -> str:
    common = ("--parsable", "--output=/dev/null", "--mem=50", "--time=30")
    done = user.run("sbatch", *common, *options, stdin=SLEEP)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wing_comment(anchor: str, *, plan: int) -> str:
    terms = WingTerms(anchor_id=anchor, restart_count=0, plan=plan, token_sha256=HEX)
    return f"--comment={encode_wing_comment(terms)}"


def test_that_a_copy_counts_for_nobody_and_a_changed_wing_keeps_its_priority_until_it_is_cancelled(
    sandbox: Sandbox, users: tuple[User, User]
) -> None:
    ada, bob = users
    slurm = CommandClient(sandbox.runner())
    client = MergingClient(slurm)
    terms = JobTerms(token_sha256=HEX, user_id=ada.user_id, in_place=True)
    jobs: list[str] = []

    def shown(job_id: str) -> SlurmJob:
        found = slurm.read_job(job_id)
        assert found is not None
        return found

    try:
        anchor = sbatch(ada, f"--comment={encode_comment('', terms)}")
        jobs.append(anchor)
        start = sbatch(ada, "--gpus=1", wing_comment(anchor, plan=0))
        copy = sbatch(bob, "--gpus=2", wing_comment(anchor, plan=0))
        jobs += [start, copy]
        for number in jobs:
            wait_until(lambda n=number: shown(n).state is JobState.RUNNING, timeout_s=120, what="a start")  # type: ignore[misc]
        newcomer = sbatch(ada, "--gpus=1", "--nodelist=n3", "--begin=now+600", wing_comment(anchor, plan=5))
        odd = sbatch(
            bob, "--hold", "--gpus=1", f"--comment=pollux-wing/1:anchor={anchor},\nrestart=-1 \u0663"
        )
        jobs += [newcomer, odd]

        snapshot = client.snapshot()
        job = snapshot.job(anchor)
        assert job is not None
        assert [wing.job_id for wing in job.wings] == [start, newcomer]
        assert job.allocation.num_gpus == 1
        assert {copy, odd} <= {one.job_id for one in snapshot.jobs}

        watch = PrioritisedWings()
        watch.add(anchor, shown(newcomer))
        slurm.set_priority(newcomer, 4_000_000)
        refused = ada.run("scontrol", "update", f"JobId={newcomer}", "Priority=4100000")
        assert refused.returncode != 0 or shown(newcomer).priority == 4_000_000
        watch.check(client.snapshot(), {5}, client.cancel)
        assert shown(newcomer).state is JobState.PENDING

        # An owner may change nearly all of it, and the operator's priority stays.
        for change in ("Comment=mine", "NumNodes=1-2", "TimeLimit=10"):
            assert ada.run("scontrol", "update", f"JobId={newcomer}", change).returncode == 0
        assert shown(newcomer).priority == 4_000_000
        assert bob.run("scancel", newcomer).returncode != 0
        watch.check(client.snapshot(), {5}, client.cancel)
        assert shown(newcomer).state is JobState.CANCELLED
        assert shown(copy).state is JobState.RUNNING
    finally:
        cancel_all(slurm, jobs)
