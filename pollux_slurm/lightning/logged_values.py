"""What `self.log` and metrics hold within an epoch: over micro-batches, padding, replicas and moves.

Lightning keeps a metric for each logged name: the value of the step, and sums for the mean of the epoch. It
sees the micro-batches of one step as one batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torchmetrics import Metric

from pollux_slurm.lightning.private_parts import (
    counters,
    num_updates,
    reduction_of,
    set_num_updates,
    set_step_value,
    state_names,
    step_value,
)

_LOG = logging.getLogger(__name__)
_SUM, _MAX, _MIN, _MEAN, _OTHER = "sum", "max", "min", "mean", "other"


class StepValues:
    """Combines the values that the micro-batches of one step log with `on_step=True`.

    Means are weighted by the number of examples. `results` is Lightning's collection of logged metrics.
    """

    def __init__(self, results: dict[str, Any]) -> None:
        self._results = results
        self._parts: dict[str, list[tuple[torch.Tensor, float]]] = {}

    def add(self, weight: float) -> None:
        """Take in what one micro-batch has logged."""
        for key, metric in self._results.items():
            value = step_value(metric)
            if metric.is_tensor and metric.meta.on_step and isinstance(value, torch.Tensor):
                self._parts.setdefault(key, []).append((value.detach().clone(), weight))

    def finish(self) -> None:
        """Set the values of the whole step."""
        for key, parts in self._parts.items():
            metric = self._results[key]
            values = torch.stack([value.float() for value, _ in parts])
            kind = _kind_of_reduction(metric.meta)
            if kind == _MEAN:
                weights = values.new_tensor([weight for _, weight in parts])
                shape = (-1, *[1] * (values.dim() - 1))
                value = (values * weights.view(shape)).sum(0) / weights.sum()
            else:
                value = _combined(kind, values)
            set_step_value(metric, value)
            if not metric.meta.on_epoch:
                metric.value = value


def _kind_of_reduction(meta: Any) -> str:
    if meta.is_mean_reduction:
        return _MEAN
    return _SUM if meta.is_sum_reduction else _MAX if meta.is_max_reduction else _MIN


def metrics_of(module: torch.nn.Module) -> dict[str, Metric]:
    """Return the torchmetrics of a module, by name."""
    return {name: one for name, one in module.named_modules() if isinstance(one, Metric)}


@contextmanager
def unchanged(results: dict[str, Any], module: torch.nn.Module) -> Iterator[None]:
    """Undo what the block logs: the examples of padding count nowhere.

    Names that the block logs first stay, with empty sums: all replicas must have the same ones.
    """
    before = {id(one): _snapshot(one) for one in [*results.values(), *metrics_of(module).values()]}
    yield
    for one in [*results.values(), *metrics_of(module).values()]:
        if id(one) in before:
            _put_back(one, before[id(one)])
        elif one.is_tensor:
            dtype = one.value.dtype
            one.reset()
            # Other replicas keep the type of what they log, and all reduce the same one.
            one.value, one.has_reset = one.value.to(dtype), False


def _snapshot(metric: Any) -> dict[str, Any]:
    kept = {name: _copied(getattr(metric, name)) for name in state_names(metric)}
    return {**kept, **counters(metric)}


def _copied(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value.clone()


def _put_back(metric: Any, kept: Mapping[str, Any]) -> None:
    for name, value in kept.items():
        setattr(metric, name, value)


# --------------------------------------------------------------------------------------- kept over moves


def metric_states(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return this replica's state of each torchmetric that was updated in this epoch, by name."""
    return {
        name: {
            "count": num_updates(one),
            "states": {state: _copied(getattr(one, state)) for state in state_names(one)},
        }
        for name, one in metrics_of(module).items()
        if num_updates(one) > 0
    }


def merged_metric_states(
    parts: Iterable[Mapping[str, Mapping[str, Any]]], module: torch.nn.Module
) -> dict[str, dict[str, Any]]:
    """Combine the replicas' states, each by its own reduction. A metric that has another one is left out."""
    merged: dict[str, dict[str, Any]] = {}
    parts = list(parts)
    for name, metric in metrics_of(module).items():
        found = [part[name] for part in parts if name in part]
        kinds = {state: _kind_of_state(metric, state) for state in state_names(metric)}
        if not found:
            continue
        if _OTHER in kinds.values():
            _LOG.warning(
                "the metric %s (%s) begins anew where this epoch goes on: its state is not a sum, maximum, "
                "minimum or concatenation",
                *(name, type(metric).__name__),
            )
            continue
        merged[name] = {
            "count": sum(one["count"] for one in found),
            "states": {
                state: _merge(kind, [one["states"][state] for one in found]) for state, kind in kinds.items()
            },
        }
    return merged


def _kind_of_state(metric: Any, state: str) -> str:
    name = getattr(reduction_of(metric, state), "__name__", "")
    return {"dim_zero_sum": _SUM, "dim_zero_max": _MAX, "dim_zero_min": _MIN, "dim_zero_cat": "cat"}.get(
        name, _OTHER
    )


def _merge(kind: str, values: list[Any]) -> Any:
    if kind == "cat":
        return [
            torch.as_tensor(item)
            for value in values
            for item in (value if isinstance(value, list) else [value])
        ]
    stacked = torch.stack([value.cpu() for value in values])
    return _combined(kind, stacked)


def _combined(kind: str, stacked: torch.Tensor) -> torch.Tensor:
    if kind == _SUM:
        return stacked.sum(0)
    return stacked.amax(0) if kind == _MAX else stacked.amin(0)


def restore_metric_states(
    saved: Mapping[str, Mapping[str, Any]], module: torch.nn.Module, *, is_rank_0: bool
) -> None:
    """Give rank 0 the merged states; the other replicas begin with empty ones."""
    for name, metric in metrics_of(module).items():
        if name not in saved:
            continue
        set_num_updates(metric, saved[name]["count"] if is_rank_0 else 1)
        if is_rank_0:
            for state, value in saved[name]["states"].items():
                is_list = isinstance(value, list)
                setattr(
                    metric,
                    state,
                    [v.to(metric.device) for v in value] if is_list else value.to(metric.device),
                )
