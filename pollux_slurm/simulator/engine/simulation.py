"""The main loop of a simulation: jobs train for an interval, nodes go or come, then the policy decides.

Rules `osdi21` are those of the Pollux artifact's simulator. The first round is one interval after the start.
A round considers the jobs submitted before it. Completion times are exact; the GPUs of an ended job are free
at the next round. A job makes no progress for the restart delay after each change of its nodes, and after its
first start.

Rules `slurm` have the same rounds. Before a decision, ended and failed jobs are removed, and rigid and
unmanaged jobs start; the policy gets what is left of each node. A job that moves trains on its source until
its target is free. Then it makes no progress during its checkpoint, Slurm's requeue and its launch. It is not
moved again before its first step. Slurm starts an adaptive job that was submitted with a size of its own, at
once if a node has that many GPUs free.
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
from pollux_slurm.simulator.engine.cluster import (
    Cluster,
    RoundRecord,
    SchedulingPolicy,
    SimulationResult,
    with_traced_speeds,
)
from pollux_slurm.simulator.engine.cluster_rules import OSDI21, InPlace, Rules
from pollux_slurm.simulator.engine.in_place import expected_standstill_s, expected_warm_up_s
from pollux_slurm.simulator.engine.job import GpusByNode, Interruption, SimulatedJob
from pollux_slurm.simulator.engine.measurements import JobMeasurements, NoisyMeasurements
from pollux_slurm.simulator.engine.moves import Move, RoundChange, learned_delay_s, plan_moves
from pollux_slurm.simulator.engine.random_events import Outages, draw_adaptive, draw_in_place
from pollux_slurm.simulator.engine.rigid_jobs import RigidJobs, has_lent_gpus, own_gpus
from pollux_slurm.simulator.engine.sharing import (
    Pair,
    SharingPolicy,
    check_sharing,
    held_once,
    relative_rates,
)
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.batch_splits import user_batch, user_training_time_s
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

    With an `autoscaler`, `cluster` is the largest that it may become. `on_round` is called after each round
    with the simulated time and the number of unfinished jobs.
    Raises `SimulationError` for an impossible workload or allocation, or a workload that does not end.
    """
    cluster = with_traced_speeds(cluster, applications)
    run = _Simulation(workload, applications, policy, cluster, rules, autoscaler)
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


