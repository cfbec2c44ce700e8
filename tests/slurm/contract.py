"""The contract of `SlurmClient`; `test_contract.py` runs it on a real Slurm and on the fake in memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from datetime import timedelta, timezone
from typing import Protocol

import pytest

from pollux_slurm.errors import JobStateError, LeaseLostError, SlurmCommandError, UsageError
from pollux_slurm.model import Allocation, JobShape, JobState, SlurmJob
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment

SIZE = ("--gpus=1", "--cpus-per-gpu=2", "--mem-per-gpu=1000")
HOSTILE = 'a "b" $(touch /tmp/x); `id` JobState=RUNNING\n  Comment=z | ü ☃ \x1b[31m \\'


class World(Protocol):
    """A cluster of n0, n1, n2 with four t4 each, and n3 with eight a100; every node 2 CPUs, 2048 MB a GPU."""

    client: SlurmClient

    def submit(self, *options: str, script: str = ...) -> str:
        """Submit a job that runs until it is stopped, or runs `script`."""

    def fail(self, job_id: str) -> None:
        """Make the running job's script end with an exit code that is not 0."""

    def wait_for(self, job_id: str, condition: Callable[[SlurmJob], bool], what: str) -> SlurmJob:
        """Let time pass until the job fulfils the condition, and return it then."""


