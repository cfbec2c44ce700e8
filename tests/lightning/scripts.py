"""Training scripts with Lightning that the tests run as ranks, with a record of what each step used."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.current_session import current_session, has_session
from tests.torch.scripts import Numbered, Seen

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback

    from pollux_slurm.lightning import PolluxStrategy

NUM_VALIDATED = 24


class Record(Callback):
    """Counts hooks, keeps what each step used, and sends SIGTERM to its own process when told."""

    def __init__(self, stop_after: int | None = None, stop_in_validation: int | None = None) -> None:
        self.stop_after, self.stop_in_validation = stop_after, stop_in_validation
        self.num_batches = 0
        self.hooks: dict[str, int] = {}
        self.steps: list[int] = []
        self.num_validations = 0

    def count(self, hook: str) -> None:
        self.hooks[hook] = self.hooks.get(hook, 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return {"hooks": self.hooks, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.hooks, self.steps = dict(state["hooks"]), list(state["steps"])

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.count("train_start")

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self.count("epoch_start")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.count("batch_start")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.count("batch_end")
        self.steps.append(trainer.global_step)
        module.rates.append(module.optimizers_list()[0].param_groups[0]["lr"])
        module.batch_indices.append(batch_idx)
        self.num_batches += 1
        if self.num_batches == self.stop_after:
            stop_here()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.count("before_step")

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.num_validations += 1
            if self.num_validations == self.stop_in_validation:
                stop_here()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.count("validation_end")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self.count("epoch_end")

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.count("train_end")


def stop_here() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Module(pl.LightningModule):
    """A small regression. Its own state is kept by the hooks of Lightning's checkpoints."""

    def __init__(self, **kinds: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.kinds = kinds
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        self.rates: list[float] = []
        self.batch_indices: list[int] = []
        self.history: list[Any] = []
        self.seen: Seen | None = None
        self.fails_at: int | None = kinds.get("fails_at")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.body(inputs)

    def optimizers_list(self) -> list[Any]:
        found = self.optimizers(use_pl_optimizer=False)
        return found if isinstance(found, list) else [found]

    def loss(self, batch: Any) -> torch.Tensor:
        inputs, targets, _ = batch
        return torch.nn.functional.mse_loss(self(inputs).float(), targets)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.loss(batch)
        if self.fails_at is not None and self.global_step == self.fails_at:
            raise ArithmeticError("the module fails here")
        self.log("train", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.note(batch, loss)
        return loss

    def note(self, batch: Any, loss: torch.Tensor) -> None:
        if not isinstance(self.trainer.strategy, PolluxStrategy):
            return
        if self.seen is None:
            self.seen = Seen()
        if not current_session().loops.is_padding:
            key = current_session().progress_state.num_steps
            self.seen.add(self.current_epoch, key, batch[2].tolist(), loss.item())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("valid", self.loss(batch), sync_dist=True)

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        epoch = {name: float(metrics[name]) for name in ("train_epoch", "valid") if name in metrics}
        self.history.append([self.current_epoch, epoch])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["own"] = {
            "rates": self.rates,
            "indices": self.batch_indices,
            "history": self.history,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        own = checkpoint["own"]
        self.rates, self.batch_indices = list(own["rates"]), list(own["indices"])
        self.history = list(own["history"])

    def configure_optimizers(self) -> Any:
        if self.kinds.get("optimizer") == "adam":
            optimizer: Any = torch.optim.Adam(self.parameters(), lr=0.02)
        else:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        kind = self.kinds.get("schedule", "epoch")
        if kind == "step":
            steps = int(self.trainer.estimated_stepping_batches)
            schedule: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]
        if kind == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, factor=0.5, patience=0, threshold=0.5
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "valid"}}
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)]


