"""What is refused, with what to do; and limits where the batch varies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchmetrics import MeanMetric

from pollux_slurm.errors import UsageError
from pollux_slurm.lightning import PolluxStrategy, private_parts
from pollux_slurm.lightning.logged_values import metric_states
from tests.lightning import scripts
from tests.lightning.here import fit_here, pl, stopped_here
from tests.torch.single_replica import current_session, propose

pytestmark = pytest.mark.torch

GROWING = {"strategy": {"max_batch_size": 32}}


class Scheduler(pl.callbacks.GradientAccumulationScheduler):
    def __init__(self) -> None:
        super().__init__({1: 2})


class Finetuning(pl.callbacks.BaseFinetuning):
    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.body[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 2:
            self.unfreeze_and_add_param_group(pl_module.body[0], optimizer)


class Without(scripts.Module):
    def configure_optimizers(self) -> Any:
        return None


class Skipping(scripts.Module):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


class Lbfgs(scripts.Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


class Fetching(scripts.Module):
    def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
        raise AssertionError


class Sparse(scripts.Module):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": 3}]


@pytest.mark.parametrize(
    ("options", "cure"),
    [
        ({"callbacks": (Scheduler,)}, "give the DataLoader the batch size"),
        ({"callbacks": (lambda: pl.callbacks.LearningRateFinder(),)}, "in a run of their own"),
        ({"callbacks": (Finetuning,)}, "requires_grad in on_train_epoch_start"),
        ({"trainer": {"reload_dataloaders_every_n_epochs": 1}}, "Leave it out"),
        ({"trainer": {"val_check_interval": "00:00:00:01"}}, "give a number"),
        (
            {"trainer": {"accumulate_grad_batches": 2, "val_check_interval": 2}},
            "leave accumulate_grad_batches",
        ),
        (
            {"trainer": {"accumulate_grad_batches": 2, "limit_train_batches": 2}},
            "leave accumulate_grad_batches",
        ),
        ({"module_kind": Without}, "returned no optimizer"),
        ({"module_kind": Skipping}, "return a loss of zero"),
        ({"module_kind": Lbfgs}, "use another optimizer"),
        ({"module_kind": Fetching}, r"take \(batch, batch_idx\)"),
        ({**GROWING, "module_kind": Sparse}, "leave frequency out"),
        ({**GROWING, "trainer": {"val_check_interval": 0.5}}, "give a whole number of batches"),
        ({**GROWING, "trainer": {"limit_train_batches": 0.5}}, "or a smaller dataset"),
        ({**GROWING, "trainer": {"max_steps": 4}, "module_kind": scripts.ByHand}, "give max_epochs"),
    ],
)
def test_that_what_would_train_wrong_is_refused_with_a_cure(options: dict[str, Any], cure: str) -> None:
    with pytest.raises(UsageError, match=cure):
        fit_here(**options)


@pytest.mark.parametrize(
    ("option", "cure"),
    [
        ("max_batchsize", "has no option max_batchsize: do you mean max_batch_size?"),
        ("find_unused_parameter", "do you mean find_unused_parameters?"),
        # An option of Lightning's own strategy, which would have no effect.
        ("ddp_comm_hook", "has no option ddp_comm_hook"),
    ],
)
def test_that_an_option_of_the_strategy_that_would_have_no_effect_is_refused(option: str, cure: str) -> None:
    with pytest.raises(UsageError, match=re.escape(cure)):
        PolluxStrategy(**{option: 256})


# Lightning says so on a host with Slurm.
@pytest.mark.filterwarnings("ignore:The `srun` command is available")
def test_that_a_lightning_without_a_private_part_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert private_parts.steps_of_batches(trainer) == 0
    del trainer.fit_loop.epoch_loop._batches_that_stepped
    with pytest.raises(UsageError, match=r"lightning [0-9.]+ has no Trainer.fit_loop.epoch_loop._batches_th"):
        private_parts.steps_of_batches(trainer)
    monkeypatch.delattr(private_parts.call, "_call_callbacks_state_dict")
    with pytest.raises(UsageError, match=r"lightning [0-9.]+ has no lightning.+_call_callbacks_state_dict"):
        private_parts.call_hooks("callbacks_state_dict", trainer)


def test_that_a_torchmetrics_without_a_private_part_is_refused_by_its_name() -> None:
    module = torch.nn.ModuleDict({"mean": MeanMetric()})
    module["mean"].update(3.0)
    assert metric_states(module)["mean"]["count"] == 1
    del module["mean"]._update_count
    with pytest.raises(UsageError, match=r"torchmetrics [0-9.]+ has no MeanMetric._update_count"):
        metric_states(module)


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Yield names of others that begin with one underscore: imported, or no attributes of a class here."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not _is_load(node)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }
    for node in ast.walk(tree):
        names = [node.attr] if isinstance(node, ast.Attribute) else []
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [str(arg.value) for arg in node.args[1:2] if isinstance(arg, ast.Constant)]
        yield from (name for name in names if re.match("_[^_]", name) and name not in own)


def _is_load(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Load)


def test_that_private_names_of_others_stand_in_one_file() -> None:
    folder = Path(private_parts.__file__).parent
    found = {file.name: list(_private_names(ast.parse(file.read_text()))) for file in folder.glob("*.py")}
    assert len(set(found.pop("private_parts.py"))) > 10
    assert not any(found.values()), found


class Growing(pl.callbacks.Callback):
    """Doubles the batch after the fourth step, as rank 0 might propose."""

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        loader = trainer.strategy._control.loader.adaptive
        if trainer.global_step == 4:
            choice = replace(loader.choice, global_batch_size=32, atomic_batch_size=32)
            propose(current_session(), loader, choice)


@pytest.mark.parametrize("schedule", ["epoch", "step"])
def test_that_a_growing_batch_has_epochs_of_fewer_steps_and_the_same_schedule(
    schedule: str, tmp_path: Any
) -> None:
    options: dict[str, Any] = {
        "callbacks": (Growing,),
        "strategy": {"max_batch_size": 32},
        "module": {"schedule": schedule},
    }
    fixed, result = fit_here(module={"schedule": schedule}), fit_here(**options)
    sizes = [len(indices) for indices in result["steps"].values()]
    # The fifth batch of the first epoch is what is left of it; then 32, 32 and 6.
    assert sizes == [16, 16, 16, 16, 6, 32, 32, 6, 32, 32, 6]
    assert result["indices"] == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]
    assert (result["hooks"]["validation_end"], result["hooks"]["epoch_end"]) == (3, 3)
    # At the end of each epoch the schedule is where it is with a fixed batch.
    ends, ends_fixed = (4, 7, 10), (4, 9, 14)
    assert [result["rates"][end] for end in ends] == pytest.approx(
        [fixed["rates"][end] for end in ends_fixed]
    )
    stopped_here(tmp_path, stop_after=6, **options)
    again = fit_here(tmp_path, **options)
    assert again["indices"] == result["indices"]
    assert again["rates"] == pytest.approx(result["rates"])


def test_that_max_steps_counts_batches_of_the_initial_size_where_the_batch_varies(tmp_path: Any) -> None:
    # 12 batches of 16, or of what an epoch leaves: 70 + 70 examples, then one batch of 32.
    options: dict[str, Any] = {
        "callbacks": (Growing,),
        "strategy": {"max_batch_size": 32},
        "trainer": {"max_epochs": -1, "max_steps": 12},
    }
    result = fit_here(**options)
    assert [len(indices) for indices in result["steps"].values()] == [16, 16, 16, 16, 6, 32, 32, 6, 32]
    stopped_here(tmp_path, stop_after=6, **options)
    again = fit_here(tmp_path, **options)
    assert (again["global_steps"], again["steps"]) == (result["global_steps"], result["steps"])
