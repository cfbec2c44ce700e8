"""`make bench-policy`: how long a decision takes, its parts, and its gap to the upper bound.

Problems of four sizes (`policy_problems`), each with one GPU type and with three. Tables are timed cold; then
every problem is solved again and again with warm tables: p50 and p95 of the whole decision, its parts, the
proved gap, and the memory at the peak of one decision. `genetic` runs beside, where it ends within a minute.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc

from benchmarks.policy_problems import generated_problem
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Decision, Problem
from pollux_slurm.policy import decide

SIZES = ((64, 40), (512, 250), (2048, 1000), (8192, 4000))
COLUMNS = "  GPUs  jobs types | cold ms |  p50 ms  p95 ms | tables  solve explain |   gap % | MiB | genetic"


def timed(problem: Problem, **options: object) -> tuple[Decision, float]:
    start = time.perf_counter()
    found = decide(problem, **options)  # type: ignore[arg-type]
    return found, time.perf_counter() - start


def measure(
    num_gpus: int, num_jobs: int, num_types: int, *, num_users: int, repeats: int, genetic: bool
) -> str:
    """Return one line of the table."""
    problem = generated_problem(num_gpus, num_jobs, num_types=num_types, num_users=num_users)
    tables = TableCache()
    _, cold_s = timed(problem, tables=tables)
    runs = [timed(problem, tables=tables) for _ in range(repeats)]
    times = sorted(seconds for _, seconds in runs)
    parts = [dict(found.times_s) for found, _ in runs]
    middle = {name: 1000 * statistics.median(part[name] for part in parts) for name in parts[0]}
    tracemalloc.start()
    found, _ = timed(problem, tables=tables)
    memory = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    beside = "-"
    if genetic:
        other, seconds = timed(problem, tables=tables, solver="genetic")
        beside = f"{100 * (other.fitness / found.fitness - 1):+.2f} % in {seconds:.1f} s"
    p50_ms = 1000 * statistics.median(times)
    p95_ms = 1000 * times[int(0.95 * (len(times) - 1) + 0.5)]
    return (
        f"{num_gpus:6d} {num_jobs:5d} {num_types:5d} | {1000 * cold_s:7.0f} | {p50_ms:7.1f}"
        f" {p95_ms:7.1f} | {middle['tables']:6.1f} {middle['solve']:6.1f}"
        f" {middle['explain']:7.1f} | {100 * (found.gap or 0.0):7.3f} | {memory:3.0f} | {beside}"
    )


def cold_tables() -> str:
    """Return how long 2,000 jobs take in some 67 configurations, from nothing."""
    problem = generated_problem(4096, 2000)
    models = [job.model for job in problem.jobs if job.model is not None]
    keys = [(nodes > 1, nodes * 4) for nodes in range(1, 65)] + [(False, gpus) for gpus in (1, 2, 3)]
    start = time.perf_counter()
    TableCache().lookup(models, keys)
    took_s = time.perf_counter() - start
    return f"tables of {len(models)} jobs × {len(keys)} configurations, cold: {took_s:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", type=int, default=len(SIZES), help="how many of the sizes, small ones first"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--users", type=int, default=0, help="share the jobs among so many users")
    arguments = parser.parse_args()
    print(cold_tables(), flush=True)
    print(COLUMNS)
    for num_gpus, num_jobs in SIZES[: arguments.sizes]:
        for num_types in (1, 3):
            # Beyond, a run takes more than a minute.
            genetic = num_gpus <= 512 and not arguments.users
            line = measure(
                num_gpus,
                num_jobs,
                num_types,
                num_users=arguments.users,
                repeats=arguments.repeats,
                genetic=genetic,
            )
            print(line, flush=True)


if __name__ == "__main__":
    main()
