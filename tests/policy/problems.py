"""Random scheduling problems in which every rule of the policy can matter."""

from __future__ import annotations

import dataclasses
import random

from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    GoodputModel,
    GpuLimit,
    GradientStatistics,
    MovingRules,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    ThroughputParameters,
)


def random_model(rng: random.Random) -> GoodputModel:
    initial = rng.choice([1, 8, 30, 128])
    adaptive = rng.random() < 0.7
    max_atomic = rng.choice([None, initial, 2 * initial, 16])
    return GoodputModel(
        limits=BatchLimits(
            initial_batch_size=initial,
            max_batch_size=initial * rng.choice([1, 4, 64]) if adaptive else None,
            min_atomic=1,
            max_atomic=max_atomic,
            accumulation=rng.random() < 0.7,
        ),
        statistics=GradientStatistics(sqr=10 ** rng.uniform(-3, 1), var=10 ** rng.uniform(-2, 2))
        if rng.random() < 0.9
        else None,
        throughput=ThroughputParameters(
            alpha_g=10 ** rng.uniform(-3, 0),
            beta_g=10 ** rng.uniform(-4, -1),
            alpha_n=10 ** rng.uniform(-3, 0.3),
            beta_n=10 ** rng.uniform(-4, -1),
            alpha_l=10 ** rng.uniform(-4, -0.5),
            beta_l=10 ** rng.uniform(-4, -1),
            gamma=rng.uniform(1, 5),
        ),
        max_gpus_seen=rng.choice([0, 1, 2, 4, 8, 32]),
        max_nodes_seen=0,
    )


SPEEDS = (("a", 1.0), ("b", 2.5))


def with_everything(rng: random.Random, plain: Problem) -> Problem:
    """Return a problem with GPU types, weights, limits, rigid jobs and rules of moving added to it."""
    types = [rng.choice(["a", "b"]) for _ in plain.nodes] if rng.random() < 0.7 else ["a"] * len(plain.nodes)
    jobs = []
    for job in plain.jobs:
        models = tuple((kind, random_model(rng)) for kind in rng.sample(["a", "b"], rng.randint(0, 2)))
        low = job.current.num_gpus or rng.choice([1, 2])
        rigid = rng.random() < 0.2
        jobs.append(
            dataclasses.replace(
                job,
                models=models,
                model=job.model if rng.random() < 0.5 or not models else None,
                weight=rng.choice([1.0, 1.0, 3.0]),
                account=rng.choice(["x", "y"]),
                user=rng.choice(["u", "v"]),
                rigid=rigid,
                min_gpus=low if rigid else job.min_gpus,
                max_gpus=None if rigid else job.max_gpus,
            )
        )
    limits = [
        GpuLimit(kind=kind, name=name, max_gpus=rng.randint(0, 6))
        for kind, name in (("account", "x"), ("user", "u"))
        if rng.random() < 0.4
    ]
    if rng.random() < 0.3:
        named = tuple(job.job_id for job in jobs if rng.random() < 0.6)
        limits.append(GpuLimit(kind="qos", name="some", max_gpus=rng.randint(0, 6), job_ids=named))
    return dataclasses.replace(
        plain,
        nodes=tuple(
            dataclasses.replace(node, gpu_type=kind) for node, kind in zip(plain.nodes, types, strict=True)
        ),
        jobs=tuple(jobs),
        limits=tuple(limits),
        moving=MovingRules(
            hysteresis=rng.choice([0.0, 0.1]),
            max_reallocations=rng.choice([None, 0, 1]),
            min_age_s=rng.choice([0.0, 100.0]),
        ),
        gpu_speeds=SPEEDS,
    )


