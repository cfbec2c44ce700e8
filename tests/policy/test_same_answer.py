"""The same problem has the same answer in any process: whatever its hash seed, and on one thread or two."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import dataclasses, random
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem_json import decision_to_json
from tests.policy.problems import random_problem, with_everything

for seed in range(12):
    rng = random.Random(seed)
    one = with_everything(rng, random_problem(rng, num_nodes=8, num_gpus=4, num_jobs=4 + 2 * seed))
    print(decision_to_json(dataclasses.replace(decide(one, effort=0.2), times_s=())))
"""


def test_that_hash_seeds_and_threads_change_nothing() -> None:
    answers = []
    for seed, threads in (("1", "1"), ("2", "2")):
        extra = {
            "PYTHONHASHSEED": seed,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | extra,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        answers.append(done.stdout)
    assert answers[0].count("\n") == 12
    assert answers[0] == answers[1]
