"""What is logged within an epoch: over micro-batches, padding and stops. Precision and the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from torchmetrics import MaxMetric, MeanMetric

from pollux_slurm.lightning import PolluxEnvironment, PolluxStrategy
from pollux_slurm.lightning.logged_values import StepValues, merged_metric_states, metric_states, unchanged
from tests.lightning import scripts
from tests.lightning.here import fit_here, pl, stopped_here
from tests.lightning.same_fit import assert_same_fit

pytestmark = pytest.mark.torch

SPLIT: dict[str, Any] = {"local_bsz_bounds": (None, 6)}


class Measuring(scripts.Module):
    """Logs torchmetrics as objects, and values with other reductions than the mean."""

    def __init__(self, **kinds: Any) -> None:
        super().__init__(**kinds)
        self.mean, self.largest = MeanMetric(), MaxMetric()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        errors = (self(batch[0]) - batch[1]).square().flatten()
        self.mean.update(errors)
        self.largest.update(errors)
        self.log("metric", self.mean, on_step=False, on_epoch=True)
        self.log("largest_metric", self.largest, on_step=False, on_epoch=True)
        self.log("largest", errors.max(), on_step=False, on_epoch=True, reduce_fx="max")
        self.log("number", float(len(errors)), on_step=False, on_epoch=True, reduce_fx="sum")
        return loss

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        metrics = self.trainer.callback_metrics
        names = ("metric", "largest_metric", "largest", "number")
        self.history[-1][1].update({name: float(metrics[name]) for name in names})


def test_that_metrics_of_an_epoch_hold_over_micro_batches_and_stops(tmp_path: Path) -> None:
    reference = fit_here(module_kind=Measuring)
    assert [values["number"] for _, values in reference["history"]] == [70.0] * 3
    for stop in ({"stop_after": 2}, {"stop_in_validation": 1}, {"stop_after": 1}):
        stopped_here(tmp_path, module_kind=Measuring, strategy=SPLIT, **stop)
    assert_same_fit(fit_here(tmp_path, module_kind=Measuring), reference)


class Metrics(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.largest = MeanMetric(), MaxMetric()


def test_that_padding_changes_no_metric() -> None:
    module = Metrics()
    module.mean.update(torch.tensor([1.0, 2.0]))
    with unchanged({}, module):
        module.mean.update(torch.tensor(100.0))
        module.largest.update(torch.tensor(100.0))
    assert module.mean.compute() == 1.5
    module.largest.update(torch.tensor(3.0))
    assert module.largest.compute() == 3.0


def test_that_padding_keeps_the_type_of_a_value_that_it_logs_first() -> None:
    results = _ResultCollection(training=True)
    with unchanged(results, Metrics()):
        value = torch.tensor(100.0, dtype=torch.float64)
        results.log("training_step", "value", value, on_step=False, on_epoch=True, batch_size=1)
    (logged,) = results.values()
    assert (logged.value.dtype, logged.value.item(), logged.has_reset) == (torch.float64, 0.0, False)


def test_that_replicas_metrics_are_combined_by_their_own_reductions() -> None:
    first, second, whole = Metrics(), Metrics(), Metrics()
    for module, value in ((first, 1.0), (second, 5.0)):
        for part in (module, whole):
            part.mean.update(torch.tensor(value))
            part.largest.update(torch.tensor(value))
    merged = merged_metric_states([metric_states(first), metric_states(second)], whole)
    expected = metric_states(whole)
    assert merged.keys() == expected.keys() == {"mean", "largest"}
    for name in merged:
        assert {key: value.item() for key, value in merged[name]["states"].items()} == {
            key: value.item() for key, value in expected[name]["states"].items()
        }


class Logged:
    """A logged value as Lightning keeps it."""

    is_tensor = True

    def __init__(self, kind: str) -> None:
        self.value: Any = None
        self._forward_cache: Any = None
        self.meta = type("Meta", (), {"on_step": True, "on_epoch": False})
        for name in ("mean", "sum", "max", "min"):
            setattr(self.meta, f"is_{name}_reduction", name == kind)


def test_that_a_steps_value_is_that_of_all_its_micro_batches() -> None:
    kinds = ("mean", "sum", "max", "min")
    results = {kind: Logged(kind) for kind in kinds}
    step = StepValues(results)
    # Five examples with mean 2, and one of value 8.
    for value, weight in ((2.0, 5 / 6), (8.0, 1 / 6)):
        for one in results.values():
            one._forward_cache = torch.tensor(value)
        step.add(weight)
    step.finish()
    assert [results[kind]._forward_cache.item() for kind in kinds] == pytest.approx([3.0, 10.0, 8.0, 2.0])


def test_that_half_precision_keeps_its_scale_over_a_stop(tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        plugin = MixedPrecision(
            "16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        )
        scales.append(plugin.scaler)
        return {"trainer": {"plugins": [plugin], "gradient_clip_val": 1.0}}

    scales: list[Any] = []
    reference = fit_here(**options())
    stopped_here(tmp_path, stop_after=6, strategy=SPLIT, **options())
    # One of 15 steps in four doubles it; rounding differs where a batch is split.
    result = fit_here(tmp_path, **options())
    assert scales[-1].get_scale() == scales[0].get_scale() == 64.0 * 2**3
    assert_same_fit(result, reference, tolerance=(2e-2, 2e-2))


def test_that_lightning_takes_its_ranks_from_pollux_within_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"JOB_ID": "7", "NTASKS": "2", "NTASKS_PER_NODE": "1", "PROCID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    places = {"RANK": "3", "WORLD_SIZE": "5", "LOCAL_RANK": "1", "POLLUX_GPUS_PER_NODE": "2,3"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    for strategy in ("pollux", PolluxStrategy()):
        trainer = pl.Trainer(strategy=strategy, accelerator="cpu", logger=False)
        environment = trainer._accelerator_connector.cluster_environment
        assert isinstance(environment, PolluxEnvironment)
        assert (trainer.world_size, trainer.global_rank, trainer.local_rank, trainer.node_rank) == (
            5,
            3,
            1,
            1,
        )
        assert trainer.strategy.launcher is None
        assert trainer.distributed_sampler_kwargs == {"num_replicas": 5, "rank": 3}
