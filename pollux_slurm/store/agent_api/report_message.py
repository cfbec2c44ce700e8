"""A report as one flat message: a value for each column that it fills, None where it has none."""

from __future__ import annotations

from typing import Any

from pollux_slurm.store.contract.interface import Report, RunPhase
from pollux_slurm.store.jobs.goodput_models import MODEL_COLUMNS, model_columns

SAMPLE_COLUMNS = (
    "global_batch_size",
    "atomic_batch_size",
    "accumulation_steps",
    "throughput",
    "predicted_throughput",
    "step_time_s",
    "efficiency",
    "progress",
    "epoch",
    "total_epochs",
    "num_examples",
)
"""The columns of `goodput_samples` that a report fills."""

_RUN = ("run_number", "restart_count", "sequence", "num_steps", "first_step_s", "restore_s")
_CHECKPOINT = ("request_id", "blocked_s", "size_bytes")


def report_message(report: Report) -> dict[str, Any]:
    """Return a checked report as a message."""
    return {
        **{name: getattr(report, name) for name in _RUN},
        "phase": report.phase.value,
        "gpus_per_node": list(report.gpus_per_node),
        "warnings": [warning.value for warning in report.warnings] or None,
        **_sample(report),
        **(dict.fromkeys(MODEL_COLUMNS) if report.model is None else model_columns(report.model)),
        **{name: getattr(report.checkpoint, name, None) for name in _CHECKPOINT},
    }


def _sample(report: Report) -> dict[str, Any]:
    if report.phase is RunPhase.STARTING and report.throughput is None:
        # Nothing is measured yet, and progress and epoch are not yet restored from the checkpoint.
        return dict.fromkeys(SAMPLE_COLUMNS)
    return {name: getattr(report, name, getattr(report.batch, name, None)) for name in SAMPLE_COLUMNS}
