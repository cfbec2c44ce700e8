"""The daemon's own policy in a simulation: jobs fit their models as agents do, `decide` places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pollux_slurm.errors import SimulationError
from pollux_slurm.goodput import TableCache, best_batch, fit_throughput
from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    BatchLimits,
    Configuration,
    GoodputModel,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    ThroughputParameters,
)
from pollux_slurm.policy import decide
from pollux_slurm.simulator.applications import Application
from pollux_slurm.simulator.batches import split_batch
from pollux_slurm.simulator.cluster import Cluster
from pollux_slurm.simulator.job import Pieces, SimulatedJob, Situation

# The artifact's bounds: no trace tells more GPUs, and ncf is held at one GPU with this batch.
_MOST_GPUS = 64
_FIXED_BATCH = {"ncf": 32768}


class PolluxPolicy:
    """`decide` with an objective. With `declared`, jobs tell how many epochs they will train."""

    def __init__(self, objective: Objective, *, declared: bool = False, solver: str = "exact") -> None:
        self._objective, self._declared, self._solver = objective, declared, solver
        self._tables = TableCache()
        self._fits: dict[tuple[str, str, frozenset[Situation]], ThroughputParameters | None] = {}
        self._batches: dict[tuple[GoodputModel, Configuration], BatchChoice | None] = {}
        self._limits: dict[str, BatchLimits] = {}

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        application, num_gpus = job.application, job.num_gpus
        fixed = _FIXED_BATCH.get(application.name)
        if fixed is not None:
            return split_batch(application, fixed, num_gpus)
        # On a type that was never measured, the batch that was best on another is a fair first one.
        measured = dict(self._models(job))
        model = measured.get(job.gpu_type) or next(iter(measured.values()), None)
        configuration = Configuration(num_nodes=len(job.pieces), num_gpus=num_gpus)
        if model is not None:
            key = (model, configuration)
            if key not in self._batches:
                found = best_batch(model, configuration)
                self._batches[key] = None if found is None else found.batch
            batch = self._batches[key]
            if batch is not None:
                return batch
        return split_batch(
            application, max(application.initial_batch_size, application.min_atomic * num_gpus), num_gpus
        )

    def allocate(self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster) -> Mapping[str, Pieces]:
        names = [f"n{index:05d}" for index in range(cluster.num_nodes)]
        several = len(cluster.gpu_types) > 1
        problem = Problem(
            nodes=tuple(
                NodeCapacity(
                    name=name,
                    num_gpus=gpus,
                    num_cpus=gpus,
                    memory_mb=1,
                    gpu_type=group.gpu_type if several else None,
                )
                for name, gpus, group in zip(names, cluster.node_gpus, cluster.node_groups, strict=True)
            ),
            jobs=tuple(self._problem_job(now_s, job, names, several=several) for job in jobs),
            objective=self._objective,
            gpu_speeds=tuple({group.gpu_type: group.speed for group in cluster.groups}.items()),
        )
        decision = decide(problem, solver=self._solver, tables=self._tables)
        if decision.excluded:
            job_id, reason = decision.excluded[0]
            raise SimulationError(f"job {job_id} cannot be scheduled: {reason}")
        number = {name: index for index, name in enumerate(names)}
        return {
            job.job_id: tuple((number[node], gpus) for node, gpus in job.allocation.gpus_by_node)
            for job in decision.jobs
            if job.allocation
        }

    def _problem_job(
        self, now_s: float, job: SimulatedJob, names: Sequence[str], *, several: bool
    ) -> ProblemJob:
        application = job.application
        most = min(_MOST_GPUS, application.max_batch_size // application.min_atomic)
        if application.name in _FIXED_BATCH:
            most = 1
        # How far an epoch has come, the loop knows from its data; here progress tells it nearly as well.
        begin = application.epoch_end(job.epoch - 1) if job.epoch else 0.0
        part = (job.progress - begin) / (application.epoch_end(job.epoch) - begin)
        return ProblemJob(
            job_id=job.job.name,
            model=None if several else self._model(job, job.gpu_type),
            models=self._models(job) if several else (),
            max_gpus=most,
            age_s=now_s - job.job.submitted_s,
            num_restarts=job.num_restarts or 0,
            restart_delay_s=job.expected_delay_s,
            current=Allocation.of({names[node]: gpus for node, gpus in job.pieces}),
            pinned=job.in_flight and bool(job.pieces),
            progress=job.progress * application.initial_batch_size,
            epochs_done=job.epoch + part if self._declared else None,
            epochs_declared=float(application.num_epochs) if self._declared else None,
        )

    def _models(self, job: SimulatedJob) -> tuple[tuple[str, GoodputModel], ...]:
        """Return what the job's agent would report of each GPU type that it has run on."""
        found = ((gpu_type, self._model(job, gpu_type)) for gpu_type in job.seen)
        return tuple((gpu_type, model) for gpu_type, model in found if model is not None)

    def _model(self, job: SimulatedJob, gpu_type: str) -> GoodputModel | None:
        """Return what the job's agent would report of a GPU type; None before its first step there."""
        seen = job.seen.get(gpu_type)
        if not seen:
            return None
        key = (job.application.name, gpu_type, frozenset(seen))
        if key not in self._fits:
            ordered = [seen[situation] for situation in sorted(seen)]
            self._fits[key] = fit_throughput(ordered).parameters
        return GoodputModel(
            limits=self._limits_of(job.application),
            statistics=job.statistics,
            throughput=self._fits[key],
            max_gpus_seen=max(gpus for _, gpus, _ in seen),
            max_nodes_seen=max(nodes for nodes, _, _ in seen),
        )

    def _limits_of(self, application: Application) -> BatchLimits:
        limits = self._limits.get(application.name)
        if limits is None:
            limits = self._limits[application.name] = BatchLimits(
                initial_batch_size=application.initial_batch_size,
                max_batch_size=application.max_batch_size,
                min_atomic=application.min_atomic,
                max_atomic=application.max_atomic,
                accumulation=True,
            )
        return limits
