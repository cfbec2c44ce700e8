"""On one replica a fit is that of Lightning's own single-device strategy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lightning import scripts
from tests.lightning.here import fit_here, stopped_here
from tests.lightning.same_fit import assert_same_fit

pytestmark = pytest.mark.torch


def assert_like_lightning(result: dict[str, Any], own: dict[str, Any]) -> None:
    assert_same_fit(
        {**own, **{name: result[name] for name in ("steps", "losses")}},
        result | {name: own[name] for name in ("num_steps", "finished_epochs")},
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"module": {"schedule": "step", "optimizer": "adam"}, "trainer": {"gradient_clip_val": 0.3}},
        {"module": {"schedule": "plateau"}, "trainer": {"val_check_interval": 2}},
        {"trainer": {"max_epochs": -1, "max_steps": 7, "limit_train_batches": 4}},
        {"module_kind": scripts.ByHand},
        {"module_kind": scripts.Gan},
    ],
)
def test_that_one_replica_trains_as_lightning_alone(options: dict[str, Any]) -> None:
    options = {**options, "data_kind": scripts.InOrder}
    own = fit_here(strategy="auto", **options)
    result = fit_here(**options)
    assert_like_lightning(result, own)
    assert result["hooks"] == own["hooks"]


def test_that_batches_accumulated_by_the_trainer_are_one_global_batch() -> None:
    trainer = {"accumulate_grad_batches": 2}
    options: dict[str, Any] = {"data_kind": scripts.InOrder, "batch_size": 7}
    own = fit_here(strategy="auto", trainer=trainer, **options)
    result = fit_here(trainer=trainer, **options)
    assert result["global_step"] == own["global_step"] == 15
    assert [len(indices) for indices in result["steps"].values()] == [14] * 15
    for name, weight in own["weights"].items():
        assert result["weights"][name].flatten().tolist() == pytest.approx(
            weight.flatten().tolist(), rel=1e-4
        )


@pytest.mark.parametrize("kind", [scripts.ByHand, scripts.Gan])
def test_that_manual_optimization_goes_on_after_a_stop(tmp_path: Any, kind: type[scripts.Module]) -> None:
    options: dict[str, Any] = {"module_kind": kind}
    if kind is scripts.ByHand:
        options["strategy"] = {"local_bsz_bounds": (None, 6)}
    reference = fit_here(module_kind=kind)
    assert reference["global_step"] == (15 if kind is scripts.ByHand else 30)
    for stop in (4, 6):
        stopped_here(tmp_path, stop_after=stop, **options)
    assert_same_fit(fit_here(tmp_path, **options), reference)
