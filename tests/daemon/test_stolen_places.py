"""Two real users on a real Slurm: what an owner makes of a job that moves does not go before others."""

from __future__ import annotations

import pytest

from pollux_slurm.agent.environment.token import new_token
from pollux_slurm.model import JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.harness import Agent
from tests.daemon.test_on_slurm import RealHarness
from tests.people import SLEEP, User, two_users
from tests.waiting import cancel_all, wait_until

pytestmark = pytest.mark.slow

# An owner may change these of a job that waits, and an operator's priority stays (22.05).
CHANGES = {
    **{"MinMemoryNode=8000": False, "MinMemoryNode=0": False, "MinCPUsNode=8": False},
    **{"TimeLimit=60": False, "MailUser=root": True},
}


def rigid(user: User, *options: str) -> str:
    given = ("--parsable", "--output=/dev/null", "--chdir=/", "--nodes=1", "--nodelist=n0", "--mem=100")
    done = user.run("sbatch", *given, *options, stdin=SLEEP)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_that_a_job_that_asks_for_more_than_its_place_does_not_keep_its_priority(
    clean_store: SqlStore, sandbox: Sandbox
) -> None:
    harness = RealHarness(clean_store, sandbox)
    with two_users(sandbox.env) as (ada, bob):
        # The whole node never gets free, so ada's other jobs wait.
        jobs, daemon = [rigid(ada, "--gpus=1")], harness.daemon()
        try:
            for change, keeps in CHANGES.items():
                token = new_token(bob.user_id)
                job_id = bob.submit("--chdir=/", "--gpus=2", "--nodelist=n0", "--time=30", token=token)
                harness.agents[job_id] = Agent(harness, job_id, token)
                harness.until(daemon, lambda one=job_id: harness.has_stepped(one), "the job to train")  # type: ignore[misc]
                waiting = rigid(ada, "--gpus=4")
                jobs += [job_id, waiting]
                wait_until(
                    lambda one=waiting: harness.job(one).priority,  # type: ignore[misc]
                    timeout_s=120,
                    what="the other job to wait",
                )
                harness.targets = {job_id: {"n0": 1}}
                harness.until(
                    daemon,
                    lambda: harness.is_at(Step.RELEASED) and bool(harness.store.journal.prioritised()),
                    "the priority",
                )
                # The begin time keeps it from starting before the next tick.
                done = bob.run("scontrol", "update", f"JobId={job_id}", "StartTime=now+60", change)
                assert done.returncode == 0, done.stderr
                harness.targets = {}
                daemon.tick()

                def goes_first(one: str = job_id, two: str = waiting) -> bool:
                    return (harness.job(one).priority or 0) > (harness.job(two).priority or 0)

                if not keeps:  # a tick may still use what it read just before the change
                    harness.until(daemon, lambda: not goes_first(), f"the priority's end after {change}")
                shown, other = harness.job(job_id), harness.job(waiting)
                assert (shown.state, other.state) == (JobState.PENDING, JobState.PENDING)
                assert goes_first() is keeps, change
                del harness.agents[job_id]
                for number in (job_id, waiting):
                    harness.slurm.cancel(number)
                wait_until(
                    lambda one=job_id: harness.job(one).state.is_over,  # type: ignore[misc]
                    timeout_s=120,
                    what="the end",
                )
                harness.until(daemon, lambda: not harness.open_moves(), "the journal to close")
                # The next one ends the place's reservation, which other tests would meet.
                daemon.tick()
        finally:
            cancel_all(harness.slurm, jobs)