def with_wings(rng: random.Random, plain: Problem) -> Problem:
    """Return a problem in which most running jobs can move in place."""
    jobs = []
    for job in plain.jobs:
        if job.current and rng.random() < 0.8:
            wings = _random_wings(rng, job.current)
            delay_s = rng.choice([0.0, 1.0, 8.0, 8.0, 30.0, 90.0])
            job = dataclasses.replace(
                job, wings=wings, in_place_delay_s=delay_s if rng.random() < 0.9 else None
            )
        jobs.append(job)
    nodes = [dataclasses.replace(node, several_wings=rng.random() < 0.4) for node in plain.nodes]
    return dataclasses.replace(plain, nodes=tuple(nodes), jobs=tuple(jobs))


def _random_wings(rng: random.Random, current: Allocation) -> tuple[Allocation, ...]:
    if rng.random() < 0.3:
        return (current,)
    wings = []
    for name, gpus in current.gpus_by_node:
        first = rng.randint(1, gpus)
        wings += [Allocation.of({name: part}) for part in (first, gpus - first) if part]
    rng.shuffle(wings)
    return tuple(wings)


def random_problem(rng: random.Random, *, num_nodes: int, num_gpus: int, num_jobs: int) -> Problem:
    """Return a problem whose present allocations are feasible, with jobs that came later waiting."""
    nodes = []
    for index in range(num_nodes):
        gpus = num_gpus if rng.random() < 0.8 else rng.randint(0, num_gpus)
        nodes.append(
            NodeCapacity(
                name=f"n{index}",
                num_gpus=gpus,
                num_cpus=rng.choice([2, 4]) * num_gpus,
                memory_mb=1000 * num_gpus,
                accepts_new=rng.random() < 0.9,
            )
        )
    free = {node.name: [node.num_gpus, node.num_cpus, node.memory_mb] for node in nodes}
    spanned: set[str] = set()
    jobs = []
    for index in range(num_jobs):
        cpus, memory = rng.choice([1, 1, 3]), rng.choice([0, 500, 1500])
        current = Allocation()
        if rng.random() < 0.6:
            current = _random_allocation(rng, free, spanned, (1, cpus, memory))
        low = rng.choice([1, 1, 1, 2, 4])
        jobs.append(
            ProblemJob(
                job_id=str(index),
                model=random_model(rng) if rng.random() < 0.8 else None,
                min_gpus=low,
                max_gpus=rng.choice([None, None, low, low + 2, 64]),
                cpus_per_gpu=cpus,
                memory_per_gpu_mb=memory,
                age_s=rng.choice([0.0, 60.0, 1000.0, 1e5]),
                num_restarts=rng.choice([0, 1, 10]),
                restart_delay_s=rng.choice([0.0, 30.0]),
                current=current,
                pinned=bool(current) and rng.random() < 0.15,
                partition_nodes=None
                if rng.random() < 0.85
                else frozenset(node.name for node in nodes if rng.random() < 0.7),
            )
        )
    rng.shuffle(jobs)
    exponent = rng.choice([-1.0, -1.0, -1.0, 0.0, 0.5, 1.0, -4.0])
    return Problem(nodes=tuple(nodes), jobs=tuple(jobs), objective=Objective(exponent=exponent))


def _random_allocation(
    rng: random.Random, free: dict[str, list[int]], spanned: set[str], need: tuple[int, int, int]
) -> Allocation:
    wide = rng.random() < 0.4
    share = rng.randint(1, 4)
    room = [
        name
        for name, left in free.items()
        if all(share * part <= amount for part, amount in zip(need, left, strict=True))
        and not (wide and name in spanned)
    ]
    if not room:
        return Allocation()
    names = rng.sample(room, rng.randint(1, len(room)) if wide else 1)
    chosen = dict.fromkeys(names, share)
    if wide and len(names) > 1:
        # A job that Slurm placed by itself may have unequal shares.
        chosen[names[0]] = rng.randint(1, share)
        spanned.update(names)
    for name, gpus in chosen.items():
        free[name] = [amount - gpus * part for part, amount in zip(need, free[name], strict=True)]
    return Allocation.of(chosen)
