"""With a batch that grows: examples once, the rate of each step and schedules, over stops and replicas."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from pollux_slurm.torch.scaling_rules import LinearScale
from tests.lightning import scripts
from tests.lightning.here import fit_here, pl, stopped_here
from tests.torch.ranks import start
from tests.torch.scripts import NUM_EXAMPLES
from tests.torch.single_replica import current_session, propose

pytestmark = pytest.mark.torch

INITIAL = 16


class Growing(pl.callbacks.Callback):
    """After these steps rank 0 proposes larger batches."""

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        loader = trainer.strategy._control.loader.adaptive
        size = {3: 2 * INITIAL, 12: 3 * INITIAL}.get(trainer.global_step)
        if size is not None and trainer.is_global_zero:
            atomic = -(-size // trainer.world_size)
            propose(
                current_session(),
                loader,
                replace(loader.choice, global_batch_size=size, atomic_batch_size=atomic),
            )


class Falling(scripts.Module):
    """Its gradient is 1, so that a step takes its rate off the weight: `rates` has them. It logs float64.

    `batch_indices` has the size of each global batch.
    """

    def __init__(self, **kinds: Any) -> None:
        super().__init__(**kinds)
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.body = torch.nn.Identity()  # type: ignore[assignment]

    def loss(self, batch: Any) -> torch.Tensor:
        return (self.weight * torch.ones_like(batch[1])).mean()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.before = self.weight.item()
        self.size = self.trainer.strategy._control.loader.adaptive.current_batch_size

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # After the callback that has noted others.
        self.rates[-1] = self.before - self.weight.item()
        self.batch_indices[-1] = self.size

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([self.weight], lr=1.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda batches: 0.9**batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def test_that_examples_rates_and_schedules_are_right_at_each_step_over_moves(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "module_kind": Falling,
        "callbacks": (Growing,),
        "strategy": {"max_batch_size": 64, "scaling_rule": LinearScale()},
        "trainer": {"max_epochs": 6},
    }
    stopped_here(tmp_path / "job", stop_after=4, **options)
    # The first epoch's end, where each replica reduces what was logged before, and four steps.
    run = start(tmp_path, 2, partial(scripts.fit, str(tmp_path / "job"), 4, **options), restart_count=1)
    assert run.wait() == [143, 143], run.output()
    result = fit_here(tmp_path / "job", **options)
    used: dict[str, list[int]] = {}
    expected, num_scheduled = [], 0
    for (key, indices), size in zip(result["steps"].items(), result["indices"], strict=True):
        # The rule's factor, and what the schedule makes of the batches of the initial size before.
        expected.append(size / INITIAL * 0.9**num_scheduled)
        epoch = key.partition("/")[0]
        used.setdefault(epoch, []).extend(indices)
        num_scheduled = 5 * int(epoch) + -(-len(used[epoch]) // INITIAL)
    assert [sorted(indices) for indices in used.values()] == [list(range(NUM_EXAMPLES))] * 6
    assert sorted(set(result["indices"])) == [16, 32, 48]
    assert result["rates"] == pytest.approx(expected, rel=1e-9)
    assert result["global_step"] == len(expected) == len(result["rates"])
