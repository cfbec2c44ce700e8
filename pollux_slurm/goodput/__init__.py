"""The goodput model of one job: throughput, statistical efficiency, goodput, and fitting them.

May be imported by `agent`, `cli`, `daemon`, `now`, `policy`, `report`, `simulator`, `store`, `torch`.

Pure functions of numpy and scipy, after Pollux (OSDI 2021), section 3.
"""

from pollux_slurm.goodput.batch_choice import (
    BatchChooser,
    GoodputEstimate,
    evaluate,
    geometric_batches,
)
from pollux_slurm.goodput.batch_choice_table import GoodputTable, TableCache, best_batch, goodput_table
from pollux_slurm.goodput.checks import check_limits, check_model
from pollux_slurm.goodput.efficiency import (
    conservative_statistics,
    efficiency,
    gain,
    noise_scale,
)
from pollux_slurm.goodput.expected_length import ExpectedProgress, expected_progress
from pollux_slurm.goodput.fit import FitResult, fit_throughput
from pollux_slurm.goodput.observation import Observation, lasts_s
from pollux_slurm.goodput.taught_model import agrees, taught_model, training_course
from pollux_slurm.goodput.throughput_model import gradient_time_s, iteration_time_s, sync_time_s

__all__ = [
    "BatchChooser",
    "ExpectedProgress",
    "FitResult",
    "GoodputEstimate",
    "GoodputTable",
    "Observation",
    "TableCache",
    "agrees",
    "best_batch",
    "check_limits",
    "check_model",
    "conservative_statistics",
    "efficiency",
    "evaluate",
    "expected_progress",
    "fit_throughput",
    "gain",
    "geometric_batches",
    "goodput_table",
    "gradient_time_s",
    "iteration_time_s",
    "lasts_s",
    "noise_scale",
    "sync_time_s",
    "taught_model",
    "training_course",
]
