"""Step times with outliers, from the raw steps through the agent's medians and fit to predictions."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

from pollux_slurm.agent.measure.fit_and_batch_choice import Tuner
from pollux_slurm.agent.measure.profile import Situation, StepProfile
from pollux_slurm.goodput import gradient_time_s, iteration_time_s
from pollux_slurm.model import BatchLimits, Configuration, ThroughputParameters
from tests.agent.steps import step

TRUTH = ThroughputParameters(
    alpha_g=0.05, beta_g=0.002, alpha_n=0.08, beta_n=0.006, alpha_l=0.03, beta_l=0.004, gamma=1.6
)

# (nodes, GPUs, examples per GPU and micro-batch).
MEASURED = [(1, k, m) for k in (1, 2, 4) for m in (16, 32, 64)] + [
    *((2, 8, 16), (2, 8, 32), (2, 8, 64), (3, 12, 16), (3, 12, 32), (4, 16, 32), (4, 16, 64)),
    *((1, 3, 32), (1, 3, 64), (2, 6, 32), (2, 5, 16)),
]
PREDICTED = [
    (n, k, m) for n, k in ((1, 1), (1, 2), (1, 4), (2, 4), (2, 8), (4, 16), (8, 32)) for m in (16, 48, 128)
]
NOISE, FACTOR = 0.02, 10.0


def prediction_errors(
    rng: random.Random, *, num_steps: Callable[[random.Random], int], share: float
) -> list[float]:
    """Return |predicted/true − 1| of each of `PREDICTED` for a job that was on all of `MEASURED`.

    In each situation it measures `num_steps` steps with 2 % noise, of which `share` take ten times as long.
    """
    seconds = itertools.count(0.0, 10.0)
    profile = StepProfile(now=lambda: next(seconds))
    for n, k, m in MEASURED:
        micro_batch_s, last_s = float(gradient_time_s(TRUTH, m)), float(iteration_time_s(TRUTH, n, k, m))
        for _ in range(num_steps(rng)):
            slow = FACTOR if rng.random() < share else 1.0
            profile.record(
                Situation(num_nodes=n, num_gpus=k, atomic_batch_size=m),
                step(
                    slow * micro_batch_s * math.exp(rng.gauss(0.0, NOISE)),
                    slow * last_s * math.exp(rng.gauss(0.0, NOISE)),
                ),
            )
    tuner = Tuner(Configuration(num_nodes=4, num_gpus=16), profile)
    tuner.refit()
    theta = tuner.model(BatchLimits(initial_batch_size=16), None).throughput
    assert theta is not None
    return [
        abs(float(iteration_time_s(theta, *where)) / float(iteration_time_s(TRUTH, *where)) - 1.0)
        for where in PREDICTED
    ]


def at_percentile(errors: list[float], percent: float) -> float:
    """Return the error that so many percent of all do not exceed."""
    return sorted(errors)[math.ceil(percent / 100 * len(errors)) - 1]
