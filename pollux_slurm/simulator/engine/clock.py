"""The clock of a simulation: rounds of jobs that train and a policy that places them.

Rules `osdi21`, those of the Pollux artifact's simulator: the first round is one interval after the start; a
submission is seen at the next round; completion is exact, its GPUs are free at the next round; a job whose
nodes changed in any way to others makes no progress for the restart delay, its first start included.

Rules `slurm` have the same rounds. Before a decision, what has ended or failed is taken away, and rigid and
unmanaged jobs start; the policy sees what is left of each node. A job that moves trains on until its new GPUs
are free, then pauses for its checkpoint, for Slurm and for its launch; until its first step it stays put.
An adaptive job that was submitted with a size of its own is started by Slurm: at once, where that is free.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import BatchChoice
from pollux_slurm.simulator.engine.autoscale import Autoscaler, NodeSupply
from pollux_slurm.simulator.engine.checks import check_allocations, check_sizes, check_times, check_workload
from pollux_slurm.simulator.engine.cluster import Cluster, RoundRecord, SchedulingPolicy, SimulationResult
from pollux_slurm.simulator.engine.cluster_rules import OSDI21, Delays, Rules
from pollux_slurm.simulator.engine.fixed_jobs import FixedJobs
from pollux_slurm.simulator.engine.job import Pause, Pieces, SimulatedJob
from pollux_slurm.simulator.engine.measurement_noise import NoisyMeasurements
from pollux_slurm.simulator.engine.moves import waiting_times
from pollux_slurm.simulator.engine.outages import Outages, draw_adaptive
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import user_batch, user_time_s
from pollux_slurm.simulator.inputs.workload import WorkloadJob


def simulate(
    workload: Sequence[WorkloadJob],
    applications: Mapping[str, Application],
    policy: SchedulingPolicy,
    cluster: Cluster,
    *,
    rules: Rules = OSDI21,
    autoscaler: Autoscaler | None = None,
    on_round: Callable[[float, int], None] = lambda now_s, num_left: None,
    clock: Callable[[], float] = time.perf_counter,
) -> SimulationResult:
    """Run `workload` to the end of its last job.

    With an `autoscaler`, `cluster` is the largest that it may become. `on_round` is told the simulated time
    and the number of unfinished jobs after each round.
    Raises `SimulationError` for an impossible workload or allocation, or a workload that does not end.
    """
    run = _Run(workload, applications, policy, cluster, rules, autoscaler)
    while run.unfinished:
        run.advance()
        run.decide(clock)
        on_round(run.now_s, len(run.unfinished))
        if run.now_s > cluster.longest_s:
            names = ", ".join(job.job.name for job in run.unfinished[:3])
            raise SimulationError(
                f"after {run.now_s / 86400:.0f} simulated days {len(run.unfinished)} jobs have not ended "
                f"({names}, …): the cluster is too small for them, or the policy never serves them"
            )
    return SimulationResult(
        cluster=cluster,
        jobs=tuple(run.jobs),
        rounds=tuple(run.rounds),
        rules=rules,
        node_seconds=run.supply.paid_s,
    )


class _Run:
    """One simulation at one moment."""

    def __init__(
        self,
        workload: Sequence[WorkloadJob],
        applications: Mapping[str, Application],
        policy: SchedulingPolicy,
        cluster: Cluster,
        rules: Rules,
        autoscaler: Autoscaler | None,
    ) -> None:
        check_workload(workload, applications)
        check_times(workload, cluster)
        self.cluster, self.rules, self._policy = cluster, rules, policy
        adaptive = draw_adaptive(len(workload), rules.adaptive_share, seed=rules.seed)
        self.jobs = [
            self._job(job, applications, adaptive=index in adaptive) for index, job in enumerate(workload)
        ]
        self.unfinished = list(self.jobs)
        self.rounds: list[RoundRecord] = []
        self._goodput: dict[str, float] = {}
        self.now_s = 0.0
        self._groups = cluster.node_groups
        rigid = [job for job in self.jobs if not job.adaptive]
        check_sizes(rigid, rules, cluster)
        self._fixed = FixedJobs(
            rigid,
            rules.other_jobs,
            types=cluster.node_types,
            order=cluster.fastest_types,
            limit_s=lambda job: user_time_s(job.job, job.application, cluster.gpus_per_node),
            estimate_factor=rules.estimate_factor,
        )
        self.supply = NodeSupply(autoscaler, cluster)
        self._nodes_change = autoscaler is not None or rules.failures is not None
        self._first_s = min((job.submitted_s for job in workload), default=0.0)
        self._outages = Outages(rules.failures, cluster.num_nodes, seed=rules.seed)
        # The unfinished jobs that were submitted by the last decision, and when the next one is.
        self._present: list[SimulatedJob] = []
        self._next_s = -math.inf
        self._slurm_starts = rules.delays is not None and rules.slurm_starts
        # What nobody holds of each node, nor is kept for anyone, until the next decision.
        self._unused = list(cluster.node_gpus) if autoscaler is None else [0] * cluster.num_nodes

    def _job(
        self, job: WorkloadJob, applications: Mapping[str, Application], *, adaptive: bool
    ) -> SimulatedJob:
        application, rules = applications[job.application], self.rules
        delays = rules.delays
        return SimulatedJob(
            job=job,
            application=application,
            choose_batch=self._policy.choose_batch if adaptive else _users_batch,
            adaptive=adaptive,
            exact=delays is not None,
            noisy=NoisyMeasurements(rules.noise, seed=rules.seed, job=job.name)
            if adaptive and rules.noise
            else None,
            checkpoint_interval_s=self.rules.checkpoint_interval_s,
            write_s=0.0 if delays is None else delays.write_s(job.application),
            expected_delay_s=self.cluster.restart_delay_s,
        )

    # ------------------------------------------------------------------------------- between two decisions

    def advance(self) -> None:
        """Let all jobs train to the next round, and tell the last record what they made."""
        duration_s = self.cluster.interval_s
        self._start_by_slurm(self.now_s, self.now_s + duration_s)
        running = [job for job in (self.unfinished if self._slurm_starts else self._present) if job.pieces]
        made = [job.made for job in running]
        failing = self._outages.between(self.now_s, self.now_s + duration_s)
        for job in running:
            fails_s = math.inf
            if failing:
                fails_s = min((failing[node] for node in job.nodes if node in failing), default=math.inf)
            # Only what Slurm has just started came after the last decision.
            begin_s = max(self.now_s, job.job.submitted_s)
            job.advance(begin_s, min(fails_s, self.now_s + duration_s) - begin_s)
            if fails_s < math.inf and job.finished_s is None:
                job.fail()
        self._fixed.fail(failing)
        if self.rounds and self.rounds[-1].at_s == self.now_s:
            for job, before in zip(running, made, strict=True):
                useful = (job.made - before) * job.application.initial_batch_size
                self._goodput[job.job.name] = useful / duration_s
        ended = [job.finished_s for job in running if job.finished_s is not None]
        until_s = max(ended) if len(ended) == len(self.unfinished) else self.now_s + duration_s
        self.supply.pay(max(until_s - max(self.now_s, self._first_s), 0.0))
        self.now_s += duration_s
        if ended:
            self.unfinished = [job for job in self.unfinished if job.finished_s is None]
            self._present = [job for job in self._present if job.finished_s is None]

    # ---------------------------------------------------------------------------------------- one decision

    def decide(self, clock: Callable[[], float]) -> None:
        """Start what starts by itself, ask the policy, and move jobs as it says."""
        if self._next_s <= self.now_s:
            self._present = [job for job in self.unfinished if job.job.submitted_s <= self.now_s]
            later = (job.job.submitted_s for job in self.unfinished if job.job.submitted_s > self.now_s)
            self._next_s = min(later, default=math.inf)
        active = self._present
        adaptive = [job for job in active if job.adaptive]
        before = {job.job.name: job.pieces for job in active if job.pieces}
        self._fixed.release(self.now_s)
        held = _held(adaptive, self.cluster.num_nodes)
        up = self._scale(adaptive, held)
        free = () if self.rules.delays is None else _less(_less(up, self._fixed.held()), held)
        started, room = self._fixed.start(
            self.now_s, up, adaptive, first=self.rules.rigid_first, resizes=self._policy.resizes
        )
        self._note_unused(room, adaptive)
        if not active:
            return
        seen = self.cluster
        if tuple(room) != seen.node_gpus:
            _evict(adaptive, room)
            seen = seen.with_room(room)
        by_slurm = self._start_by_slurm(0.0, self.now_s)
        given: Mapping[str, Pieces] = {}
        solve_s = 0.0
        if adaptive:
            began = clock()
            given = self._policy.allocate(self.now_s, adaptive, seen)
            solve_s = clock() - began
        check_allocations(given, seen)
        for job in adaptive:
            if job.job.name not in by_slurm:
                job.pieces = before.get(job.job.name, ())
        after = {one.name: one.pieces for one in started}
        after |= {job.job.name: job.pieces for job in active if not job.adaptive and job.pieces}
        after |= {job.job.name: given[job.job.name] for job in adaptive if given.get(job.job.name)}
        if self.rules.delays is None:
            self._move_at_once(active, after)
        else:
            self._move(active, before, after, free, self.rules.delays)
        self._interfere(active)
        self._note_unused(room, adaptive)
        self._record(active, up, solve_s)

    def _note_unused(self, room: Sequence[int], adaptive: Sequence[SimulatedJob]) -> None:
        if self._slurm_starts:
            self._unused = _less(room, _held(adaptive, self.cluster.num_nodes, leaving=True))

    def _start_by_slurm(self, after_s: float, until_s: float) -> frozenset[str]:
        """Start adaptive jobs that came in between with a size of their own where a node has it unused.

        Return their names.
        """
        delays = self.rules.delays
        if delays is None or not self._slurm_starts:
            return frozenset()
        started = set()
        for job in sorted(self.unfinished, key=lambda job: job.job.submitted_s):
            wanted, at_s = job.job.start_gpus, job.job.submitted_s
            if not (job.adaptive and wanted and job.num_restarts is None and after_s <= at_s <= until_s):
                continue
            nodes = [node for node, gpus in enumerate(self._unused) if gpus >= wanted]
            if nodes:
                node = min(nodes, key=lambda node: (self._unused[node], node))
                self._unused[node] -= wanted
                come_up_s = delays.come_up_s(job.job.application, restore=False, num_gpus=wanted)
                self._reallocate(
                    job,
                    ((node, wanted),),
                    [Pause(step="slurm", left_s=delays.start_s), Pause(step="launch", left_s=come_up_s)],
                    at_s=max(at_s, self.now_s),
                )
                started.add(job.job.name)
        return frozenset(started)

    def _scale(self, adaptive: Sequence[SimulatedJob], held: Sequence[int]) -> list[int]:
        """Let the cluster grow or shrink; return the GPUs of each node that is there and works."""
        if not self._nodes_change:
            return list(self.cluster.node_gpus)
        fixed = self._fixed.held()
        busy = {node: gpus + fixed[node] for node, gpus in enumerate(held)}
        self.supply.scale(
            self.now_s, adaptive, busy, frozenset(node for node, gpus in enumerate(fixed) if gpus)
        )
        up = self.supply.up(self.now_s) - self._outages.down(self.now_s)
        return [gpus if node in up else 0 for node, gpus in enumerate(self.cluster.node_gpus)]

    def _move_at_once(self, active: Sequence[SimulatedJob], after: Mapping[str, Pieces]) -> None:
        for job in active:
            pieces = after.get(job.job.name, ())
            if pieces != job.pieces:
                pause = Pause(step="restart", left_s=self.cluster.restart_delay_s)
                self._reallocate(job, pieces, [pause])

    def _move(
        self,
        active: Sequence[SimulatedJob],
        before: Mapping[str, Pieces],
        after: Mapping[str, Pieces],
        free: Sequence[int],
        delays: Delays,
    ) -> None:
        leaving_s = {job.job.name: 0.0 if job.in_flight else delays.notice_s + job.write_s for job in active}
        waits = waiting_times(before, after, free, leaving_s)
        for job in active:
            name, application = job.job.name, job.job.application
            pieces = after.get(name, ())
            if pieces == job.pieces:
                continue
            num_gpus = sum(gpus for _, gpus in pieces)
            launch_s = delays.come_up_s(application, restore=job.trained, num_gpus=num_gpus)
            launch = Pause(step="launch", left_s=launch_s)
            wait_s, stall_s = waits.get(name, (0.0, 0.0))
            if not job.pieces:
                wait_s += stall_s + (delays.backfill_s if job.num_restarts is None else 0.0)
                waiting = Pause(step="wait", left_s=wait_s, held=False)
                start = Pause(step="slurm", left_s=delays.start_s)
                self._reallocate(job, pieces, [waiting, start, launch])
                continue
            checkpoint = Pause(step="checkpoint", left_s=0.0 if job.in_flight else job.write_s)
            after_s = wait_s + (0.0 if job.in_flight else delays.notice_s)
            pauses = [
                checkpoint,
                Pause(step="wait", left_s=stall_s, held=False),
                Pause(step="slurm", left_s=delays.requeue_s),
                launch,
            ]
            cost_s = sum(pause.left_s for pause in pauses)
            self._reallocate(job, pieces, pauses, after_s=after_s)
            if pieces:
                job.learn_delay(cost_s)

    def _reallocate(
        self,
        job: SimulatedJob,
        pieces: Pieces,
        pauses: Sequence[Pause],
        *,
        after_s: float = 0.0,
        at_s: float | None = None,
    ) -> None:
        name = job.job.application
        groups = [self._groups[node] for node, _ in pieces]
        slowest = min(groups, key=lambda group: group.speed_of(name), default=self._groups[0])
        job.reallocate(
            pieces,
            now_s=self.now_s if at_s is None else at_s,
            pauses=pauses,
            after_s=after_s,
            gpu_type=slowest.gpu_type,
            speed=slowest.speed_of(name),
        )

    def _interfere(self, active: Sequence[SimulatedJob]) -> None:
        """Slow jobs over several nodes where two of them share one, as the artifact can."""
        share = self.rules.interference
        if share > 0:
            spread = [job for job in active if len(job.pieces) > 1]
            crowd = Counter(node for job in spread for node, _ in job.pieces)
            for job in active:
                crowded = len(job.pieces) > 1 and any(crowd[node] > 1 for node, _ in job.pieces)
                job.interference = share if crowded else 0.0

    def _record(self, active: Sequence[SimulatedJob], up: Sequence[int], solve_s: float) -> None:
        # What `advance` fills in.
        self._goodput = {}
        self.rounds.append(
            RoundRecord(
                at_s=self.now_s,
                num_jobs=len(active),
                allocations={job.job.name: job.pieces for job in active if job.pieces},
                solve_s=solve_s,
                goodput=self._goodput,
                nodes_up=sum(1 for gpus in up if gpus),
                gpus_up=sum(up),
                gpus_used=sum(job.num_gpus for job in active),
                gpus_unmanaged=sum(self._fixed.held(unmanaged_only=True)),
                num_waiting=sum(1 for job in active if not job.pieces),
            )
        )


def _users_batch(job: SimulatedJob) -> BatchChoice:
    return user_batch(job.job, job.application, job.num_gpus)


def _held(jobs: Iterable[SimulatedJob], num_nodes: int, *, leaving: bool = False) -> list[int]:
    """Return the GPUs of each node that `jobs` hold, with `leaving` also those they have yet to leave."""
    found = [0] * num_nodes
    for job in jobs:
        for node, gpus in job.pieces:
            found[node] += gpus
        if leaving:
            for node, gpus in job.leaving:
                found[node] += gpus
    return found


def _less(gpus: Sequence[int], taken: Sequence[int]) -> list[int]:
    return [all_ - used if all_ > used else 0 for all_, used in zip(gpus, taken, strict=True)]


def _evict(adaptive: Sequence[SimulatedJob], room: Sequence[int]) -> None:
    """Take their GPUs from the last submitted jobs on each node that has no longer enough of them."""
    over = [used - left for used, left in zip(_held(adaptive, len(room)), room, strict=True)]
    if any(gpus > 0 for gpus in over):
        for job in sorted(adaptive, key=lambda job: -job.job.submitted_s):
            if any(over[node] > 0 for node, _ in job.pieces):
                for node, gpus in job.pieces:
                    over[node] -= gpus
                job.pieces = ()
