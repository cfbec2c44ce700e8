"""The same problem has the same answer in any process: whatever its hash seed, threads and processor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import dataclasses, random
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem.json_format import decision_to_json
from tests.policy.problems import random_problem, with_everything

def show(problem, effort):
    print(decision_to_json(dataclasses.replace(decide(problem, effort=effort), times_s=())))

for seed in range(12):
    rng = random.Random(seed)
    show(with_everything(rng, random_problem(rng, num_nodes=8, num_gpus=4, num_jobs=4 + 2 * seed)), 0.2)

# Prices of several partitions are found together: rounding errors matter most there.
for seed in (24, 34, 40, 60, 64, 197):
    rng = random.Random(seed)
    one = with_everything(rng, random_problem(rng, num_nodes=8, num_gpus=4, num_jobs=rng.choice([8, 14, 20])))
    names = [node.name for node in one.nodes]
    parts = [frozenset(names[:4]), frozenset(names[2:]), None]
    jobs = tuple(dataclasses.replace(job, partition_nodes=rng.choice(parts)) for job in one.jobs)
    show(dataclasses.replace(one, jobs=jobs), 0.05)
"""


@pytest.mark.slow
def test_that_hash_seeds_threads_and_another_processor_change_nothing() -> None:
    answers = []
    for seed, threads, processor in (("1", "1", None), ("2", "2", None), ("3", "1", "Prescott")):
        extra = {
            "PYTHONHASHSEED": seed,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        if processor is not None:
            # OpenBLAS multiplies matrices as on a processor of 2004; it has no effect except on x86.
            extra["OPENBLAS_CORETYPE"] = processor
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | extra,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        answers.append(done.stdout)
    assert answers[0].count("\n") == 18
    assert answers[0] == answers[1] == answers[2]