class _Simulation:
    """The state of one simulation."""

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
        self._sharing = policy if isinstance(policy, SharingPolicy) else None
        if self._sharing is not None:
            check_sharing(rules, scales=autoscaler is not None)
        # The pairs of the last decision; none but under a policy that shares GPUs.
        self._pairs: tuple[Pair, ...] = ()
        adaptive = draw_adaptive(len(workload), rules.adaptive_share, seed=rules.seed)
        self.jobs = [
            self._job(job, applications, adaptive=index in adaptive) for index, job in enumerate(workload)
        ]
        if rules.in_place is not None:
            self._allow_in_place(rules.in_place)
        self.unfinished = list(self.jobs)
        self.rounds: list[RoundRecord] = []
        self._goodput: dict[str, float] = {}
        self.now_s = 0.0
        self._groups = cluster.node_groups
        # How fast each node is, by application.
        self._speeds = {
            name: [group.speed_of(name) for group in self._groups]
            for name in {job.application for job in workload}
        }
        rigid = [job for job in self.jobs if not job.adaptive]
        check_sizes(rigid, rules, cluster)
        self._rigid = RigidJobs(
            rigid,
            rules.unmanaged_jobs,
            types=cluster.node_types,
            order=cluster.fastest_types,
            limit_s=lambda job: user_training_time_s(job.job, job.application, cluster.gpus_per_node),
            estimate_factor=rules.estimate_factor,
        )
        self.supply = NodeSupply(autoscaler, cluster)
        self._nodes_change = autoscaler is not None or rules.failures is not None
        self._first_s = min((job.submitted_s for job in workload), default=0.0)
        self._outages = Outages(rules.failures, cluster.num_nodes, seed=rules.seed)
        # The unfinished jobs submitted before the last decision, in the workload's order; and all later ones,
        # the next one last.
        self._present: list[SimulatedJob] = []
        self._coming = sorted(self.jobs, key=lambda job: -job.job.submitted_s)
        self._place = {job.job.name: place for place, job in enumerate(self.jobs)}
        self._slurm_starts = rules.delays is not None and rules.slurm_starts
        # The GPUs of each node that are neither owned nor reserved until the next decision.
        self._unused = list(cluster.node_gpus) if autoscaler is None else [0] * cluster.num_nodes

    def _job(
        self, job: WorkloadJob, applications: Mapping[str, Application], *, adaptive: bool
    ) -> SimulatedJob:
        application, rules = applications[job.application], self.rules
        delays = rules.delays
        return SimulatedJob(
            job=job,
            application=application,
            choose_batch=self._policy.choose_batch if adaptive else _user_batch,
            adaptive=adaptive,
            exact=delays is not None,
            measured=JobMeasurements(
                NoisyMeasurements(rules.noise, seed=rules.seed, job=job.name)
                if adaptive and rules.noise
                else None
            ),
            checkpoint_interval_s=self.rules.checkpoint_interval_s,
            write_s=0.0 if delays is None else delays.write_s(job.application),
            expected_delay_s=self.cluster.restart_delay_s,
        )

    def _allow_in_place(self, in_place: InPlace) -> None:
        chosen = draw_in_place(len(self.jobs), in_place.share, seed=self.rules.seed)
        for index, job in enumerate(self.jobs):
            if index in chosen and job.adaptive:
                expects = (job.job.application, 1, in_place, self.rules.delays)
                job.in_place = in_place
                job.in_place_delay_s = expected_warm_up_s(*expects) + expected_standstill_s(*expects)

    # ------------------------------------------------------------------------------- between two decisions

    def advance(self) -> None:
        """Let all jobs train to the next round, and add their goodput to the last round's record."""
        duration_s = self.cluster.interval_s
        self._start_by_slurm(self.now_s, self.now_s + duration_s)
        running = [
            job for job in (self.unfinished if self._slurm_starts else self._present) if job.allocation
        ]
        progress_before = [job.total_useful_progress for job in running]
        used_before = [(job, job.gpu_seconds, job.lost_gpu_seconds) for job in running] if self._pairs else []
        failing = self._outages.between(self.now_s, self.now_s + duration_s)
        for job in running:
            fails_s = math.inf
            if failing:
                fails_s = min((failing[node] for node in job.nodes if node in failing), default=math.inf)
            # Of the running jobs, only those that Slurm started were submitted after the last decision.
            begin_s = max(self.now_s, job.job.submitted_s)
            job.advance(begin_s, min(fails_s, self.now_s + duration_s) - begin_s)
            if fails_s < math.inf and job.finished_s is None:
                job.fail()
        if self._pairs:
            self._count_shared(used_before)
        self._rigid.fail(failing)
        if self.rounds and self.rounds[-1].at_s == self.now_s:
            for job, before in zip(running, progress_before, strict=True):
                useful = (job.total_useful_progress - before) * job.application.initial_batch_size
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
        """Start rigid, unmanaged and Slurm-started jobs, call the policy, and enact its decision."""
        self._add_submitted()
        active = self._present
        adaptive = [job for job in active if job.adaptive]
        before = {job.job.name: job.allocation for job in active if job.allocation}
        self._rigid.release(self.now_s)
        owned = _sum_gpus((job.allocation for job in adaptive), self.cluster.num_nodes)
        up = self._scale(adaptive, owned)
        free = _subtract(_subtract(up, self._rigid.owned_gpus()), owned)
        queue = self._rigid.start(
            self.now_s, up, adaptive, first=self.rules.rigid_first, resizes=self._policy.resizes
        )
        available = queue.available
        self._update_unused(queue.unreserved, adaptive)
        if not active:
            return
        cluster, given_back = self.cluster, []
        if tuple(available) != cluster.node_gpus:
            given_back = _give_back(adaptive, available)
            cluster = cluster.with_available(available)
        self._start_by_slurm(0.0, self.now_s)
        owned = _sum_gpus((job.allocation for job in adaptive), self.cluster.num_nodes)
        seen_free = _subtract(available, owned)
        decision: Mapping[str, GpusByNode] = {}
        solve_s = 0.0
        if adaptive:
            began = clock()
            served = [job for job in adaptive if job.job.name not in queue.waiting]
            decision = self._policy.allocate(self.now_s, served, cluster)
            solve_s = clock() - began
        if self._sharing is None:
            check_allocations(decision, cluster)
        else:
            self._share(self._sharing, decision, adaptive, cluster)
        for job, allocation, wings in given_back:
            job.allocation, job.wings = allocation, wings
        after = {one.name: one.allocation for one in queue.started}
        after |= {job.job.name: job.allocation for job in active if not job.adaptive and job.allocation}
        after |= {job.job.name: decision[job.job.name] for job in adaptive if decision.get(job.job.name)}
        change = RoundChange(
            before=before,
            after=after,
            free=free,
            seen_free=seen_free,
            delays=self.rules.delays,
            restart_delay_s=cluster.restart_delay_s,
        )
        for move in plan_moves(active, change):
            self._enact(move)
        self._apply_interference(active)
        self._update_unused(queue.unreserved, adaptive)
        self._record(active, up, solve_s)

    def _add_submitted(self) -> None:
        num_present = len(self._present)
        while self._coming and self._coming[-1].job.submitted_s <= self.now_s:
            job = self._coming.pop()
            # Slurm may have started it, and it may have ended.
            if job.finished_s is None:
                self._present.append(job)
        if len(self._present) > num_present:
            self._present.sort(key=lambda job: self._place[job.job.name])

    def _update_unused(self, available: Sequence[int], adaptive: Sequence[SimulatedJob]) -> None:
        if self._slurm_starts:
            used = (part for job in adaptive for part in (job.allocation, job.source))
            self._unused = _subtract(available, _sum_gpus(used, self.cluster.num_nodes))

    def _start_by_slurm(self, after_s: float, until_s: float) -> None:
        """Start adaptive jobs submitted in this time with a size of their own, where a node has it unused."""
        delays = self.rules.delays
        if delays is None or not self._slurm_starts:
            return
        for job in sorted(self.unfinished, key=lambda job: job.job.submitted_s):
            wanted, at_s = job.job.start_gpus, job.job.submitted_s
            if not (job.adaptive and wanted and job.num_restarts is None and after_s <= at_s <= until_s):
                continue
            nodes = [node for node, gpus in enumerate(self._unused) if gpus >= wanted]
            if nodes:
                node = min(nodes, key=lambda node: (self._unused[node], node))
                self._unused[node] -= wanted
                launch_s = delays.time_to_first_step_s(job.job.application, restore=False, num_gpus=wanted)
                self._reallocate(
                    job,
                    ((node, wanted),),
                    [
                        Interruption(kind="slurm", left_s=delays.start_s),
                        Interruption(kind="launch", left_s=launch_s),
                    ],
                    at_s=max(at_s, self.now_s),
                )

    def _scale(self, adaptive: Sequence[SimulatedJob], owned: Sequence[int]) -> list[int]:
        """Let the cluster grow or shrink; return the GPUs of each node that is up."""
        if not self._nodes_change:
            return list(self.cluster.node_gpus)
        fixed = self._rigid.owned_gpus()
        busy = {node: gpus + fixed[node] for node, gpus in enumerate(owned)}
        self.supply.scale(
            self.now_s, adaptive, busy, frozenset(node for node, gpus in enumerate(fixed) if gpus)
        )
        up = self.supply.up(self.now_s) - self._outages.down(self.now_s)
        return [gpus if node in up else 0 for node, gpus in enumerate(self.cluster.node_gpus)]

    def _enact(self, move: Move) -> None:
        job = move.job
        requeued = bool(job.allocation and move.allocation) and move.regroup is None
        self._reallocate(
            job,
            move.allocation,
            move.interruptions,
            after_s=move.after_s,
            regrouped=() if move.regroup is None else move.regroup.wings,
            idle_gpu_s=move.idle_gpu_s,
        )
        if requeued:
            job.expected_delay_s = learned_delay_s(job, move)

    def _reallocate(
        self,
        job: SimulatedJob,
        allocation: GpusByNode,
        interruptions: Sequence[Interruption],
        *,
        after_s: float = 0.0,
        at_s: float | None = None,
        regrouped: tuple[GpusByNode, ...] = (),
        idle_gpu_s: float = 0.0,
    ) -> None:
        speeds = self._speeds[job.job.application]
        slowest = min((node for node, _ in allocation), key=speeds.__getitem__, default=0)
        job.reallocate(
            allocation,
            now_s=self.now_s if at_s is None else at_s,
            interruptions=interruptions,
            after_s=after_s,
            regrouped=regrouped,
            idle_gpu_s=idle_gpu_s,
            gpu_type=self._groups[slowest].gpu_type,
            speed=speeds[slowest],
        )

    def _share(
        self,
        policy: SharingPolicy,
        decision: Mapping[str, GpusByNode],
        jobs: Sequence[SimulatedJob],
        cluster: Cluster,
    ) -> None:
        """Check the pairs of a decision, and give their jobs the rates of pairs."""
        self._pairs = policy.pairs
        rates = relative_rates(self._pairs, decision, jobs, cluster.node_types, policy.rates)
        check_allocations(held_once(decision, self._pairs), cluster)
        for job in jobs:
            job.interference = 1.0 - rates.get(job.job.name, 1.0)

    def _count_shared(self, before: Sequence[tuple[SimulatedJob, float, float]]) -> None:
        """Count half of the GPU time since `before` for each job of a pair."""
        shared = {name for pair in self._pairs for name in (pair.first, pair.second)}
        for job, used_s, lost_s in before:
            if job.job.name in shared:
                job.gpu_seconds = (job.gpu_seconds + used_s) / 2
                job.lost_gpu_seconds = (job.lost_gpu_seconds + lost_s) / 2

    def _apply_interference(self, active: Sequence[SimulatedJob]) -> None:
        """Slow down jobs over several nodes where two of them share a node, as the artifact can."""
        share = self.rules.interference
        if share > 0:
            spread = [job for job in active if len(job.allocation) > 1]
            crowd = Counter(node for job in spread for node, _ in job.allocation)
            for job in active:
                crowded = len(job.allocation) > 1 and any(crowd[node] > 1 for node, _ in job.allocation)
                job.interference = share if crowded else 0.0

    def _num_shared(self, active: Sequence[SimulatedJob]) -> int:
        """Return how many GPUs have two jobs."""
        seconds = {pair.second for pair in self._pairs}
        return sum(job.num_gpus for job in active if job.job.name in seconds) if seconds else 0

    def _record(self, active: Sequence[SimulatedJob], up: Sequence[int], solve_s: float) -> None:
        # Filled in by `advance`.
        self._goodput = {}
        self.rounds.append(
            RoundRecord(
                at_s=self.now_s,
                num_jobs=len(active),
                allocations={job.job.name: job.allocation for job in active if job.allocation},
                solve_s=solve_s,
                goodput=self._goodput,
                nodes_up=sum(1 for gpus in up if gpus),
                gpus_up=sum(up),
                gpus_used=sum(job.num_gpus for job in active) - self._num_shared(active),
                gpus_unmanaged=sum(self._rigid.owned_gpus(unmanaged_only=True)),
                num_waiting=sum(1 for job in active if not job.allocation),
            )
        )


