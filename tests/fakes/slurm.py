"""A Slurm in memory with the contract of `pollux_slurm.slurm.client`, on a clock that the test moves.

    clock = FakeClock()
    slurm = FakeSlurm([fake_node("n0"), fake_node("n1")], clock=clock)
    job_id = slurm.submit("#!/bin/sh", ["--gpus=1", "--comment=..."], [], {})
    clock.advance(1)
    slurm.finish(job_id)

Time passes only when the clock is moved; what is due then happens at the next call. Faults: `slurm.down`
makes every call fail as with a dead slurmctld, `slurm.fail("release", error)` the next call of one method,
and `slurm.before["reshape"] = function` runs just before that method acts, as another hand would.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from pollux_slurm.errors import JobStateError, SlurmCommandError, SlurmError, SlurmUnavailable, UsageError
from pollux_slurm.model import Allocation, ClusterSnapshot, JobShape, JobState, SlurmJob, SlurmNode
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment

REQUEUE_DELAY_S = 121.0
START_DELAY_S = 2.0


class FakeClock:
    """An aware UTC time that stands still until it is moved."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)) -> None:
        self.now = start

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def fake_node(
    name: str, *, num_gpus: int = 4, gpu_type: str | None = "t4", num_cpus: int = 8, memory_mb: int = 8192
) -> SlurmNode:
    """Return an idle node."""
    return SlurmNode(
        name=name,
        gpu_type=gpu_type,
        num_gpus=num_gpus,
        used_gpus=0,
        num_cpus=num_cpus,
        used_cpus=0,
        memory_mb=memory_mb,
        used_memory_mb=0,
        available=True,
        state="idle",
        partitions=("main",),
    )


@dataclass(slots=True, kw_only=True)
class _Job:
    shown: SlurmJob
    shape: JobShape
    cpus_per_gpu: int
    memory_per_gpu_mb: int
    eligible_at: datetime
    killed_until: datetime | None = None
    after_kill: JobState = JobState.PENDING
    held_after_kill: bool = True


