"""Check a report before anything of it is stored: it is data from an untrusted client.

The tables refuse the same numbers. Checked here, a report is refused by the name of its field, numbers of
numpy become Python's, and SQLite, which takes any type in any column, is given the right ones.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, NoReturn, TypeVar

from pollux_slurm.errors import InvalidModelError, ReportRefusedError
from pollux_slurm.model import (
    BatchChoice,
    BatchLimits,
    GoodputModel,
    GradientStatistics,
    JobWarning,
    ThroughputParameters,
)
from pollux_slurm.store.contract.bounds import BOUNDS, MAX_ID
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Report, RunPhase

T = TypeVar("T", BatchLimits, GradientStatistics, ThroughputParameters)

_MAX_NODES = int(BOUNDS["node_rank"][1]) + 1

# An efficiency computed in floating point may overshoot 1 by rounding; more than that is a mistake.
_ROUNDING = 1e-6


def checked_report(report: Report) -> Report:
    """Return `report` in plain Python numbers; raises `ReportRefusedError` that names the bad field."""
    if not isinstance(report, Report):
        refuse("report", "a Report", report)
    if not isinstance(report.phase, RunPhase):
        refuse("phase", "a RunPhase", report.phase)
    return Report(
        run_number=checked_whole("run_number", report.run_number),
        restart_count=checked_whole("restart_count", report.restart_count),
        sequence=checked_whole("sequence", report.sequence),
        phase=report.phase,
        gpus_per_node=_gpus_per_node(report.gpus_per_node),
        model=None if report.model is None else _model(report.model),
        batch=None if report.batch is None else _batch(report.batch),
        throughput=_optional_real("throughput", report.throughput),
        predicted_throughput=_optional_real("predicted_throughput", report.predicted_throughput),
        step_time_s=_optional_real("step_time_s", report.step_time_s),
        efficiency=_efficiency(report.efficiency),
        num_steps=checked_whole("num_steps", report.num_steps),
        num_examples=_optional_whole("num_examples", report.num_examples),
        progress=checked_real("progress", report.progress),
        epoch=checked_whole("epoch", report.epoch),
        total_epochs=_optional_whole("total_epochs", report.total_epochs),
        first_step_s=_optional_real("first_step_s", report.first_step_s),
        restore_s=_optional_real("restore_s", report.restore_s),
        checkpoint=None if report.checkpoint is None else _checkpoint(report.checkpoint),
        warnings=_warnings(report.warnings),
    )


def checked_run_number(run_number: int) -> int:
    """Return a poll's run number; raises `ReportRefusedError` unless it is one."""
    return checked_whole("run_number", run_number)


def checked_request_id(request_id: int) -> int:
    """Return the number of a reallocation; raises `ReportRefusedError` unless it is one."""
    return checked_whole("request_id", request_id)


