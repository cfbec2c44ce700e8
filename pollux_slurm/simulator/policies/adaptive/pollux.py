"""The daemon's policy in a simulation: simulated agents fit models, and the policy's `allocate` decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pollux_slurm.errors import SimulationError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    PromiseState,
)
from pollux_slurm.policy import NodeFactsCache, allocate
from pollux_slurm.policy.objectives.moving_rules import moving_rules
from pollux_slurm.policy.participation.share_memory import ShareMemory
from pollux_slurm.policy.promises.admission import answer_promises, with_promised_gpus
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.in_place import node_name
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.policies.adaptive.agents import Agents
from pollux_slurm.simulator.policies.adaptive.shared_models import SharedModels

# The solver's effort. Between 0.005 and 0.5, average completion times differ by chance alone. Where jobs may
# be paused, 0.005 costs workload 1 of the artifact 2 %.
EFFORT, EFFORT_WITH_PAUSES = 0.005, 0.02


class PolluxPolicy:
    """`allocate` with an objective. With `declared`, jobs declare how many epochs they will train.

    With `kinds`, jobs of one application teach each other (`SharedModels`). `pauses` allows pausing running
    jobs; with None, the objective decides that, and the effort of the search. With `share_half_life_s`, what
    users used counts in their shares (`ShareMemory`).
    """

    resizes = True

    def __init__(
        self,
        objective: Objective,
        *,
        declared: bool = False,
        kinds: bool = False,
        solver: str = "search",
        effort: float | None = None,
        pauses: bool | None = None,
        share_half_life_s: float | None = None,
        agents: Agents | None = None,
    ) -> None:
        self._objective, self._declared, self._solver = objective, declared, solver
        self._moving = moving_rules(objective.name, pauses=pauses)
        self._effort = (EFFORT_WITH_PAUSES if self._moving.pauses else EFFORT) if effort is None else effort
        self._tables, self._known_nodes = TableCache(), NodeFactsCache()
        self._agents = Agents() if agents is None else agents
        self._shared = SharedModels() if kinds else None
        self._memory = None if share_half_life_s is None else ShareMemory(share_half_life_s)
        self._allocations: dict[GpusByNode, Allocation] = {}
        self._promise_tables = TableCache()
        self._unfinished: Sequence[SimulatedJob] = ()
        # Of the last cluster seen, and whether its nodes may have several wings of a job.
        self._nodes: tuple[Cluster | None, bool, tuple[NodeCapacity, ...]] = (None, False, ())

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        return self._agents.choose_batch(job)

    def goodput(self, job: SimulatedJob, num_nodes: int, num_gpus: int) -> float | None:
        """Return a job's predicted goodput on GPUs of the type that it last ran on, in examples/s."""
        return self._agents.goodput(job, num_nodes, num_gpus)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        problem = self.problem(now_s, jobs, cluster)
        names = [node.name for node in problem.nodes]
        if self._memory is not None:
            problem = self._memory.with_shares(problem, now_s)
        problem = self._keep_promises(now_s, problem, jobs)
        given = allocate(
            problem,
            solver=self._solver,
            tables=self._tables,
            nodes=self._known_nodes,
            effort=self._effort,
        )
        # Where others use most of the cluster, a job may fit nowhere, and waits.
        if given.excluded and cluster.available is None:
            job_id = next(job.job_id for job in problem.jobs if job.job_id in given.excluded)
            raise SimulationError(f"job {job_id} cannot be scheduled: {given.excluded[job_id]}")
        number = {name: index for index, name in enumerate(names)}
        return {
            job_id: tuple([(number[node], gpus) for node, gpus in allocation.gpus_by_node])
            for job_id, allocation in given.allocations.items()
            if allocation
        }

    def problem(self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster) -> Problem:
        """Return the problem of a round, as a daemon would pose it."""
        if self._shared is not None:
            for job in self._unfinished:
                name, kind, is_over = job.job.name, self._kind(job), job.finished_s is not None
                self._shared.watch(name, kind, _progress(job), job.measured.statistics, is_over=is_over)
            self._unfinished = jobs
        several = len(cluster.gpu_types) > 1
        several_wings = any(job.in_place is not None and job.in_place.several_wings for job in jobs)
        if self._nodes[:2] != (cluster, several_wings):
            capacities = _capacities(cluster, several=several, several_wings=several_wings)
            self._nodes = (cluster, several_wings, capacities)
        nodes = self._nodes[2]
        names = [node.name for node in nodes]
        return Problem(
            nodes=nodes,
            jobs=tuple(self._problem_job(now_s, job, names, several=several) for job in jobs),
            objective=self._objective,
            moving=self._moving,
            gpu_speeds=tuple({group.gpu_type: group.common_speed for group in cluster.groups}.items()),
        )

    def _keep_promises(self, now_s: float, problem: Problem, jobs: Sequence[SimulatedJob]) -> Problem:
        """Answer the jobs with a moment, and return the problem in which accepted ones have their GPUs."""
        answers = answer_promises(problem, self._promise_tables)
        for job in jobs:
            answer = answers.get(job.job.name)
            if answer is None:
                continue
            job.promise = answer.state
            if job.accepted_s is None and answer.state is PromiseState.ACCEPTED:
                job.accepted_s = now_s
        return with_promised_gpus(problem, answers)

    def _allocation(self, allocation: GpusByNode, names: Sequence[str]) -> Allocation:
        # Jobs keep an allocation for many rounds. A node's name follows from its number.
        found = self._allocations.get(allocation)
        if found is None:
            found = self._allocations[allocation] = Allocation.of(
                {names[node]: gpus for node, gpus in allocation}
            )
        return found

    def _kind(self, job: SimulatedJob) -> str:
        return job.job.application

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        application = job.application
        # A real training loop knows the part of the epoch from its data; here progress approximates it.
        begin = job.epoch_end(job.epoch - 1) if job.epoch else 0.0
        part = (job.progress - begin) / (job.epoch_end(job.epoch) - begin)
        restart_delay_s, in_place_delay_s = job.expected_delay_s, job.in_place_delay_s
        if in_place_delay_s is not None:
            # As in the daemon: once a warm-up is known, no requeue is expected to be shorter.
            if job.exact and job.num_regroups and not job.num_restarts:
                restart_delay_s = max(restart_delay_s, in_place_delay_s)
            in_place_delay_s = min(in_place_delay_s, restart_delay_s)
        models, expected = dict(self._agents.models(job)), None
        if self._shared is not None:
            models, expected = self._shared.teach(job.job.name, self._kind(job), models, _progress(job))
        asks = job.job.finish_by_s
        return ProblemJob(
            job_id=job.job.name,
            model=None if several else models.get(job.gpu_type),
            models=tuple(models.items()) if several else (),
            min_gpus=application.least_gpus,
            max_gpus=application.most_gpus,
            age_s=now_s - job.job.submitted_s,
            num_restarts=job.num_restarts or 0,
            restart_delay_s=restart_delay_s,
            wings=tuple([self._allocation(wing, names) for wing in job.wings]),
            in_place_delay_s=in_place_delay_s,
            current=self._allocation(job.allocation, names),
            account=job.job.account,
            user=job.job.user,
            pinned=job.in_flight and bool(job.allocation),
            prediction_error=0.0 if (noisy := job.measured.noisy) is None else noisy.error,
            progress=_progress(job),
            epochs_done=job.epoch + part if self._declared else None,
            epochs_declared=float(application.num_epochs) if self._declared else None,
            expected_progress=None if expected is None else expected.median,
            expected_low=None if expected is None else expected.low,
            expected_high=None if expected is None else expected.high,
            course=None if self._shared is None or asks is None else self._shared.course(self._kind(job)),
            finish_by_s=None if asks is None else asks - now_s,
            promise=job.promise,
        )


def _progress(job: SimulatedJob) -> float:
    """Return a job's progress in useful examples."""
    return job.useful_progress * job.application.initial_batch_size


def _capacities(cluster: Cluster, *, several: bool, several_wings: bool) -> tuple[NodeCapacity, ...]:
    """Return the nodes of a problem; their GPU type is set only where there are several."""
    return tuple(
        NodeCapacity(
            name=node_name(index),
            num_gpus=gpus,
            num_cpus=gpus,
            memory_mb=1,
            gpu_type=group.gpu_type if several else None,
            several_wings=several_wings,
        )
        for index, (gpus, group) in enumerate(zip(cluster.node_gpus, cluster.node_groups, strict=True))
    )
