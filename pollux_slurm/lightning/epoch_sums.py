"""The sums behind the epoch's means of `self.log`, kept over a move in the middle of the epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule

from pollux_slurm.lightning.private_parts import new_result, set_num_updates

_FIELDS = (
    *("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx"),
    *("dataloader_idx", "metric_attribute"),
)


def own_sums(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return this replica's sums, by the key of each logged value."""
    sums: dict[str, Any] = {}
    for key, metric in results.items():
        if metric.has_reset or not metric.meta.on_epoch:
            continue
        meta = metric.meta
        sums[key] = {
            "meta": {name: getattr(meta, name) for name in _FIELDS},
            "reduction": meta.reduce_fx.__name__,
            "sync": [meta.sync.should, meta.sync.rank_zero_only, meta.sync.op],
            "value": metric.value.detach().cpu() if metric.is_tensor else None,
            "weight": metric.cumulated_batch_size.cpu()
            if metric.is_tensor and meta.is_mean_reduction
            else None,
        }
    return sums


def merged_sums(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the replicas' sums."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, own in part.items():
            if key not in merged:
                merged[key] = dict(own)
            elif own["value"] is not None:
                total = merged[key]
                total["value"] = _combine(own["reduction"], total["value"], own["value"])
                if own["weight"] is not None:
                    total["weight"] = total["weight"] + own["weight"]
    return merged


def _combine(reduction: str, first: Any, second: Any) -> Any:
    if reduction in ("max", "min"):
        return getattr(torch, f"{reduction}imum")(first, second)
    return first + second


def add_saved_sums(
    saved: Mapping[str, Any],
    results: dict[str, Any],
    module: LightningModule,
    *,
    sync: Callable[..., Any],
    is_rank_0: bool,
) -> None:
    """Add the sums of the epoch's part before the move; rank 0 has those of all replicas.

    `sync` is what Lightning calls for `sync_dist=True`.
    """
    for key, own in saved.items():
        metric = results.get(key)
        if metric is None:
            metric = results[key] = _new(own, sync)
            metric.has_reset = False
            metric.to(module.device)
            set_num_updates(metric, 1)
        if own["value"] is None:
            metric.value = module.get_submodule(own["meta"]["metric_attribute"])
        else:
            counts = is_rank_0 or own["reduction"] in ("max", "min")
            value, weight = own["value"].to(module.device), own["weight"]
            # A value of zero gives its type: all replicas reduce the same one.
            metric.value = _combine(
                own["reduction"], metric.value, value if counts else torch.zeros_like(value)
            )
            if counts and weight is not None:
                metric.cumulated_batch_size = metric.cumulated_batch_size + weight.to(module.device)


def _new(own: Mapping[str, Any], sync: Callable[..., Any]) -> Any:
    return new_result(
        own["meta"],
        reduction=getattr(torch, own["reduction"]),
        sync=sync,
        sync_options=own["sync"],
        is_tensor=own["value"] is not None,
    )
