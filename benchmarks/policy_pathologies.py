"""How often each objective does what no scheduler should, on random small problems: docs/policy.md.

Problems are those of the tests: two or three nodes of 3 to 8 GPUs, made from a seed each.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import random
from collections.abc import Callable

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Configuration, Decision, GoodputModel, Objective, Problem, ProblemJob
from pollux_slurm.policy import OBJECTIVES, decide
from tests.policy.builders import in_other_units, job, nodes, problem
from tests.policy.packed import packed_problem
from tests.policy.problems import random_model, random_problem

Outcome = tuple[bool, float]
"""Whether it happened, and how bad it was."""


def unserved(seed: int, name: str) -> Outcome:
    """All minimums can be placed together: is anybody left waiting? How many?"""
    return _unserved(seed, name, age_s=0.0)


def unserved_after_an_hour(seed: int, name: str) -> Outcome:
    """The same of jobs that have waited for an hour."""
    return _unserved(seed, name, age_s=3600.0)


def _unserved(seed: int, name: str, *, age_s: float) -> Outcome:
    rng = random.Random(seed)
    one = packed_problem(rng, num_nodes=3, num_jobs=rng.randint(2, 12))
    jobs = [with_history(rng, j if j.current else dataclasses.replace(j, age_s=age_s)) for j in one.jobs]
    found = decide(under(dataclasses.replace(one, jobs=tuple(jobs)), name))
    waiting = sum(not d.allocation for d in found.jobs)
    return waiting > 0, float(waiting)


def unequal(seed: int, name: str) -> Outcome:
    """Equal new jobs whose returns fall, on one node: do they get shares more than one GPU apart?"""
    rng = random.Random(seed)
    model = falling_returns(rng)
    twins = [job(str(index), model=model, age_s=60.0) for index in range(rng.randint(2, 8))]
    given = counts(decide(under(problem(nodes(1, 8), *twins), name)))
    spread = max(given) - min(given)
    return spread > 1, float(spread)


def worse_with_more(seed: int, name: str) -> Outcome:
    """A GPU more on a node, the fair share fixed where it can be: is less served, or the fitness lower?"""
    rng = random.Random(seed)
    one = random_problem(rng, num_nodes=2, num_gpus=3, num_jobs=4)
    one = dataclasses.replace(one, jobs=tuple(with_history(rng, j) for j in one.jobs))
    first = one.nodes[0]
    larger = dataclasses.replace(
        first, num_gpus=first.num_gpus + 1, num_cpus=first.num_cpus + 3, memory_mb=first.memory_mb + 1500
    )
    less = decide(under(one, name))
    more = decide(under(dataclasses.replace(one, nodes=(larger, *one.nodes[1:])), name))
    if set(dict(less.excluded)) != set(dict(more.excluded)):
        return False, 0.0
    before, after = (sum(count > 0 for count in counts(found)) for found in (less, more))
    lost = 1.0 - more.fitness / less.fitness if less.fitness > 0 else 0.0
    if before != after:
        return after < before, 100.0 if after < before else 0.0
    return lost > 1e-6, 100 * max(lost, 0.0)


def other_with_units(seed: int, name: str) -> Outcome:
    """A job's times in another unit, its history unchanged: does anybody get another number of GPUs?"""
    rng = random.Random(seed)
    one = random_problem(rng, num_nodes=2, num_gpus=4, num_jobs=4)
    jobs = [with_history(rng, j) for j in one.jobs]
    before = decide(under(dataclasses.replace(one, jobs=tuple(jobs)), name))
    index = rng.randrange(len(jobs))
    jobs[index] = in_other_units(jobs[index], 1024.0)
    after = decide(under(dataclasses.replace(one, jobs=tuple(jobs)), name))
    moved = sum(abs(a - b) for a, b in zip(counts(before), counts(after), strict=True))
    return moved > 0, moved / 2


def falling_returns(rng: random.Random) -> GoodputModel:
    """Return a random model of which each further GPU of a node adds less goodput than the one before."""
    while True:
        model = random_model(rng)
        assert model.throughput is not None
        theta = dataclasses.replace(model.throughput, alpha_l=0.0, beta_l=0.0, gamma=1.0)
        limits = dataclasses.replace(model.limits, max_batch_size=10**4, max_atomic=None, accumulation=True)
        model = dataclasses.replace(model, throughput=theta, limits=limits, max_gpus_seen=8)
        found = [best_batch(model, Configuration(num_nodes=1, num_gpus=k)) for k in range(1, 9)]
        goodput = [0.0, *(0.0 if one is None else one.goodput for one in found)]
        gains = [after - before for before, after in itertools.pairwise(goodput)]
        if all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(gains)):
            return model


def under(one: Problem, name: str) -> Problem:
    """Return the problem under an objective, with the normaliser fixed where that is possible."""
    return dataclasses.replace(one, objective=Objective(name=name, fair_share_gpus=1))


def with_history(rng: random.Random, one: ProblemJob) -> ProblemJob:
    """Return a job with progress and a declaration, or none."""
    done = rng.choice([None, 1.0, 5.0, 9.0])
    return dataclasses.replace(
        one,
        progress=10 ** rng.uniform(2, 6),
        epochs_done=done,
        epochs_declared=None if done is None else 10.0,
    )


def counts(found: Decision) -> list[int]:
    out = {job_id for job_id, _ in found.excluded}
    return [d.allocation.num_gpus for d in found.jobs if d.job_id not in out] or [0]


CHECKS: dict[str, tuple[Callable[[int, str], Outcome], str]] = {
    "somebody new waits although all minimums fit": (unserved, "jobs"),
    "the same an hour after they came": (unserved_after_an_hour, "jobs"),
    "equal new jobs more than one GPU apart": (unequal, "GPUs apart"),
    "worse with one GPU more": (worse_with_more, "% of fitness"),
    "other sizes in another unit of time": (other_with_units, "GPUs"),
}


def main() -> None:
    """Print a table: a row for each check, a column for each objective."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=300)
    number = parser.parse_args().problems
    names = sorted(OBJECTIVES)
    print(f"{number} problems each; how many, and the worst of them")
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for title, (check, unit) in CHECKS.items():
        cells = []
        for name in names:
            outcomes = [check(seed, name) for seed in range(number)]
            happened = sum(found for found, _ in outcomes)
            worst = max((size for found, size in outcomes if found), default=0.0)
            cells.append(f"{happened} ({worst:.3g} {unit})" if happened else "0")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
