"""How well the throughput model predicts the published measurements of the Pollux artifact.

For each application: θ is fitted to the rows of a random half of its measured placements (fixed seed, the
same as in the tests) and predicts the step times of the other half. Printed is the mean absolute percentage
error over those rows; over the rows among them whose number of replicas no fitted row had; and, each number
of replicas left out in turn, over the rows of the one left out. Then the errors that outliers among raw steps
leave (`tests/goodput/outliers.py`), and the CPU time, of all threads, that a fit of twenty configurations
takes, and finding batches by it.

    POLLUX_TRACES=/path/to/traces python -m benchmarks.predictions
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence

from pollux_slurm.goodput import (
    Observation,
    best_batch,
    fit_throughput,
    goodput_table,
    iteration_time_s,
)
from pollux_slurm.model import BatchLimits, Configuration, GoodputModel, GradientStatistics
from tests.goodput.outliers import at_percentile, prediction_errors
from tests.goodput.traces import APPLICATIONS, by_placement

_SEEDS = range(20)


def main() -> None:
    """Print a line for each application."""
    print("mean absolute percentage error of predicted step times (rows)")
    print(f"{'application':<12} {'other half':>14} {'20 halves':>10} {'new K in it':>13} {'each K left':>14}")
    for application in APPLICATIONS:
        placements = by_placement(application)
        error, held, new_error, new = half(placements, seed=0)
        mean = statistics.fmean(half(placements, seed=seed)[0] for seed in _SEEDS)
        new_text = f"{100 * new_error:.1f} % ({new})" if new else "none"
        print(
            f"{application:<12} {f'{100 * error:.1f} % ({held})':>14} {100 * mean:>8.1f} % {new_text:>13} "
            f"{100 * each_left_out(placements):>12.1f} %"
        )
    errors_of_outliers()
    time_of_fits()


def errors_of_outliers() -> None:
    """Print how far predictions are off where some raw steps take ten times as long, by steps measured."""
    counts: dict[str, Callable[[random.Random], int]] = {
        "1": lambda rng: 1,
        "1 to 8": lambda rng: rng.choice((1, 1, 2, 3, 5, 8)),
        "64, a fifth 1": lambda rng: 1 if rng.random() < 0.2 else 64,
        "64": lambda rng: 64,
    }
    shares = (0.0, 0.05, 0.1, 0.2)
    print("error of predicted step times, 90th and 99th percentile, by the share of steps ten times too long")
    print(f"{'steps of each':<14}" + "".join(f"{f'{100 * share:g} %':>18}" for share in shares))
    for name, num_steps in counts.items():
        texts = []
        for share in shares:
            rng = random.Random(7)
            some = [prediction_errors(rng, num_steps=num_steps, share=share) for _ in range(60)]
            errors = [error for one in some for error in one]
            texts.append(f"{100 * at_percentile(errors, 90):.1f} %, {100 * at_percentile(errors, 99):.1f} %")
        print(f"{name:<14}" + "".join(f"{text:>18}" for text in texts))


def time_of_fits() -> None:
    """Print what a fit of twenty configurations takes, and what finding batches by it does."""
    rows = [row for placement in by_placement("imagenet").values() for row in placement][:20]
    before, theta = fit_throughput(rows[:-1]).parameters, fit_throughput(rows).parameters
    model = GoodputModel(
        limits=BatchLimits(initial_batch_size=200, max_batch_size=6400, max_atomic=200, accumulation=True),
        statistics=GradientStatistics(sqr=1.0, var=4.0),
        throughput=theta,
    )
    one = Configuration(num_nodes=2, num_gpus=8)
    several = [Configuration(num_nodes=1 + (gpus > 4), num_gpus=gpus) for gpus in range(1, 65)]
    works: dict[str, Callable[[], object]] = {
        "fit of 20 configurations": lambda: fit_throughput(rows),
        "the same from the fit of 19": lambda: fit_throughput(rows, previous=before),
        "best batch in 1 configuration": lambda: best_batch(model, one),
        "best batches in 64": lambda: goodput_table([model], several),
    }
    for name, work in works.items():
        taken = []
        for _ in range(200):
            started = time.process_time()
            work()
            taken.append(time.process_time() - started)
        print(f"{name}: median {1e3 * statistics.median(taken):.3f} ms of CPU time, of {len(taken)}")


def half(placements: dict[str, list[Observation]], *, seed: int) -> tuple[float, int, float, int]:
    """Return error and number of held-out rows, and the same of those whose K no fitted row had."""
    fitted = set(random.Random(seed).sample(sorted(placements), len(placements) // 2))
    rows = [row for name in sorted(fitted) for row in placements[name]]
    others = [row for name in placements if name not in fitted for row in placements[name]]
    known = {row.num_gpus for row in rows}
    new = [row for row in others if row.num_gpus not in known]
    return error_of(rows, others), len(others), error_of(rows, new) if new else 0.0, len(new)


def each_left_out(placements: dict[str, list[Observation]]) -> float:
    """Return the error over rows whose number of replicas was left out of the fit, each in turn."""
    rows = [row for name in sorted(placements) for row in placements[name]]
    errors: list[float] = []
    for num_gpus in sorted({row.num_gpus for row in rows}):
        rest = [row for row in rows if row.num_gpus != num_gpus]
        errors += errors_of(rest, [row for row in rows if row.num_gpus == num_gpus])
    return statistics.fmean(errors)


def error_of(fitted: Sequence[Observation], others: Sequence[Observation]) -> float:
    """Return the mean of `errors_of`."""
    return statistics.fmean(errors_of(fitted, others))


def errors_of(fitted: Sequence[Observation], others: Iterable[Observation]) -> list[float]:
    """Return |predicted/measured − 1| of each of `others` by a model of `fitted`."""
    theta = fit_throughput(fitted).parameters
    assert theta is not None
    return [
        abs(
            float(iteration_time_s(theta, row.num_nodes, row.num_gpus, row.atomic_batch_size))
            / row.last_time_s
            - 1
        )
        for row in others
    ]


if __name__ == "__main__":
    main()
