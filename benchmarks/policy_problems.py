"""Scheduling problems of any size, generated from the fitted applications of the published traces.

Throughput and noise are fits of this project's form to rounds of the OSDI 2021 artifact (Apache License 2.0,
Petuum Inc.); each job's are varied by a seeded generator. The cluster is busy: nine jobs in ten run where an
earlier decision placed them, the others wait.
"""

from __future__ import annotations

import dataclasses
import random

from pollux_slurm.goodput import TableCache
from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    GoodputModel,
    GradientStatistics,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    ThroughputParameters,
)
from pollux_slurm.policy import decide

GPUS_PER_NODE = 4
MAX_GPUS = 256
# name: share of jobs; α_g, β_g, α_n, β_n, α_l, β_l (s), γ; |G|², tr Σ; M0, M_max, m_min, m_max
APPLICATIONS = {
    "cifar10": (
        0.50,
        (0.0179, 6.86e-4, 0.0370, 3.91e-3, 0.0130, 2.4e-6, 1.13),
        (1.2e-4, 0.126),
        (128, 4096, 32, 1024),
    ),
    "deepspeech2": (
        0.15,
        (0.294, 0.0222, 1.19, 5.16e-4, 0.243, 0.0113, 2.38),
        (1.5e-6, 2.48e-3),
        (20, 640, 10, 80),
    ),
    "bert": (0.15, (0.0583, 0.0687, 0.994, 1e-8, 0.0524, 4.5e-3, 1.0), (3.89e10, 4.93e13), (12, 384, 4, 12)),
    "yolov3": (0.10, (0.222, 0.0164, 1.21, 1e-8, 0.168, 9.58e-3, 2.22), (132.0, 1.86e4), (8, 512, 4, 8)),
    "imagenet": (
        0.10,
        (0.0790, 4.46e-3, 0.466, 3.21e-4, 0.143, 1.45e-4, 3.47),
        (0.0398, 6.58),
        (200, 12800, 20, 200),
    ),
}
SPEEDS = (("t4", 1.0), ("v100", 2.6), ("a100", 5.2))


def generated_problem(
    num_gpus: int,
    num_jobs: int,
    *,
    num_types: int = 1,
    num_users: int = 0,
    seed: int = 0,
    objective: str = "generalized-mean",
) -> Problem:
    """Return a problem of `num_gpus` GPUs, 4 a node, in equal parts of `num_types` types.

    `num_users` share, of whom the k-th has 1/k of the first one's jobs, on average; 0: jobs do.
    """
    rng = random.Random(seed)
    count = num_gpus // GPUS_PER_NODE
    nodes = tuple(
        NodeCapacity(
            name=f"n{index:04d}",
            num_gpus=GPUS_PER_NODE,
            num_cpus=64,
            memory_mb=512_000,
            gpu_type=SPEEDS[index * num_types // count][0] if num_types > 1 else None,
        )
        for index in range(count)
    )
    users = [""] * num_jobs
    if num_users:
        shares = [1.0 / (number + 1) for number in range(num_users)]
        users = random.Random(seed).choices([f"user{n}" for n in range(num_users)], shares, k=num_jobs)
    first = Problem(
        nodes=nodes,
        jobs=tuple(
            dataclasses.replace(_job(rng, index, num_types), user=user) for index, user in enumerate(users)
        ),
        gpu_speeds=SPEEDS if num_types > 1 else (),
        objective=Objective(name=objective, between="users"),
    )
    held = {one.job_id: one.allocation for one in decide(first, tables=TableCache()).jobs}
    jobs = []
    for index, job in enumerate(first.jobs):
        if rng.random() < 0.1:
            new = _job(rng, num_jobs + index, num_types)
            jobs.append(dataclasses.replace(new, user=job.user))
        else:
            age_s = rng.lognormvariate(8.0, 1.5)
            restarts = int(age_s / 1200)
            jobs.append(
                dataclasses.replace(job, current=held[job.job_id], age_s=age_s, num_restarts=restarts)
            )
    return dataclasses.replace(first, jobs=tuple(jobs))


def _job(rng: random.Random, index: int, num_types: int) -> ProblemJob:
    name = rng.choices(list(APPLICATIONS), [row[0] for row in APPLICATIONS.values()])[0]
    _, theta, (sqr, var), (initial, largest, low, high) = APPLICATIONS[name]
    *times, gamma = theta
    speed = rng.lognormvariate(0.0, 0.3)
    limits = BatchLimits(
        initial_batch_size=initial, max_batch_size=largest, min_atomic=low, max_atomic=high, accumulation=True
    )
    statistics = GradientStatistics(sqr=sqr, var=var * rng.lognormvariate(0.0, 1.0))
    seen = min(MAX_GPUS // 2, int(2 ** rng.uniform(0, 8)))

    def model(faster: float) -> GoodputModel:
        alpha_g, beta_g, *sync = (value * speed for value in times)
        return GoodputModel(
            limits=limits,
            statistics=statistics,
            throughput=ThroughputParameters(
                alpha_g=alpha_g / faster,
                beta_g=beta_g / faster,
                alpha_n=sync[0],
                beta_n=sync[1],
                alpha_l=sync[2],
                beta_l=sync[3],
                gamma=gamma,
            ),
            max_gpus_seen=seen,
            max_nodes_seen=1,
        )

    measured = rng.sample(SPEEDS, rng.randint(1, num_types)) if num_types > 1 else []
    return ProblemJob(
        job_id=str(index),
        model=None if measured else model(1.0),
        models=tuple((kind, model(faster)) for kind, faster in measured),
        max_gpus=min(MAX_GPUS, largest // low),
        age_s=rng.uniform(0, 600),
        restart_delay_s=30.0,
        current=Allocation(),
    )
