"""How the moves of a round proceed: in place or by requeue, after which wait, with which interruptions.

A move is in place where the job's wings and the free GPUs allow it, as policies expect (`model.wings`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.simulator.engine.cluster_rules import Delays
from pollux_slurm.simulator.engine.in_place import Regroup, plan_regroup
from pollux_slurm.simulator.engine.job import GpusByNode, Interruption, SimulatedJob
from pollux_slurm.simulator.engine.move_waits import move_waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A job's way to a new allocation: it trains on its source for `after_s`, and then has `interruptions`.

    During a move in place, which is a `regroup`, new GPUs are idle for `idle_gpu_s` GPU seconds while their
    processes start.
    """

    job: SimulatedJob
    allocation: GpusByNode
    interruptions: tuple[Interruption, ...]
    after_s: float = 0.0
    regroup: Regroup | None = None
    idle_gpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundChange:
    """What the moves of a round depend on.

    Allocations `before` and `after`, the GPUs of each node that are unowned (`free`), and that the policy saw
    as unowned (`seen_free`), and the delays: `delays`, or `restart_delay_s` without them.
    """

    before: Mapping[str, GpusByNode]
    after: Mapping[str, GpusByNode]
    free: Sequence[int]
    seen_free: Sequence[int]
    delays: Delays | None
    restart_delay_s: float


def learned_delay_s(job: SimulatedJob, move: Move) -> float:
    """Return what the policy expects of a job's next requeue after this one: the mean over all of them."""
    cost_s, count = sum(interruption.left_s for interruption in move.interruptions), job.num_restarts or 1
    if count == 1:
        return cost_s
    return job.expected_delay_s + (cost_s - job.expected_delay_s) / count


def plan_moves(jobs: Sequence[SimulatedJob], change: RoundChange) -> Iterator[Move]:
    """Yield the moves of a round in the order of `jobs`."""
    regroups = _regroups(jobs, change)
    waits = _waits(jobs, change, regroups)
    # A job that must leave first to break a circle cannot train on until its new GPUs are free.
    while stopped := [name for name in regroups if waits.get(name, (0.0, 0.0))[1] > 0]:
        for name in stopped:
            del regroups[name]
        waits = _waits(jobs, change, regroups)
    for job in jobs:
        name = job.job.name
        allocation = change.after.get(name, ())
        if allocation == job.allocation:
            continue
        wait_s, stall_s = waits.get(name, (0.0, 0.0))
        regroup = regroups.get(name)
        if regroup is not None:
            yield Move(
                job=job,
                allocation=allocation,
                interruptions=(Interruption(kind="regroup", left_s=regroup.standstill_s),),
                after_s=wait_s + _regroup_notice_s(regroup, change.delays) + regroup.warm_up_s,
                regroup=regroup,
                idle_gpu_s=regroup.warm_up_s * regroup.num_new_gpus,
            )
        elif not job.allocation:
            yield _start(job, allocation, wait_s + stall_s, change)
        else:
            yield _requeue(job, allocation, wait_s, stall_s, change)


def _regroups(jobs: Sequence[SimulatedJob], change: RoundChange) -> dict[str, Regroup]:
    """Return the moves that their jobs and GPUs allow in place."""
    regroups = {}
    for job in jobs:
        name, in_place = job.job.name, job.in_place
        allocation = change.after.get(name, ())
        if in_place is None or job.in_flight or not job.allocation or not allocation:
            continue
        if allocation == job.allocation:
            continue
        application = job.job.application
        regroup = plan_regroup(job.wings, allocation, change.seen_free, application, in_place, change.delays)
        if regroup is not None:
            regroups[name] = regroup
    return regroups


def _waits(
    jobs: Sequence[SimulatedJob], change: RoundChange, regroups: Mapping[str, Regroup]
) -> dict[str, tuple[float, float]]:
    if change.delays is None and not regroups:
        return {}  # under rules osdi21, GPUs that a requeue frees are free at once
    leaving_s = {job.job.name: _leaving_s(job, regroups.get(job.job.name), change.delays) for job in jobs}
    continuing = {name: regroup.continuing for name, regroup in regroups.items()}
    return move_waits(change.before, change.after, change.free, leaving_s, continuing)


def _leaving_s(job: SimulatedJob, regroup: Regroup | None, delays: Delays | None) -> float:
    """Return how long a job takes to free its GPUs, once those that it gets are free."""
    if regroup is not None:
        return _regroup_notice_s(regroup, delays) + regroup.warm_up_s + regroup.standstill_s
    return 0.0 if delays is None or job.in_flight else delays.notice_s + job.write_s


def _regroup_notice_s(regroup: Regroup, delays: Delays | None) -> float:
    """Return how long a job takes to hear of its move. A measured warm-up includes that."""
    if delays is None or (regroup.num_new_gpus and delays.warm_up_s is not None):
        return 0.0
    return delays.notice_s


def _start(job: SimulatedJob, allocation: GpusByNode, wait_s: float, change: RoundChange) -> Move:
    """Return the start of a job without GPUs."""
    delays = change.delays
    if delays is None:
        waits = [Interruption(kind="wait", left_s=wait_s, owns_gpus=False)] if wait_s else []
        restart = Interruption(kind="restart", left_s=change.restart_delay_s)
        return Move(job=job, allocation=allocation, interruptions=(*waits, restart))
    wait_s += delays.backfill_s if job.num_restarts is None else 0.0
    waiting = Interruption(kind="wait", left_s=wait_s, owns_gpus=False)
    start = Interruption(kind="slurm", left_s=delays.start_s)
    return Move(
        job=job, allocation=allocation, interruptions=(waiting, start, _launch(job, allocation, delays))
    )


def _requeue(
    job: SimulatedJob, allocation: GpusByNode, wait_s: float, stall_s: float, change: RoundChange
) -> Move:
    """Return the requeue of a running job, or its pause."""
    delays = change.delays
    interruptions: tuple[Interruption, ...]
    if delays is None:
        stall = [Interruption(kind="wait", left_s=stall_s, owns_gpus=False)] if stall_s else []
        interruptions = (*stall, Interruption(kind="restart", left_s=change.restart_delay_s))
    else:
        wait_s += 0.0 if job.in_flight else delays.notice_s
        interruptions = (
            Interruption(kind="checkpoint", left_s=0.0 if job.in_flight else job.write_s),
            Interruption(kind="wait", left_s=stall_s, owns_gpus=False),
            Interruption(kind="slurm", left_s=delays.requeue_s),
            _launch(job, allocation, delays),
        )
    return Move(job=job, allocation=allocation, interruptions=interruptions, after_s=wait_s)


def _launch(job: SimulatedJob, allocation: GpusByNode, delays: Delays) -> Interruption:
    num_gpus = sum(gpus for _, gpus in allocation)
    launch_s = delays.time_to_first_step_s(job.job.application, restore=job.progress > 0, num_gpus=num_gpus)
    return Interruption(kind="launch", left_s=launch_s)
