"""Random problems whose minimums can all be placed together: each is built around such a placement."""

from __future__ import annotations

import dataclasses
import random

from pollux_slurm.model import Allocation, BatchLimits, GpuLimit, Problem, ProblemJob
from tests.policy.builders import nodes
from tests.policy.problems import random_model


class Room:
    """Free GPUs by node, and the nodes with a job over several nodes."""

    def __init__(self, num_nodes: int, num_gpus: int) -> None:
        self.free = {f"n{index}": num_gpus for index in range(num_nodes)}
        self.spanned: set[str] = set()

    def place(self, rng: random.Random, gpus: int) -> Allocation:
        """Return equal shares on random nodes, and take them; nothing where they do not fit."""
        counts = [count for count in range(1, gpus + 1) if gpus % count == 0]
        rng.shuffle(counts)
        for count in counts:
            share = gpus // count
            fits = [name for name, left in self.free.items() if left >= share]
            fits = fits if count == 1 else [name for name in fits if name not in self.spanned]
            if len(fits) >= count:
                chosen = Allocation.of(dict.fromkeys(rng.sample(fits, count), share))
                self.take(chosen)
                return chosen
        return Allocation()

    def take(self, allocation: Allocation) -> None:
        for name, gpus in allocation.gpus_by_node:
            self.free[name] -= gpus
        if allocation.num_nodes > 1:
            self.spanned.update(allocation.nodes)


def packed_problem(rng: random.Random, *, num_nodes: int, num_jobs: int, num_gpus: int = 4) -> Problem:
    """Return a problem with pinned, running and waiting jobs and limits, in which everybody can be served."""
    possible, now = Room(num_nodes, num_gpus), Room(num_nodes, num_gpus)
    jobs: list[ProblemJob] = []
    for index in range(num_jobs):
        least = rng.choice([1, 1, 1, 2, 2, 3, 4, 8])
        place = possible.place(rng, least)
        if not place:
            continue
        limits = BatchLimits(initial_batch_size=64, max_batch_size=1024, accumulation=True)
        model = dataclasses.replace(random_model(rng), limits=limits) if rng.random() < 0.8 else None
        pinned = rng.random() < 0.15
        if pinned:
            now.take(place)
        jobs.append(
            ProblemJob(
                job_id=str(index),
                model=model,
                min_gpus=least,
                age_s=1e4,
                account=rng.choice("xy"),
                current=place if pinned else Allocation(),
                pinned=pinned,
            )
        )
    for index, job in enumerate(jobs):
        if not job.pinned and rng.random() < 0.5:
            current = now.place(rng, job.min_gpus + rng.choice([0, 0, 1, 2]))
            jobs[index] = dataclasses.replace(job, current=current)
    found = []
    for account in "xy":
        mine = [job for job in jobs if job.account == account]
        most = max(sum(job.min_gpus for job in mine), sum(job.current.num_gpus for job in mine))
        if rng.random() < 0.4:
            found.append(GpuLimit(kind="account", name=account, max_gpus=most))
    rng.shuffle(jobs)
    return Problem(nodes=nodes(num_nodes, num_gpus), jobs=tuple(jobs), limits=tuple(found))