class Gan(Module):
    """Two parts, each with its own optimizer and backward pass; the module does all steps itself."""

    def __init__(self, **kinds: Any) -> None:
        super().__init__(**kinds)
        self.automatic_optimization = False
        self.critic = torch.nn.Linear(1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        inputs, targets, _ = batch
        first, second = self.optimizers()  # type: ignore[attr-defined]
        self.toggle_optimizer(first)
        loss = (self(inputs) - targets).square().mean() - self.critic(self(inputs)).mean()
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        judged = self.critic(self(inputs).detach()).mean() + 0.1 * self.critic(targets).square().mean()
        second.zero_grad()
        self.manual_backward(judged)
        second.step()
        self.untoggle_optimizer(second)
        self.log("train", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.note(batch, loss)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.lr_schedulers().step()  # type: ignore[union-attr]

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.body.parameters(), lr=0.02)
        second = torch.optim.Adam(self.critic.parameters(), lr=0.01)
        return [first, second], [torch.optim.lr_scheduler.StepLR(first, 1, gamma=0.5)]


class ByHand(Module):
    """One optimizer, one backward pass; the module steps itself."""

    def __init__(self, **kinds: Any) -> None:
        super().__init__(**kinds)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = self.loss(batch)
        self.manual_backward(loss)
        optimizer.step()
        self.log("train", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.note(batch, loss)

    def on_train_epoch_end(self) -> None:
        super().on_train_epoch_end()
        self.lr_schedulers().step()  # type: ignore[union-attr]


class Data(pl.LightningDataModule):
    """Its state counts how often it made the train loader, over all runs."""

    def __init__(self, batch_size: int = 16, num_workers: int = 0) -> None:
        super().__init__()
        self.batch_size, self.num_workers, self.num_made = batch_size, num_workers, 0

    def train_dataloader(self) -> Any:
        self.num_made += 1
        return DataLoader(Numbered(), self.batch_size, shuffle=True, num_workers=self.num_workers)

    def val_dataloader(self) -> Any:
        return DataLoader(Numbered(NUM_VALIDATED), 8)

    def state_dict(self) -> dict[str, Any]:
        return {"num_made": self.num_made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_made += state["num_made"]


def fit(
    directory: str | None,
    stop_after: int | None = None,
    *,
    stop_in_validation: int | None = None,
    strategy: dict[str, Any] | str = "pollux",
    trainer: dict[str, Any] | None = None,
    callbacks: Any = (),
    module: dict[str, Any] | None = None,
    module_kind: type[Module] = Module,
    data_kind: type[Data] | None = None,
    fit_options: dict[str, Any] | None = None,
    batch_size: int = 16,
    after: bool = False,
) -> dict[str, Any]:
    """Fit as a user's script would; return what the run saw."""
    if not has_session():
        pt.init_process_group("gloo", checkpoint_dir=directory, checkpoint_interval_s=None, strict=True)
    record = Record(stop_after, stop_in_validation)
    own = module_kind(**(module or {}))
    options = {
        "max_epochs": 3,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": directory,
        **(trainer or {}),
    }
    data = (data_kind or Data)(batch_size)
    with warnings.catch_warnings():
        # Lightning's advice: more workers, srun, a loss logged without sync_dist, and the like.
        warnings.simplefilter("ignore")
        fit_with = pl.Trainer(
            strategy=strategy if isinstance(strategy, str) else PolluxStrategy(**strategy),
            callbacks=[record, *(make() for make in callbacks)],
            **options,
        )
        fit_with.fit(own, datamodule=data, **(fit_options or {}))
        hooks = dict(record.hooks)
        afterwards = evaluate(fit_with, own, data) if after else {}
    session = current_session()
    if own.seen is None:
        own.seen = Seen()
    own.seen.sync()
    return {
        "weights": {name: value.clone() for name, value in own.state_dict().items()},
        "rates": own.rates,
        "indices": own.batch_indices,
        "history": own.history,
        "hooks": hooks,
        "global_steps": record.steps,
        "global_step": fit_with.global_step,
        "epoch": fit_with.current_epoch,
        "num_made": data.num_made,
        "steps": own.seen.steps,
        "losses": {key: own.seen.losses[key] / len(indices) for key, indices in own.seen.steps.items()},
        "num_steps": session.progress_state.num_steps,
        "finished_epochs": session.progress_state.finished_epochs,
        "after": afterwards,
    }


def evaluate(trainer: Any, module: Module, data: Data) -> dict[str, float]:
    """Validate and predict after a fit."""
    (values,) = trainer.validate(module, datamodule=data, verbose=False)
    predicted = trainer.predict(module, DataLoader(Inputs(), 8))
    return {"validate": values["valid"], "predicted": sum(len(part) for part in predicted)}


class InOrder(Data):
    """No shuffling, so that Lightning's own strategies use the same examples in each step."""

    def train_dataloader(self) -> Any:
        return DataLoader(Numbered(), self.batch_size)


class Inputs(torch.utils.data.Dataset[torch.Tensor]):
    """The validation's inputs alone."""

    def __len__(self) -> int:
        return NUM_VALIDATED

    def __getitem__(self, index: int) -> torch.Tensor:
        return Numbered(NUM_VALIDATED)[index][0]
