"""What a client asks of Slurm for an anchor and its wings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pollux_slurm.errors import JobStateError
from pollux_slurm.model import Allocation, JobShape, JobState, JobTerms, SlurmJob
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment
from tests.fakes.slurm import FakeClock, FakeSlurm, fake_node

HEX = "ab" * 32


class Site:
    """An anchor that runs, and its wings."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.slurm = FakeSlurm([fake_node("n0"), fake_node("n1")], clock=self.clock)
        self.client = MergingClient(self.slurm)
        terms = JobTerms(token_sha256=HEX, user_id=1000, in_place=True)
        self.anchor = self.slurm.submit("#!/bin/sh", [f"--comment={encode_comment('', terms)}"], [], {})
        self.clock.advance(5)

    def wing(self, gpus: int, *options: str, restart: int = 0, plan: int = 0) -> str:
        terms = WingTerms(anchor_id=self.anchor, restart_count=restart, plan=plan, token_sha256=HEX)
        comment = f"--comment={encode_wing_comment(terms)}"
        wing = self.slurm.submit("#!/bin/sh", [f"--gpus={gpus}", comment, *options], [], {})
        self.clock.advance(5)
        return wing

    def job(self) -> SlurmJob:
        found = self.client.snapshot().job(self.anchor)
        assert found is not None
        return found

    def state(self, job_id: str) -> JobState:
        found = self.slurm.read_job(job_id)
        assert found is not None
        return found.state


@pytest.fixture
def site() -> Site:
    return Site()


def test_that_wings_are_no_jobs_of_their_own(site: Site) -> None:
    wings = [site.wing(2), site.wing(1, plan=1)]
    assert [job.job_id for job in site.client.snapshot().jobs] == [site.anchor]
    assert site.client.read_job(site.anchor) == site.job()
    assert (site.job().state, site.job().allocation.num_gpus) == (JobState.RUNNING, 3)
    # A wing itself asks for its own GPUs.
    own = site.client.read_job(wings[1])
    assert own is not None
    assert own.allocation.num_gpus == 1


def test_that_a_requeue_cancels_all_wings_of_that_start_and_leaves_the_anchor(site: Site) -> None:
    wings = [site.wing(2), site.wing(1, plan=1)]
    assert site.job().restart_count == 0
    site.client.guarded(lambda: None).requeue_hold(site.anchor, restart_count=0)
    site.clock.advance(60)
    assert [site.state(one) for one in (site.anchor, *wings)] == [
        JobState.RUNNING,
        JobState.CANCELLED,
        JobState.CANCELLED,
    ]
    assert site.job().state is JobState.COMPLETING


def test_that_a_late_requeue_reaches_no_other_start(site: Site) -> None:
    site.wing(2)
    site.job()
    later = site.wing(2, restart=1)
    site.client.requeue(site.anchor, restart_count=0)
    assert site.state(later) is JobState.RUNNING
    site.job()
    with pytest.raises(JobStateError, match="in start 2 of its training; nothing was changed"):
        site.client.requeue_hold(site.anchor, restart_count=0)
    assert site.state(later) is JobState.RUNNING


def test_that_a_lost_lease_keeps_wings_from_being_cancelled(site: Site) -> None:
    wing = site.wing(2)
    site.job()

    def refuse() -> None:
        raise JobStateError("the lease was lost")

    with pytest.raises(JobStateError, match="the lease was lost"):
        site.client.guarded(refuse).requeue_hold(site.anchor, restart_count=0)
    assert site.state(wing) is JobState.RUNNING


def test_that_a_wing_that_waits_gets_the_jobs_new_shape(site: Site) -> None:
    waiting = site.wing(1, "--hold", restart=1)
    job = site.job()
    assert (job.state, job.held, job.restart_count) == (JobState.PENDING, True, 1)
    target = Allocation.of({"n1": 3})
    site.client.reshape(site.anchor, JobShape.of(target), known=job)
    site.client.release(site.anchor)
    site.clock.advance(60)
    assert site.state(waiting) is JobState.RUNNING
    assert (site.job().state, site.job().allocation) == (JobState.RUNNING, target)


def test_that_a_begin_time_and_a_hold_are_those_of_the_wing_that_waits(site: Site) -> None:
    site.slurm.set_node("n0", available=False)
    site.slurm.set_node("n1", available=False)
    waiting = site.wing(1, restart=2)
    assert site.job().state is JobState.PENDING
    site.client.set_begin_time(site.anchor, ahead_s=600)
    site.client.hold(site.anchor)
    found = site.slurm.read_job(waiting)
    assert found is not None
    assert found.held
    assert found.begins_at is not None
    assert (found.begins_at - site.clock()).total_seconds() == 600
    assert site.state(site.anchor) is JobState.RUNNING


def test_that_a_wing_gets_its_shape_before_the_two_minutes_of_its_anchor_are_over(site: Site) -> None:
    waiting = site.wing(1, "--begin=now+120", "--no-requeue", restart=1)
    assert site.job().state is JobState.PENDING
    site.client.reshape(site.anchor, JobShape.of(Allocation.of({"n1": 2})), known=site.job())
    site.clock.advance(3)
    assert site.state(waiting) is JobState.RUNNING