class FakeSlurm:
    """A `SlurmClient`. A killed job is COMPLETING for `kill_s`; a job starts `start_s` after it may."""

    def __init__(
        self,
        nodes: Sequence[SlurmNode],
        *,
        clock: Callable[[], datetime],
        kill_s: float = 0.0,
        start_s: float = 0.0,
        user_name: str = "alice",
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.clock = clock  # slurmctld's
        self.host_clock = clock  # of the host that asks
        self.kill_s = kill_s
        self.start_s = start_s
        self.user_name = user_name
        self.down = False
        self.before: dict[str, Callable[[], None]] = {}
        # Called between the check of a job's state and the effect of the command that was named.
        self.on_command: Callable[[str], None] = lambda _method: None
        # Slurm's reason for not starting a released job in a shape; with BadConstraints it holds the job.
        self.refuses: Callable[[JobShape], str | None] = lambda _shape: None
        # In strict order, a requeued job goes to the end of the queue, and nobody passes one that waits.
        self.in_strict_order = False
        self.configured = "MaxNodes=1"
        self.site = {"ClusterName": "fake"}
        self.reservations: dict[str, tuple[str, ...]] = {}
        self.calls: list[tuple[str, str]] = []
        self._failures: dict[str, SlurmError] = {}
        self._jobs: dict[str, _Job] = {}
        self._next_id = 1
        self._last_priority = 1_000_000
        self._last_read: ClusterSnapshot | None = None

    # --------------------------------------------------------------------------------- set by the test

    def fail(self, method: str, error: SlurmError) -> None:
        """Let the next call of `method` raise `error` without effect."""
        self._failures[method] = error

    def finish(self, job_id: str, *, exit_code: int = 0) -> None:
        """End a running job by itself."""
        state = JobState.COMPLETED if exit_code == 0 else JobState.FAILED
        self._end(self._jobs[job_id], state, exit_code)

    def set_node(self, name: str, **changes: object) -> None:
        """Change what a node shows, such as `available=False` or `num_gpus=2`."""
        self.nodes[name] = dataclasses.replace(self.nodes[name], **changes)  # type: ignore[arg-type]

    def set_job(self, job_id: str, **changes: object) -> None:
        """Change a job externally."""
        job = self._jobs[job_id]
        job.shown = dataclasses.replace(job.shown, **changes)  # type: ignore[arg-type]

    def forget(self, job_id: str) -> None:
        """Drop a job, as slurmctld does MinJobAge after its end."""
        del self._jobs[job_id]

    # ------------------------------------------------------------------------------------------- reading

    def version(self) -> str:
        self._enter("version")
        return "22.05.8"

    def settings(self) -> Mapping[str, str]:
        self._enter("settings")
        return self.site

    def configuration(self) -> str:
        self._enter("configuration")
        return self.configured

    def controller_time(self) -> datetime:
        self._enter("controller_time")
        return self.clock().replace(microsecond=0)

    def snapshot(self) -> ClusterSnapshot:
        self._enter("snapshot")
        self._last_read = ClusterSnapshot(
            read_at=self.host_clock(),
            nodes=self._nodes_now(),
            jobs=tuple(job.shown for job in self._jobs.values()),
        )
        return self._last_read

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        """Read the nodes and these jobs; the others are as they were read last."""
        if self._last_read is None or job_ids is None:
            return self.snapshot()
        self._enter("refresh")
        rest = {job.job_id: job for job in self._last_read.jobs if job.job_id not in job_ids}
        now = {job_id: job.shown for job_id, job in self._jobs.items() if job_id in job_ids}
        self._last_read = ClusterSnapshot(
            read_at=self.host_clock(), nodes=self._nodes_now(), jobs=tuple((rest | now).values())
        )
        return self._last_read

    def read_job(self, job_id: str) -> SlurmJob | None:
        self._enter("read_job", job_id)
        job = self._jobs.get(job_id)
        return job.shown if job is not None else None

    # ------------------------------------------------------------------------------------------ changing

    def guarded(self, guard: Callable[[], None]) -> SlurmClient:
        return _Guarded(self, guard)  # type: ignore[return-value]

    def requeue_hold(self, job_id: str, *, restart_count: int | None = None) -> None:
        self._requeue(job_id, restart_count, hold=True)

    def requeue(self, job_id: str, *, restart_count: int) -> None:
        self._requeue(job_id, restart_count, hold=False)

    def _requeue(self, job_id: str, restart_count: int | None, *, hold: bool) -> None:
        self._enter("requeue_hold", job_id)
        job = self._expect(job_id, JobState.RUNNING)
        if restart_count not in (None, job.shown.restart_count):
            raise JobStateError(f"job {job_id} has been requeued {job.shown.restart_count} times")
        self.on_command("requeue_hold")
        job = self._expect(job_id, JobState.RUNNING)  # as Slurm itself refuses
        if job.shown.unschedulable_reason is not None:
            raise SlurmCommandError(f"job {job_id}: Requested operation is presently disabled")
        self._kill(job, JobState.PENDING, hold=hold)

    def requeue_failed(self, job_id: str, *, restart_count: int) -> None:
        self._enter("requeue_failed", job_id)
        job = self._expect(job_id, JobState.FAILED)
        if job.shown.restart_count != restart_count:
            raise JobStateError(f"job {job_id} has been requeued {job.shown.restart_count} times")
        job.shown = dataclasses.replace(job.shown, ended_at=None, exit_code=None)
        self._kill(job, JobState.PENDING)

    def set_begin_time(self, job_id: str, *, ahead_s: float, time_limit_s: float | None = None) -> None:
        self._enter("set_begin_time", job_id)
        if not ahead_s > 0:
            raise UsageError(f"job {job_id}: cannot be given a begin time in {ahead_s:g} s")
        job = self._expect(job_id, JobState.PENDING)
        self.on_command("set_begin_time")
        job = self._expect(job_id, JobState.PENDING)  # as Slurm itself refuses
        job.eligible_at = self.clock() + timedelta(seconds=ahead_s)
        job.shown = dataclasses.replace(job.shown, begins_at=job.eligible_at)
        self._limit(job, time_limit_s)

    @staticmethod
    def _limit(job: _Job, time_limit_s: float | None) -> None:
        if time_limit_s is not None:  # Slurm counts in minutes
            job.shown = dataclasses.replace(job.shown, time_limit_s=60.0 * math.ceil(time_limit_s / 60))

    def hold(self, job_id: str) -> None:
        self._enter("hold", job_id)
        job = self._expect(job_id, JobState.PENDING)
        self.on_command("hold")
        job = self._expect(job_id, JobState.PENDING)  # as Slurm itself refuses
        job.shown = dataclasses.replace(job.shown, held=True, reason="JobHeldUser", priority=0)

    def reshape(self, job_id: str, shape: JobShape, *, known: SlurmJob | None = None) -> None:
        self._enter("reshape", job_id)
        if shape.num_gpus < shape.num_nodes or shape.cpus_per_gpu < 1:
            raise UsageError(f"job {job_id}: no job can have the shape {shape}")
        job = self._expect(job_id, JobState.PENDING)
        if known is not None and known.restart_count != job.shown.restart_count:
            raise JobStateError(f"job {job_id} has been requeued {job.shown.restart_count} times")
        if job.shown.unschedulable_reason is not None:
            raise SlurmCommandError(f"job {job_id} cannot be reshaped: {job.shown.unschedulable_reason}")
        unknown = [name for name in shape.nodes if name not in self.nodes]
        if unknown:
            raise SlurmCommandError(f"job {job_id}: Invalid node name specified")
        self.on_command("reshape")
        job = self._expect(job_id, JobState.PENDING)  # as Slurm itself refuses
        job.shape, job.cpus_per_gpu = shape, shape.cpus_per_gpu
        job.eligible_at = self.clock()
        if job.shown.restart_count > 0 and job.shown.submitted_at is not None:
            job.eligible_at = max(job.eligible_at, job.shown.submitted_at + timedelta(seconds=START_DELAY_S))
        job.shown = dataclasses.replace(
            job.shown,
            begins_at=job.eligible_at,
            required_nodes=shape.nodes,
            requested_gpus=shape.num_gpus,
            cpus_per_gpu=shape.cpus_per_gpu,
            num_cpus=shape.num_gpus * shape.cpus_per_gpu,
        )
        self._limit(job, shape.time_limit_s)

    def release(self, job_id: str) -> None:
        self._enter("release", job_id)
        known = self._jobs.get(job_id)
        if known is not None and known.shown.state in (JobState.RUNNING, JobState.SUSPENDED):
            return
        job = self._expect(job_id, JobState.PENDING)
        self.on_command("release")
        job = self._expect(job_id, JobState.PENDING)  # as Slurm itself refuses
        job.shown = dataclasses.replace(
            job.shown,
            held=False,
            held_since_requeue=False,
            reason="None",
            priority=self._released_priority(job),
        )
        self._advance()

    def set_priority(self, job_id: str, priority: int) -> None:
        self._enter("set_priority", job_id)
        if priority < 1:
            raise UsageError(f"job {job_id}: {priority} is not a priority")
        job = self._expect(job_id, JobState.PENDING)
        if job.shown.held:
            raise JobStateError(f"job {job_id} is held: cannot set its priority")
        self.on_command("set_priority")
        job = self._expect(job_id, JobState.PENDING)  # as Slurm itself refuses
        job.shown = dataclasses.replace(job.shown, priority=priority)

    def restore_priority(self, job_id: str) -> None:
        self._enter("restore_priority", job_id)
        job = self._jobs.get(job_id)
        if job is None or job.shown.state not in (JobState.PENDING, JobState.RUNNING):
            raise JobStateError(f"job {job_id} neither waits nor runs")
        if not job.shown.held:
            job.shown = dataclasses.replace(job.shown, priority=self._ordinary_priority())

    def create_reservation(self, name: str, nodes: Sequence[str], *, minutes: int) -> None:
        self._enter("create_reservation")
        if name in self.reservations:
            raise SlurmCommandError("scontrol: error: Reservation name already exists")
        self.reservations[name] = tuple(nodes)

    def delete_reservation(self, name: str) -> None:
        self._enter("delete_reservation")
        if self.reservations.pop(name, None) is None:
            raise SlurmCommandError("scontrol: error: Requested reservation is invalid")
        self._advance()

    def _released_priority(self, job: _Job) -> int:
        if self.in_strict_order:
            return self._ordinary_priority()
        return job.shown.priority or 1_000_000 - int(job.shown.job_id)

    def _ordinary_priority(self) -> int:
        """Return the priority of a job that has just come into the queue."""
        self._last_priority -= 1
        return self._last_priority

    def set_comment(self, job_id: str, comment: str) -> None:
        self._enter("set_comment", job_id)
        job = self._jobs.get(job_id)
        if job is None or job.shown.state.is_over:
            raise JobStateError(f"job {job_id} is over or unknown to Slurm")
        job.shown = dataclasses.replace(job.shown, comment=comment)

    def cancel(self, job_id: str) -> None:
        self._enter("cancel", job_id)
        job = self._jobs.get(job_id)
        if job is None or job.shown.state.is_over:
            return
        if job.shown.state is JobState.PENDING:
            self._end(job, JobState.CANCELLED, None)
        else:
            self._kill(job, JobState.CANCELLED)

    def submit(
        self, script: str, options: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
    ) -> str:
        """Submit; of `--name=value`, those of size, name, Comment, one node and --begin=now+s have effect."""
        self._enter("submit")
        if not script.strip():
            raise UsageError("the batch script is empty")
        given = {key: value for key, _, value in (option.lstrip("-").partition("=") for option in options)}
        num_nodes = int(given.get("nodes", 1))
        per_node = int(given.get("gres", "gpu:0").rpartition(":")[2])
        num_gpus = int(given.get("gpus", per_node * num_nodes))
        if num_gpus > sum(node.num_gpus for node in self.nodes.values()):
            raise SlurmCommandError("sbatch: error: Requested node configuration is not available")
        named = (given["nodelist"],) if "nodelist" in given else ()
        anywhere = tuple([name for name, node in self.nodes.items() if node.num_gpus][:num_nodes])
        cpus_per_gpu = int(given["cpus-per-gpu"]) if "cpus-per-gpu" in given else None
        memory_mb = int(given["mem-per-gpu"]) if "mem-per-gpu" in given else None
        job_id, self._next_id = str(self._next_id), self._next_id + 1
        held = "hold" in given
        now = self.clock()
        begins_at = now + timedelta(seconds=float(given.get("begin", "now+0").removeprefix("now+")))
        may_not_be_requeued = "no-requeue" in given and parse_wing_comment(given.get("comment", "")) is None
        shown = SlurmJob(
            job_id=job_id,
            name=given.get("job-name", "sbatch"),
            user_name=self.user_name,
            user_id=1000,
            account="",
            partition="main",
            state=JobState.PENDING,
            held=held,
            reason="JobHeldUser" if held else "None",
            comment=given.get("comment", ""),
            allocation=Allocation(),
            requested_gpus=num_gpus,
            num_cpus=max(num_gpus * (cpus_per_gpu or 1), 1),
            cpus_per_gpu=cpus_per_gpu,
            memory_per_gpu_mb=memory_mb,
            cpus_by_node=(),
            memory_mb_by_node=(),
            restart_count=0,
            submitted_at=now,
            begins_at=begins_at,
            priority=self._ordinary_priority(),
            started_at=None,
            ended_at=None,
            time_limit_s=60.0 * int(given["time"]) if "time" in given else None,
            exit_code=None,
            unschedulable_reason="it may not be requeued" if may_not_be_requeued else None,
            required_nodes=named,
        )
        self._jobs[job_id] = _Job(
            shown=shown,
            shape=JobShape(num_gpus=num_gpus, nodes=named or (anywhere if num_nodes > 1 else ())),
            cpus_per_gpu=cpus_per_gpu or 1,
            memory_per_gpu_mb=memory_mb or 0,
            eligible_at=begins_at,
        )
        self._advance()
        return job_id

    # -------------------------------------------------------------------------------------------- inside

    def _enter(self, method: str, job_id: str = "1") -> None:
        if not (job_id.isascii() and job_id.isdecimal() and len(job_id) <= 10):
            raise UsageError(f"{job_id[:60]!r} is not a job id")
        self.calls.append((method, job_id))
        if self.down:
            raise SlurmUnavailable("Unable to contact slurm controller (connect failure)")
        error = self._failures.pop(method, None)
        if error is not None:
            raise error
        self._advance()
        meddle = self.before.pop(method, None)
        if meddle is not None:
            meddle()

    def _expect(self, job_id: str, state: JobState) -> _Job:
        job = self._jobs.get(job_id)
        if job is None:
            raise JobStateError(f"job {job_id} is unknown to Slurm")
        if job.shown.state is not state:
            raise JobStateError(f"job {job_id} is {job.shown.state.value}, not {state.value}")
        return job

    def _kill(self, job: _Job, afterwards: JobState, *, hold: bool = True) -> None:
        requeued = afterwards is JobState.PENDING
        now = self.clock()
        job.held_after_kill = hold
        job.killed_until = self.clock() + timedelta(seconds=self.kill_s)
        job.after_kill = afterwards
        job.shown = dataclasses.replace(
            job.shown,
            state=JobState.COMPLETING,
            reason="JobHeldUser" if requeued else "None",
            allocation=Allocation(),
            cpus_by_node=(),
            memory_mb_by_node=(),
            restart_count=job.shown.restart_count + requeued,
            # Of a job that is requeued Slurm shows what it expects of the next run.
            started_at=now if requeued else job.shown.started_at,
            ended_at=now + timedelta(days=365) if requeued else now,
            last_allocation=job.shown.allocation,
        )
        self._advance()

    def _end(self, job: _Job, state: JobState, exit_code: int | None) -> None:
        job.killed_until = None
        job.shown = dataclasses.replace(
            job.shown,
            state=state,
            held=False,
            allocation=Allocation(),
            cpus_by_node=(),
            memory_mb_by_node=(),
            ended_at=self.clock() if job.shown.ended_at is None else job.shown.ended_at,
            last_allocation=job.shown.allocation or job.shown.last_allocation,
            exit_code=exit_code,
        )

    def _advance(self) -> None:
        """Apply all events that are due now."""
        now = self.clock()
        for job in self._jobs.values():
            if job.killed_until is not None and job.killed_until <= now:
                if job.after_kill is JobState.PENDING:
                    job.killed_until = None
                    job.eligible_at = now + timedelta(seconds=REQUEUE_DELAY_S)
                    job.shown = dataclasses.replace(
                        job.shown,
                        state=JobState.PENDING,
                        held=job.held_after_kill,
                        held_since_requeue=job.held_after_kill,
                        priority=0 if job.held_after_kill else job.shown.priority,
                        submitted_at=now,
                        started_at=None,
                        ended_at=None,
                        last_allocation=Allocation(),
                        begins_at=job.eligible_at,
                    )
                else:
                    self._end(job, job.after_kill, None)
        is_blocked = False
        for job in sorted(self._jobs.values(), key=lambda job: -(job.shown.priority or 0)):
            due = job.eligible_at + timedelta(seconds=self.start_s) <= now
            if job.shown.state is not JobState.PENDING or job.shown.held:
                continue
            if not due:
                self._wait(job, "BeginTime")
            elif is_blocked:
                self._wait(job, "Priority")
            else:
                self._try_to_start(job)
                is_blocked = self.in_strict_order and job.shown.state is JobState.PENDING

    def _wait(self, job: _Job, reason: str) -> None:
        job.shown = dataclasses.replace(job.shown, reason=reason)

    def _try_to_start(self, job: _Job) -> None:
        if (reason := self.refuses(job.shape)) is not None:
            self._wait(job, reason)
            if reason == "BadConstraints":
                job.shown = dataclasses.replace(job.shown, held=True, priority=0)
            return
        allocation = self._place(job)
        if allocation is None:
            self._wait(job, "Resources")
            return
        held = allocation.gpus_by_node
        job.shown = dataclasses.replace(
            job.shown,
            state=JobState.RUNNING,
            reason="None",
            allocation=allocation,
            num_cpus=max(allocation.num_gpus * job.cpus_per_gpu, 1),
            cpus_by_node=tuple((name, gpus * job.cpus_per_gpu) for name, gpus in held),
            memory_mb_by_node=tuple((name, gpus * job.memory_per_gpu_mb) for name, gpus in held),
            started_at=self.clock(),
            begins_at=None,
        )

    def _place(self, job: _Job) -> Allocation | None:
        """Return where the job fits now: equal shares if its shape says so, else first nodes first."""
        shape = job.shape
        room = {node.name: _room(node, job) for node in self._nodes_now()}
        if not shape.nodes:
            fitting = [name for name in self.nodes if room[name] >= shape.num_gpus]
            return Allocation.of({fitting[0]: shape.num_gpus}) if fitting else None
        if shape.gpus_per_node is not None:
            even = dict.fromkeys(shape.nodes, shape.gpus_per_node)
            return Allocation.of(even) if all(room[name] >= even[name] for name in even) else None
        left, taken = shape.num_gpus, dict[str, int]()
        for position, name in enumerate(shape.nodes):
            keep = len(shape.nodes) - position - 1  # every later node gets one at least
            taken[name] = min(room[name], left - keep)
            left -= taken[name]
        return Allocation.of(taken) if left == 0 and min(taken.values()) > 0 else None

    def _nodes_now(self) -> tuple[SlurmNode, ...]:
        """Return the nodes with what their jobs use; reserved ones are closed."""
        reserved = {name for nodes in self.reservations.values() for name in nodes}
        gpus, cpus, memory_mb = Counter[str](), Counter[str](), Counter[str]()
        for job in self._jobs.values():
            for used, owned in (
                (gpus, job.shown.allocation.gpus_by_node),
                (cpus, job.shown.cpus_by_node),
                (memory_mb, job.shown.memory_mb_by_node),
            ):
                for name, amount in owned:
                    used[name] += amount
        return tuple(
            dataclasses.replace(
                node,
                used_gpus=node.used_gpus + gpus[name],
                used_cpus=node.used_cpus + cpus[name],
                used_memory_mb=node.used_memory_mb + memory_mb[name],
                available=node.available and name not in reserved,
                state=f"{node.state}+reserved" if name in reserved else node.state,
            )
            if gpus[name] or cpus[name] or memory_mb[name] or name in reserved
            else node
            for name, node in sorted(self.nodes.items())
        )


def _room(node: SlurmNode, job: _Job) -> int:
    if not node.available:
        return 0
    free = [node.num_gpus - node.used_gpus, (node.num_cpus - node.used_cpus) // max(job.cpus_per_gpu, 1)]
    if job.memory_per_gpu_mb:
        free.append((node.memory_mb - node.used_memory_mb) // job.memory_per_gpu_mb)
    return max(min(free), 0)


_CHANGING = frozenset(
    {
        "requeue",
        "requeue_hold",
        "requeue_failed",
        "set_begin_time",
        "hold",
        "reshape",
        "release",
        "set_priority",
        "restore_priority",
        "create_reservation",
        "delete_reservation",
        "set_comment",
        "cancel",
    }
)


class _Guarded:
    """A view of a `FakeSlurm` that calls its guard before each command."""

    def __init__(self, slurm: FakeSlurm, guard: Callable[[], None]) -> None:
        self._slurm, self._guard = slurm, guard

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._slurm, name)
        if name not in _CHANGING:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            self._guard()
            return method(*args, **kwargs)

        return call
