"""Convert a goodput model to columns of `model_versions` and back."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

from sqlalchemy import Connection, Executable, Row, Select, func, select

from pollux_slurm.model import BatchLimits, GoodputModel, GradientStatistics, ThroughputParameters
from pollux_slurm.store.access.statements import cached_statement
from pollux_slurm.store.schema import ModelVersionRow, RunRow

_LIMITS = tuple(field.name for field in dataclasses.fields(BatchLimits))
_INTERVAL = ("noise_low", "noise_high")
_THETA = tuple(field.name for field in dataclasses.fields(ThroughputParameters))
_PLAIN = ("max_gpus_seen", "max_nodes_seen", "num_parameters", "precision")

MODEL_COLUMNS = (*_LIMITS, "grad_sqr", "grad_var", *_INTERVAL, *_THETA, *_PLAIN)
"""The columns of `model_versions` that hold the model itself."""


def model_columns(model: GoodputModel) -> dict[str, Any]:
    """Return the values of a model's columns."""
    theta = model.throughput
    return {
        **{name: getattr(model.limits, name) for name in _LIMITS},
        "grad_sqr": model.statistics.sqr if model.statistics else None,
        "grad_var": model.statistics.var if model.statistics else None,
        **{name: getattr(model.statistics, name) if model.statistics else None for name in _INTERVAL},
        **{name: getattr(theta, name) if theta else None for name in _THETA},
        **{name: getattr(model, name) for name in _PLAIN},
    }


def select_models() -> Select[Any]:
    """Select what `model_of_row` reads, and the job."""
    return select(*(getattr(ModelVersionRow, name) for name in ("job_id", *MODEL_COLUMNS)))


def model_of_row(row: Row[Any]) -> GoodputModel:
    """Return the model that a row of `select_models` holds."""
    values = row._mapping
    return GoodputModel(
        limits=BatchLimits(**{name: values[name] for name in _LIMITS}),
        statistics=None
        if values["grad_sqr"] is None
        else GradientStatistics(
            sqr=values["grad_sqr"], var=values["grad_var"], **{name: values[name] for name in _INTERVAL}
        ),
        throughput=None
        if values["alpha_g"] is None
        else ThroughputParameters(**{name: values[name] for name in _THETA}),
        **{name: values[name] for name in _PLAIN},
    )


def read_models_by_type(
    connection: Connection, scope: Select[Any]
) -> defaultdict[int, list[tuple[str, GoodputModel]]]:
    """Return, by job, the newest model for each GPU type that its runs are known to have run on.

    Newest first. Models without θ are left out, because they do not depend on the GPU type.
    """
    rows = connection.execute(_select_models_by_type(scope))
    found: defaultdict[int, dict[str, GoodputModel]] = defaultdict(dict)
    for row in rows:
        found[row.job_id].setdefault(row.gpu_type, model_of_row(row))
    return defaultdict(list, {job_id: list(models.items()) for job_id, models in found.items()})


@cached_statement
def _select_models_by_type(scope: Select[Any]) -> Executable:
    newest = (
        select(func.max(ModelVersionRow.id))
        .where(
            ModelVersionRow.job_id == RunRow.job_id,
            ModelVersionRow.run_number == RunRow.run_number,
            ModelVersionRow.alpha_g.is_not(None),
        )
        .correlate(RunRow)
        .scalar_subquery()
    )
    runs = (
        select(RunRow.gpu_type, newest.label("model_id"))
        .where(RunRow.job_id.in_(scope), RunRow.gpu_type.is_not(None))
        .subquery()
    )
    return (
        select_models()
        .add_columns(runs.c.gpu_type)
        .join(runs, runs.c.model_id == ModelVersionRow.id)
        .order_by(ModelVersionRow.id.desc())
    )