def test_that_there_is_nothing_to_do_between_two_starts(site: Site) -> None:
    site.wing(2)
    site.job()
    site.client.requeue_hold(site.anchor, restart_count=0)
    site.clock.advance(5)
    job = site.job()
    assert job.state is JobState.COMPLETING
    site.client.release(site.anchor)
    for refused in (
        lambda: site.client.hold(site.anchor),
        lambda: site.client.set_begin_time(site.anchor, ahead_s=5),
        lambda: site.client.reshape(site.anchor, JobShape(num_gpus=1), known=job),
        lambda: site.client.requeue_hold(site.anchor, restart_count=0),
    ):
        with pytest.raises(JobStateError):
            refused()
    assert site.state(site.anchor) is JobState.RUNNING


def test_that_an_anchor_that_waits_itself_is_held_and_released_and_never_reshaped(site: Site) -> None:
    left = site.wing(1, "--hold", restart=1)
    site.slurm.requeue(site.anchor, restart_count=0)
    site.clock.advance(5)
    job = site.job()
    assert job.state is JobState.PENDING
    site.client.hold(site.anchor)
    assert site.job().held
    site.client.set_begin_time(site.anchor, ahead_s=900)
    with pytest.raises(JobStateError, match="no wing of it waits"):
        site.client.reshape(site.anchor, JobShape(num_gpus=1), known=job)
    site.client.release(site.anchor)
    found, wing = site.slurm.read_job(site.anchor), site.slurm.read_job(left)
    assert found is not None
    assert wing is not None
    assert (found.held, found.begins_at) == (False, site.clock() + timedelta(seconds=900))
    assert (wing.held, wing.requested_gpus) == (True, 1)


def test_that_an_anchor_whose_wings_are_forgotten_is_never_reshaped(site: Site) -> None:
    site.slurm.forget(site.wing(1))
    site.slurm.requeue(site.anchor, restart_count=0)
    site.clock.advance(5)
    with pytest.raises(JobStateError, match="no wing of it waits"):
        site.client.reshape(site.anchor, JobShape(num_gpus=1), known=site.job())


def test_that_a_wing_by_its_own_number_is_that_wing_alone(site: Site) -> None:
    first, joining = site.wing(2), site.wing(1, "--nodelist=n1", "--begin=now+60", plan=4)
    site.job()
    site.client.set_priority(joining, 4_000_000)
    found = site.slurm.read_job(joining)
    assert found is not None
    assert found.priority == 4_000_000
    site.client.cancel(joining)
    assert [site.state(one) for one in (first, joining)] == [JobState.RUNNING, JobState.CANCELLED]
    site.client.cancel(first)
    site.clock.advance(5)
    assert [site.state(one) for one in (site.anchor, first)] == [JobState.RUNNING, JobState.CANCELLED]


def test_that_to_cancel_the_job_is_to_cancel_the_anchor(site: Site) -> None:
    wing = site.wing(1)
    site.job()
    site.client.cancel(site.anchor)
    site.clock.advance(60)
    assert site.state(site.anchor) is JobState.CANCELLED
    assert site.state(wing) is JobState.RUNNING


def test_that_other_jobs_are_requeued_as_ever(site: Site) -> None:
    site.wing(1)
    other = site.slurm.submit("#!/bin/sh", ["--gpus=1"], [], {})
    site.clock.advance(5)
    site.job()
    site.client.requeue_hold(other, restart_count=0)
    site.clock.advance(60)
    found = site.client.read_job(other)
    assert found is not None
    assert (found.state, found.held, found.restart_count) == (JobState.PENDING, True, 1)


def test_that_a_requeue_takes_the_anchor_along_where_it_must_leave_its_node(site: Site) -> None:
    wing = site.wing(2)
    site.slurm.set_job(site.anchor, cpus_by_node=(("n1", 1),))
    site.slurm.set_node("n1", available=False, draining=True)
    assert site.job().anchor_leaves_because == "its anchor leaves n1, which is drained"
    site.client.requeue_hold(site.anchor, restart_count=0)
    site.clock.advance(60)
    assert (site.state(site.anchor), site.state(wing)) == (JobState.PENDING, JobState.RUNNING)
    # The wing ends by itself: nothing more is done until it has.
    assert site.job().state is JobState.COMPLETING
    site.slurm.finish(wing, exit_code=143)
    assert (site.job().state, site.job().held) == (JobState.PENDING, False)


def test_that_a_job_that_is_submitted_again_and_again_moves_anchors_once_an_hour(site: Site) -> None:
    site.wing(2)
    site.slurm.refuses = lambda shape: "Resources" if shape.num_gpus == 1 else None
    guarded = site.client.guarded(lambda: None)

    def leaves_for_a_new_job() -> str | None:
        site.slurm.set_job(site.anchor, cpus_by_node=(("n1", 1),), state=JobState.RUNNING)
        waiting = site.slurm.submit("#!/bin/sh", ["--gpus=1"], [], {})
        site.slurm.set_job(waiting, exclusive=True, user_id=7)
        found = site.job().anchor_leaves_because
        if found is not None:
            assert found.endswith(f"for which job {waiting} waits")
            assert site.job().anchor_leaves_because == found, "until it has left"
            guarded.requeue(site.anchor, restart_count=0)
        site.slurm.cancel(waiting)
        return found

    def wait(minutes: int) -> None:
        for _ in range(minutes):
            site.clock.advance(60)
            site.job()

    wait(3)
    assert leaves_for_a_new_job() is not None
    wait(59)
    assert leaves_for_a_new_job() is None
    wait(1)
    assert leaves_for_a_new_job() is not None