def _user_batch(job: SimulatedJob) -> BatchChoice:
    return user_batch(job.job, job.application, job.num_gpus)


def _sum_gpus(allocations: Iterable[GpusByNode], num_nodes: int) -> list[int]:
    """Return the GPUs of all `allocations` on each node."""
    found = [0] * num_nodes
    for allocation in allocations:
        for node, gpus in allocation:
            found[node] += gpus
    return found


def _subtract(gpus: Sequence[int], taken: Sequence[int]) -> list[int]:
    return [all_ - used if all_ > used else 0 for all_, used in zip(gpus, taken, strict=True)]


def _give_back(
    adaptive: Sequence[SimulatedJob], available: Sequence[int]
) -> list[tuple[SimulatedJob, GpusByNode, tuple[GpusByNode, ...]]]:
    """Take GPUs from jobs on each node that has fewer GPUs than its jobs own, until the policy has decided.

    First what jobs have beyond their users' sizes, then all of the last submitted ones. Return the jobs, with
    the allocation and wings that they still have. Without wings, a policy expects a requeue of them.
    """
    owned = _sum_gpus((job.allocation for job in adaptive), len(available))
    over = [used - left for used, left in zip(owned, available, strict=True)]
    found: dict[str, tuple[SimulatedJob, GpusByNode, tuple[GpusByNode, ...]]] = {}
    last_first = sorted(adaptive, key=lambda job: -job.job.submitted_s)
    for lent_only in (True, False):
        for job in last_first:
            if any(over[node] > 0 for node, _ in job.allocation) and (has_lent_gpus(job) or not lent_only):
                found.setdefault(job.job.name, (job, job.allocation, job.wings))
                kept = own_gpus(job) if lent_only else ()
                for node, gpus in job.allocation:
                    over[node] -= gpus - dict(kept).get(node, 0)
                job.allocation, job.wings = kept, ()
    return list(found.values())