def _gpus_per_node(sizes: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(sizes, tuple | list) or not 1 <= len(sizes) <= _MAX_NODES:
        refuse("gpus_per_node", f"1 to {_MAX_NODES} nodes", sizes)
    return tuple(checked_whole("gpus_per_node", size, "num_gpus") for size in sizes)


def _model(model: GoodputModel) -> GoodputModel:
    if not isinstance(model, GoodputModel):
        refuse("model", "a GoodputModel", model)
    for part, kind in (("limits", BatchLimits), ("statistics", GradientStatistics)):
        value = getattr(model, part)
        if value is not None and not isinstance(value, kind):
            refuse(f"model.{part}", f"a {kind.__name__}", value)
    if model.throughput is not None and not isinstance(model.throughput, ThroughputParameters):
        refuse("model.throughput", "ThroughputParameters", model.throughput)
    if model.limits is None:
        refuse("model.limits", "BatchLimits", model.limits)
    plain = GoodputModel(
        limits=_plain(model.limits),
        statistics=None if model.statistics is None else _plain(model.statistics),
        throughput=None if model.throughput is None else _plain(model.throughput),
        max_gpus_seen=_plain_number(model.max_gpus_seen),
        max_nodes_seen=_plain_number(model.max_nodes_seen),
        num_parameters=_plain_number(model.num_parameters),
        precision=model.precision,
    )
    # Here, because it brings scipy along, which takes a command that only reads the store a second.
    from pollux_slurm.goodput.checks import check_model

    try:
        check_model(plain)
    except InvalidModelError as error:
        raise ReportRefusedError(f"report refused: model: {error}") from None
    return plain


def _plain(part: T) -> T:
    """Return a dataclass of numbers with numpy's numbers turned into Python's."""
    names = (field.name for field in dataclasses.fields(part))
    return dataclasses.replace(part, **{name: _plain_number(getattr(part, name)) for name in names})


def _plain_number(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    try:
        return float(value) if isinstance(value, numbers.Real) else value
    except OverflowError:  # a fraction beyond a float's range
        return math.inf


def _batch(batch: BatchChoice) -> BatchChoice:
    if not isinstance(batch, BatchChoice):
        refuse("batch", "a BatchChoice", batch)
    return BatchChoice(
        global_batch_size=checked_whole("batch.global_batch_size", batch.global_batch_size),
        atomic_batch_size=checked_whole("batch.atomic_batch_size", batch.atomic_batch_size),
        accumulation_steps=checked_whole("batch.accumulation_steps", batch.accumulation_steps),
    )


def _checkpoint(checkpoint: CheckpointConfirmation) -> CheckpointConfirmation:
    if not isinstance(checkpoint, CheckpointConfirmation):
        refuse("checkpoint", "a CheckpointConfirmation", checkpoint)
    return CheckpointConfirmation(
        request_id=_optional_whole("checkpoint.request_id", checkpoint.request_id),
        blocked_s=checked_real("checkpoint.blocked_s", checkpoint.blocked_s),
        size_bytes=checked_whole("checkpoint.size_bytes", checkpoint.size_bytes),
    )


def _warnings(warnings: tuple[JobWarning, ...]) -> tuple[JobWarning, ...]:
    if not isinstance(warnings, tuple | list) or not all(isinstance(one, JobWarning) for one in warnings):
        refuse("warnings", "JobWarnings", warnings)
    return tuple(dict.fromkeys(warnings))


def _efficiency(value: float | None) -> float | None:
    is_rounded_up = isinstance(value, float) and 1.0 < value <= 1.0 + _ROUNDING
    return _optional_real("efficiency", 1.0 if is_rounded_up else value)


def _optional_whole(name: str, value: int | None) -> int | None:
    return None if value is None else checked_whole(name, value)


def _optional_real(name: str, value: float | None) -> float | None:
    return None if value is None else checked_real(name, value)


def checked_whole(name: str, value: object, bounds: str | None = None) -> int:
    """Return a whole number within the bounds of its field, or the one named; or `ReportRefusedError`."""
    least, most = BOUNDS[bounds or name.rpartition(".")[2]]
    # numpy's whole numbers are Integral as well; a truth value is an int to Python, but not to us.
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        number = int(value)
        if least <= number <= most:
            return number
    return refuse(name, f"a whole number from {least} to {most}", value)


def checked_real(name: str, value: object) -> float:
    """Return a number within the bounds of its field; or `ReportRefusedError`."""
    least, most = BOUNDS[name.rpartition(".")[2]]
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond a float's range
            number = math.nan
        if least <= number <= most:  # never true of NaN
            return number
    return refuse(name, f"a finite number from {least:g} to {most:g}", value)


def refuse(name: str, expected: str, value: object) -> NoReturn:
    """Raise `ReportRefusedError` for a value of a field."""
    raise ReportRefusedError(f"report refused: {name} must be {expected}, not {_shown(value)}")


def _shown(value: object) -> str:
    """Return a short text of an untrusted value; a number of a million digits is not printed."""
    if isinstance(value, int) and abs(value) > MAX_ID:
        return "a number beyond 64 bits"
    if isinstance(value, tuple | list) and len(value) > 8:
        return f"{len(value)} values"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