class SlurmClientContract:
    """Subclasses give the fixture `world`."""

    # ------------------------------------------------------------------------------------------- helpers

    def running(self, world: World, *options: str) -> str:
        job_id = world.submit(*(options or SIZE))
        self.wait_running(world, job_id)
        return job_id

    def wait_running(self, world: World, job_id: str) -> SlurmJob:
        return world.wait_for(job_id, lambda job: job.state is JobState.RUNNING, "RUNNING")

    def requeued(self, world: World, job_id: str) -> SlurmJob:
        world.client.requeue_hold(job_id)
        return world.wait_for(job_id, lambda job: job.state is JobState.PENDING, "PENDING again")

    def moved(self, world: World, job_id: str, gpus_by_node: dict[str, int]) -> SlurmJob:
        self.requeued(world, job_id)
        world.client.reshape(job_id, JobShape.of(Allocation.of(gpus_by_node), cpus_per_gpu=2))
        world.client.release(job_id)
        return self.wait_running(world, job_id)

    def job(self, world: World, job_id: str) -> SlurmJob:
        job = world.client.read_job(job_id)
        assert job is not None
        return job

    # ------------------------------------------------------------------------------------------- reading

    def test_that_a_snapshot_shows_every_node(self, world: World) -> None:
        snapshot = world.client.snapshot()
        shown = [
            (node.name, node.gpu_type, node.num_gpus, node.num_cpus, node.memory_mb)
            for node in snapshot.nodes
        ]
        assert shown == [
            ("n0", "t4", 4, 8, 8192),
            ("n1", "t4", 4, 8, 8192),
            ("n2", "t4", 4, 8, 8192),
            ("n3", "a100", 8, 16, 16384),
        ]
        assert all(node.available and node.partitions == ("main",) for node in snapshot.nodes)
        assert snapshot.read_at.utcoffset() == timedelta(0)

    def test_that_a_running_job_and_its_nodes_show_the_same_resources(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE, "--job-name=train")
        world.client.reshape(job_id, JobShape(num_gpus=5, nodes=("n0", "n1"), cpus_per_gpu=2))
        world.client.release(job_id)
        self.wait_running(world, job_id)
        snapshot = world.client.snapshot()
        job = snapshot.job(job_id)
        assert job is not None
        assert job.name == "train"
        assert job.allocation == Allocation.of({"n0": 4, "n1": 1})
        assert job.cpus_by_node == (("n0", 8), ("n1", 2))
        assert job.memory_mb_by_node == (("n0", 4000), ("n1", 1000))
        assert (job.requested_gpus, job.num_cpus, job.restart_count) == (5, 10, 0)
        assert (job.cpus_per_gpu, job.memory_per_gpu_mb) == (2, 1000)
        assert job.unschedulable_reason is None
        used = {node.name: (node.used_gpus, node.used_cpus, node.used_memory_mb) for node in snapshot.nodes}
        assert used == {"n0": (4, 8, 4000), "n1": (1, 2, 1000), "n2": (0, 0, 0), "n3": (0, 0, 0)}

    def test_that_a_refresh_shows_these_jobs_and_the_nodes_as_they_are(self, world: World) -> None:
        moving, other = self.running(world), world.submit(*SIZE, "--nodelist=n2", f"--comment={HOSTILE}")
        self.wait_running(world, other)
        first = world.client.snapshot()
        self.requeued(world, moving)
        world.client.set_comment(other, "changed meanwhile")
        shown = world.client.refresh([moving])
        job, before = shown.job(moving), first.job(moving)
        assert job is not None
        assert before is not None
        assert (job.state, job.held, job.held_since_requeue) == (JobState.PENDING, True, True)
        assert (job.restart_count, job.allocation, job.started_at) == (1, Allocation(), None)
        assert (job.name, job.comment, job.cpus_per_gpu) == (before.name, before.comment, 2)
        assert shown.job(other) == first.job(other)
        assert sum(node.used_gpus for node in shown.nodes) == 1
        # Five GPUs on two nodes: text does not say how many on each, and what is guessed does not stay.
        world.client.reshape(moving, JobShape(num_gpus=5, nodes=("n0", "n1"), cpus_per_gpu=2))
        world.client.release(moving)
        self.wait_running(world, moving)
        world.client.refresh()
        shown = world.client.refresh([moving])
        assert (job := shown.job(moving)) is not None
        assert job.allocation == Allocation.of({"n0": 4, "n1": 1})
        world.client.cancel(moving)
        world.wait_for(moving, lambda job: job.state is JobState.CANCELLED, "CANCELLED")
        shown = world.client.refresh()
        assert [one.state for one in shown.jobs if one.job_id == moving] == [JobState.CANCELLED]
        assert (job := shown.job(other)) is not None
        assert (job.comment, job.allocation) == ("changed meanwhile", Allocation.of({"n2": 1}))
        assert world.client.refresh(["4000000"]).job("4000000") is None

    def test_that_times_are_aware_and_in_order(self, world: World) -> None:
        job = self.job(world, self.running(world))
        assert job.submitted_at is not None
        assert job.started_at is not None
        assert job.submitted_at.tzinfo is timezone.utc
        assert job.submitted_at <= job.started_at
        assert job.ended_at is None

    def test_that_a_cancelled_job_is_still_shown_and_owns_nothing(self, world: World) -> None:
        job_id = self.running(world)
        world.client.cancel(job_id)
        over = world.wait_for(job_id, lambda job: job.state is JobState.CANCELLED, "CANCELLED")
        assert over.ended_at is not None
        assert (over.allocation, over.cpus_by_node) == (Allocation(), ())
        assert world.client.snapshot().job(job_id) == over

    def test_that_settings_name_the_cluster(self, world: World) -> None:
        assert world.client.settings()["ClusterName"] in ("fake", "sandbox")

    def test_that_slurmctlds_clock_agrees_with_its_times(self, world: World) -> None:
        before = world.client.controller_time()
        job = world.client.read_job(self.running(world))
        assert job is not None
        assert job.submitted_at is not None
        assert before <= job.submitted_at <= world.client.controller_time()

    def test_that_an_unknown_job_is_none(self, world: World) -> None:
        assert world.client.read_job("4000000") is None

    @pytest.mark.parametrize("job_id", ["", "1 2", "all", "-1", "1;id", "1_2", "٣", "1" * 40])
    def test_that_a_malformed_job_id_is_refused(self, world: World, job_id: str) -> None:
        with pytest.raises(UsageError):
            world.client.release(job_id)

    # -------------------------------------------------------------------------------- priority, and wings

    def test_that_a_waiting_job_gets_a_priority(self, world: World) -> None:
        self.running(world, "--gpus=8", "--nodelist=n3")
        job_id = world.submit("--gpus=8", "--nodelist=n3")
        for priority in (7, 4_000_000):
            world.client.set_priority(job_id, priority)
            assert self.job(world, job_id).priority == priority
        assert self.job(world, job_id).state is JobState.PENDING

    def test_that_a_priority_releases_no_held_job_and_is_none_of_a_running_one(self, world: World) -> None:
        held, running = world.submit("--hold", *SIZE), self.running(world)
        for job_id in (held, running, "4000000"):
            with pytest.raises(JobStateError):
                world.client.set_priority(job_id, 5)
        assert self.job(world, held).held

    def test_that_a_priority_is_taken_off_a_job_that_waits_or_runs(self, world: World) -> None:
        """`scontrol release` does so, and holds nothing (22.05.8)."""
        before = self.running(world, "--gpus=8", "--nodelist=n3")
        job_id = world.submit("--gpus=8", "--nodelist=n3")
        ordinary = self.job(world, job_id).priority or 0
        world.client.set_priority(job_id, 4_294_967_200)
        world.client.restore_priority(job_id)
        waiting = self.job(world, job_id)
        assert (waiting.state, waiting.held) == (JobState.PENDING, False)
        assert 0 < (waiting.priority or 0) <= ordinary
        world.client.set_priority(job_id, 4_294_967_200)
        world.client.cancel(before)
        self.wait_running(world, job_id)
        assert self.job(world, job_id).priority == 4_294_967_200
        world.client.restore_priority(job_id)
        running = self.job(world, job_id)
        assert (running.state, running.held) == (JobState.RUNNING, False)
        assert 0 < (running.priority or 0) <= ordinary

    def test_that_a_held_job_stays_held_and_an_ended_one_is_refused(self, world: World) -> None:
        held = world.submit("--hold", *SIZE)
        world.client.restore_priority(held)
        assert self.job(world, held).held
        world.client.cancel(held)
        with pytest.raises(JobStateError):
            world.client.restore_priority(held)

    def test_that_a_reservation_keeps_others_from_a_node_until_it_ends(self, world: World) -> None:
        world.client.create_reservation("pollux_1_1", ["n3"], minutes=2)
        try:
            job_id = world.submit("--gpus=8", "--nodelist=n3")
            waits = world.wait_for(
                job_id, lambda job: job.reason not in ("None", ""), "a reason why the job waits"
            )
            assert waits.state is JobState.PENDING
        finally:
            world.client.delete_reservation("pollux_1_1")
        self.wait_running(world, job_id)
        with pytest.raises(SlurmCommandError):
            world.client.delete_reservation("pollux_1_1")

    @pytest.mark.parametrize("priority", [0, -1])
    def test_that_a_priority_with_another_meaning_is_refused(self, world: World, priority: int) -> None:
        job_id = world.submit("--hold", *SIZE)
        with pytest.raises(UsageError):
            world.client.set_priority(job_id, priority)

    def test_that_a_wing_may_be_reshaped_although_it_may_not_be_requeued(self, world: World) -> None:
        terms = WingTerms(anchor_id="1", restart_count=1, plan=0, token_sha256="ab" * 32)
        options = ("--no-requeue", "--begin=now+120", f"--comment={encode_wing_comment(terms)}")
        wing = self.job(world, world.submit(*SIZE, *options))
        assert (wing.state, wing.unschedulable_reason) == (JobState.PENDING, None)
        shape = JobShape.of(Allocation.of({"n1": 2}), cpus_per_gpu=2)
        world.client.reshape(wing.job_id, shape, known=dataclasses.replace(wing, begins_at=None))
        assert self.wait_running(world, wing.job_id).allocation == Allocation.of({"n1": 2})

    # ------------------------------------------------------------------------------------ hold and release

    def test_that_a_held_job_starts_when_it_is_released(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE)
        held = self.job(world, job_id)
        assert (held.state, held.held, held.started_at) == (JobState.PENDING, True, None)
        world.client.hold(job_id)
        world.client.release(job_id)
        self.wait_running(world, job_id)
        world.client.release(job_id)
        assert self.job(world, job_id).state is JobState.RUNNING

    def test_that_a_waiting_job_can_be_held(self, world: World) -> None:
        job_id = self.waiting(world)
        world.client.hold(job_id)
        assert self.job(world, job_id).held
        world.client.release(job_id)
        assert not self.job(world, job_id).held

    def waiting(self, world: World) -> str:
        """Return a job that waits for n3, the only node that is large enough, which another job has."""
        self.running(world, "--gres=gpu:8")
        job_id = world.submit("--gres=gpu:8")
        waiting = world.wait_for(job_id, lambda job: job.reason == "Resources", "waiting for n3")
        assert (waiting.state, waiting.held) == (JobState.PENDING, False)
        return job_id

    def test_that_a_running_job_cannot_be_held(self, world: World) -> None:
        job_id = self.running(world)
        with pytest.raises(JobStateError, match=job_id):
            world.client.hold(job_id)
        job = self.job(world, job_id)
        assert (job.state, job.held) == (JobState.RUNNING, False)

    @pytest.mark.parametrize("method", ["hold", "release", "requeue_hold"])
    def test_that_a_job_that_is_over_is_left_alone(self, world: World, method: str) -> None:
        job_id = world.submit("--hold", *SIZE)
        world.client.cancel(job_id)
        with pytest.raises(JobStateError, match=job_id):
            getattr(world.client, method)(job_id)

    @pytest.mark.parametrize("method", ["hold", "release", "requeue_hold"])
    def test_that_an_unknown_job_cannot_be_changed(self, world: World, method: str) -> None:
        with pytest.raises(JobStateError, match="4000000"):
            getattr(world.client, method)("4000000")

    # ------------------------------------------------------------------------------------------- requeue

    def test_that_a_requeued_job_waits_held_with_one_more_restart(self, world: World) -> None:
        job_id = self.running(world)
        began = world.client.snapshot().read_at
        job = self.requeued(world, job_id)
        assert (job.held, job.restart_count, job.allocation, job.started_at) == (True, 1, Allocation(), None)
        # The begin time of the next start is computed from this time of the kill, in whole seconds.
        assert job.submitted_at is not None
        assert job.submitted_at > began - timedelta(seconds=1)

    def test_that_only_a_running_job_can_be_requeued(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE)
        with pytest.raises(JobStateError, match=job_id):
            world.client.requeue_hold(job_id)
        assert self.job(world, job_id).restart_count == 0

    def test_that_a_job_submitted_with_no_requeue_is_unschedulable(self, world: World) -> None:
        job_id = self.running(world, "--no-requeue", *SIZE)
        assert "requeue" in (self.job(world, job_id).unschedulable_reason or "")
        with pytest.raises(SlurmCommandError, match=job_id):
            world.client.requeue_hold(job_id)
        assert self.job(world, job_id).state is JobState.RUNNING

    def test_that_a_job_of_another_run_is_not_requeued(self, world: World) -> None:
        job_id = self.running(world)
        with pytest.raises(JobStateError, match=job_id):
            world.client.requeue_hold(job_id, restart_count=1)
        assert self.job(world, job_id).state is JobState.RUNNING
        world.client.requeue_hold(job_id, restart_count=0)
        job = world.wait_for(job_id, lambda job: job.state is JobState.PENDING, "PENDING again")
        assert job.restart_count == 1

    def test_that_a_job_goes_back_into_the_queue_as_it_is(self, world: World) -> None:
        job_id = self.running(world)
        with pytest.raises(JobStateError, match=job_id):
            world.client.requeue(job_id, restart_count=1)
        world.client.requeue(job_id, restart_count=0)
        job = world.wait_for(job_id, lambda job: job.state is JobState.PENDING, "PENDING again")
        assert (job.held, job.restart_count) == (False, 1)

    def test_that_only_a_job_that_failed_in_that_run_is_brought_back(self, world: World) -> None:
        job_id = self.running(world)
        with pytest.raises(JobStateError, match=job_id):
            world.client.requeue_failed(job_id, restart_count=0)
        self.fail(world, job_id)
        with pytest.raises(JobStateError, match=job_id):
            world.client.requeue_failed(job_id, restart_count=1)
        world.client.requeue_failed(job_id, restart_count=0)
        job = world.wait_for(job_id, lambda job: job.state is JobState.PENDING, "PENDING again")
        assert (job.held, job.restart_count) == (True, 1)
        world.client.reshape(job_id, JobShape(num_gpus=2, nodes=("n1",), cpus_per_gpu=2))
        world.client.release(job_id)
        assert self.wait_running(world, job_id).allocation == Allocation.of({"n1": 2})

    def test_that_a_shape_for_a_job_as_it_was_in_another_run_is_refused(self, world: World) -> None:
        running = self.job(world, self.running(world))
        requeued = self.requeued(world, running.job_id)
        shape = JobShape(num_gpus=1, nodes=("n2",), cpus_per_gpu=2)
        with pytest.raises(JobStateError, match=running.job_id):
            world.client.reshape(running.job_id, shape, known=running)
        world.client.reshape(running.job_id, shape, known=requeued)
        world.client.release(running.job_id)
        assert self.wait_running(world, running.job_id).allocation == Allocation.of({"n2": 1})

    def fail(self, world: World, job_id: str) -> None:
        """Let the running job end with an exit code that is not 0."""
        world.fail(job_id)
        world.wait_for(job_id, lambda job: job.state is JobState.FAILED, "FAILED")

    # ---------------------------------------------------------------------------------------- begin time

    def test_that_a_job_with_a_begin_time_waits_unheld_until_it_is_reshaped(self, world: World) -> None:
        requeued = self.requeued(world, self.running(world))
        before = world.client.snapshot().read_at
        world.client.set_begin_time(requeued.job_id, ahead_s=900)
        world.client.release(requeued.job_id)
        job = self.job(world, requeued.job_id)
        assert (job.state, job.held) == (JobState.PENDING, False)
        assert job.begins_at is not None
        after = world.client.snapshot().read_at
        # In whole seconds.
        assert before + timedelta(seconds=899) <= job.begins_at <= after + timedelta(seconds=900)
        world.client.hold(job.job_id)
        assert self.job(world, job.job_id).begins_at == job.begins_at
        world.client.reshape(job.job_id, JobShape(num_gpus=1, nodes=("n2",), cpus_per_gpu=2))
        world.client.release(job.job_id)
        assert self.wait_running(world, job.job_id).allocation == Allocation.of({"n2": 1})

    def test_that_a_job_starts_by_itself_at_its_begin_time(self, world: World) -> None:
        requeued = self.requeued(world, self.running(world))
        world.client.set_begin_time(requeued.job_id, ahead_s=3)
        world.client.release(requeued.job_id)
        assert self.wait_running(world, requeued.job_id).begins_at is None

    def test_that_a_job_is_given_what_is_left_of_its_time(self, world: World) -> None:
        requeued = self.requeued(world, self.running(world, *SIZE, "--time=50"))
        world.client.reshape(requeued.job_id, JobShape(num_gpus=1, nodes=("n1",), time_limit_s=1810.0))
        assert self.job(world, requeued.job_id).time_limit_s == 1860.0
        world.client.set_begin_time(requeued.job_id, ahead_s=900, time_limit_s=60.0)
        assert self.job(world, requeued.job_id).time_limit_s == 60.0
        world.client.set_begin_time(requeued.job_id, ahead_s=1)
        assert self.job(world, requeued.job_id).time_limit_s == 60.0

    def test_that_a_job_without_a_time_limit_has_none_before_and_after_its_start(self, world: World) -> None:
        job_id = world.submit("--hold", "--gpus=1")
        assert self.job(world, job_id).time_limit_s is None
        world.client.release(job_id)
        running = world.wait_for(job_id, lambda job: job.state is JobState.RUNNING, "running")
        assert running.time_limit_s is None

    def test_that_a_running_job_cannot_be_given_a_begin_time(self, world: World) -> None:
        job_id = self.running(world)
        with pytest.raises(JobStateError, match=job_id):
            world.client.set_begin_time(job_id, ahead_s=900)
        assert self.job(world, job_id).state is JobState.RUNNING

    # --------------------------------------------------------------------------------------------- guard

    def test_that_what_the_guard_raises_stops_every_command(self, world: World) -> None:
        def refuse() -> None:
            raise LeaseLostError("not ours any more")

        client = world.client.guarded(refuse)
        running, held = self.running(world), world.submit("--hold", *SIZE)
        before = self.job(world, running), self.job(world, held)
        with pytest.raises(LeaseLostError):
            client.requeue_hold(running)
        with pytest.raises(LeaseLostError):
            client.reshape(held, JobShape(num_gpus=1))
        with pytest.raises(LeaseLostError):
            client.set_begin_time(held, ahead_s=60)
        with pytest.raises(LeaseLostError):
            client.release(held)
        assert (self.job(world, running), self.job(world, held)) == before

    # ------------------------------------------------------------------------------------------- reshape

    def test_that_a_job_is_moved_to_uneven_then_even_then_fewer_nodes(self, world: World) -> None:
        job_id = self.running(world)
        for restart, target in enumerate(({"n0": 4, "n1": 1}, {"n0": 2, "n1": 2}, {"n3": 3}), start=1):
            job = self.moved(world, job_id, target)
            assert job.allocation == Allocation.of(target)
            assert job.restart_count == restart
            assert job.cpus_by_node == tuple((name, 2 * gpus) for name, gpus in sorted(target.items()))
            assert job.memory_mb_by_node == tuple(
                (name, 1000 * gpus) for name, gpus in sorted(target.items())
            )

    def test_that_without_nodes_any_one_node_will_do(self, world: World) -> None:
        job_id = self.running(world)
        self.moved(world, job_id, {"n1": 2, "n2": 2})
        self.requeued(world, job_id)
        world.client.reshape(job_id, JobShape(num_gpus=3, cpus_per_gpu=2))
        world.client.release(job_id)
        job = self.wait_running(world, job_id)
        assert (job.allocation.num_nodes, job.allocation.num_gpus) == (1, 3)

    def test_that_a_reshaped_job_starts_no_sooner_than_two_seconds_after_its_kill(self, world: World) -> None:
        requeued = self.requeued(world, self.running(world))
        world.client.reshape(requeued.job_id, JobShape(num_gpus=1, nodes=("n0",), cpus_per_gpu=2))
        world.client.release(requeued.job_id)
        job = self.wait_running(world, requeued.job_id)
        assert job.started_at is not None
        assert requeued.submitted_at is not None
        assert job.started_at - requeued.submitted_at >= timedelta(seconds=2)

    def test_that_a_running_job_is_not_reshaped(self, world: World) -> None:
        job_id = self.running(world, "--gpus=8", "--nodes=2")
        before = self.job(world, job_id)
        with pytest.raises(JobStateError, match=job_id):
            world.client.reshape(job_id, JobShape(num_gpus=1, nodes=(before.allocation.nodes[0],)))
        assert self.job(world, job_id) == before

    def test_that_a_waiting_job_is_reshaped_without_a_hold(self, world: World) -> None:
        """So a hold of a waiting job is always somebody else's."""
        job_id = self.waiting(world)
        world.client.reshape(job_id, JobShape(num_gpus=1, nodes=("n0",)))
        assert not self.job(world, job_id).held
        assert self.wait_running(world, job_id).allocation == Allocation.of({"n0": 1})

    @pytest.mark.parametrize(
        "shape",
        [
            JobShape(num_gpus=0),
            JobShape(num_gpus=1, nodes=("n0", "n1")),
            JobShape(num_gpus=1, cpus_per_gpu=0),
        ],
    )
    def test_that_a_shape_no_job_can_have_is_refused(self, world: World, shape: JobShape) -> None:
        with pytest.raises(UsageError):
            world.client.reshape(world.submit("--hold", *SIZE), shape)

    def test_that_a_node_that_is_not_there_is_refused(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE)
        with pytest.raises(SlurmCommandError, match=job_id):
            world.client.reshape(job_id, JobShape(num_gpus=1, nodes=("n99",)))
        world.client.reshape(job_id, JobShape(num_gpus=1, nodes=("n1",), cpus_per_gpu=2))
        world.client.release(job_id)
        assert self.wait_running(world, job_id).allocation == Allocation.of({"n1": 1})

    # ------------------------------------------------------------------------- comment, cancel, submit

    @pytest.mark.parametrize("comment", [HOSTILE, "", "plain", "--help", "  spaces  "])
    def test_that_a_comment_comes_back_as_it_was_set(self, world: World, comment: str) -> None:
        job_id = world.submit("--hold", *SIZE, "--comment=before")
        assert self.job(world, job_id).comment == "before"
        world.client.set_comment(job_id, comment)
        assert self.job(world, job_id).comment == comment

    def test_that_a_hostile_name_and_comment_confuse_no_field(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE, f"--job-name={HOSTILE}", f"--comment={HOSTILE}")
        job = world.client.snapshot().job(job_id)
        assert job is not None
        assert (job.name, job.comment, job.state, job.requested_gpus) == (
            HOSTILE,
            HOSTILE,
            JobState.PENDING,
            1,
        )

    def test_that_the_comment_of_a_job_that_is_over_cannot_be_set(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE)
        world.client.cancel(job_id)
        with pytest.raises(JobStateError, match=job_id):
            world.client.set_comment(job_id, "too late")

    def test_that_cancelling_twice_or_nobody_is_no_error(self, world: World) -> None:
        job_id = world.submit("--hold", *SIZE)
        world.client.cancel(job_id)
        world.client.cancel(job_id)
        assert self.job(world, job_id).state is JobState.CANCELLED
        world.client.cancel("4000000")

    def test_that_an_empty_script_is_refused(self, world: World) -> None:
        with pytest.raises(UsageError):
            world.client.submit("\n", [], [], dict(os.environ))

    def test_that_slurms_own_words_come_with_a_refused_submission(self, world: World) -> None:
        with pytest.raises(SlurmCommandError, match="not available"):
            world.submit("--gpus=4000")
