"""The private parts of Lightning and torchmetrics that the integration reads or sets, in one place.

Neither has a public name for these. They were read in Lightning 2.6.6 and torchmetrics 1.9.0; a release
without one is refused, by the package's name.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from lightning.pytorch.core.optimizer import do_nothing_closure
from lightning.pytorch.trainer import call

from pollux_slurm.errors import UsageError

_MISSING = object()
_LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_RESTART_FLAGS = ("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint")
_RESULT_MODULE = "lightning.pytorch.trainer.connectors.logger_connector.result"


def part(owner: Any, path: str, *, package: str = "lightning") -> Any:
    """Return an attribute, given by a dotted path. Raises `UsageError` where the package has none."""
    value = owner
    for name in path.split("."):
        value = getattr(value, name, _MISSING)
        if value is _MISSING:
            where = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__
            raise UsageError(
                f"{package} {importlib.metadata.version(package)} has no {where}.{path}, which "
                f"pollux_slurm.lightning needs: install a release of {package} that docs/lightning.md names"
            )
    return value


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Take the place of a method of Lightning's."""


def replace_method(owner: Any, name: str, method: Any) -> Any:
    """Replace a method of one object; return the original."""
    original = part(owner, name)
    setattr(owner, name, method)
    return original


# ------------------------------------------------------------------------------------------- the trainer


def ignore_signals(trainer: Any) -> None:
    """Let Lightning install no signal handlers."""
    replace_method(part(trainer, "_signal_connector"), "register_signal_handlers", do_nothing)


def replace_loader_preparation(trainer: Any, prepare: Callable[..., Any]) -> Callable[..., Any]:
    """Prepare data loaders by another function; return Lightning's own."""
    original: Callable[..., Any] = replace_method(
        part(trainer, "_data_connector"), "_prepare_dataloader", prepare
    )
    return original


def replace_checkpoint_restore(trainer: Any, restore: Callable[..., Any]) -> None:
    """Restore modules and callbacks from a checkpoint file by another function."""
    replace_method(part(trainer, "_checkpoint_connector"), "_restore_modules_and_callbacks", restore)


def restore_connectors(trainer: Any) -> None:
    """Give the trainer its own two functions back."""
    vars(part(trainer, "_data_connector")).pop("_prepare_dataloader", None)
    vars(part(trainer, "_checkpoint_connector")).pop("_restore_modules_and_callbacks", None)


def call_hooks(kind: str, trainer: Any, *args: Any) -> Any:
    """Call hooks as the trainer does for its own checkpoints. `kind`: callbacks_state_dict, and the like."""
    return part(call, f"_call_{kind}")(trainer, *args)


def has_time_as_validation_interval(trainer: Any) -> bool:
    """Return whether the trainer validates by time."""
    return getattr(trainer, "_val_check_time_interval", None) is not None


# ------------------------------------------------------------------------------------------------- loops


def data_fetcher(fit_loop: Any) -> Any:
    """Return the fetcher of the train loader's batches; None before it is made."""
    return part(fit_loop, "_data_fetcher")


def should_validate(epoch_loop: Any, fetcher: Any) -> bool:
    """Return whether a validation follows the batch under way."""
    return bool(part(epoch_loop, "_should_check_val_fx")(fetcher))


def steps_of_batches(trainer: Any) -> int:
    """Return the step with which the next batch is logged."""
    return int(part(trainer, "fit_loop.epoch_loop._batches_that_stepped"))


def mute_sigterm(epoch_loop: Any) -> None:
    """Leave out the broadcast in each step by which Lightning tells others of a SIGTERM (2.6 has it)."""
    if hasattr(epoch_loop, "_broadcast_sigterm_tensor"):
        epoch_loop._broadcast_sigterm_tensor = do_nothing


def restore_epoch_loop(epoch_loop: Any) -> None:
    """Remove what was replaced in an epoch's loop."""
    for name in ("on_advance_end", "_broadcast_sigterm_tensor"):
        vars(epoch_loop).pop(name, None)


def clear_restart(loop: Any) -> None:
    """Let a loop that has loaded its progress not take itself for restarted. The flags differ by release."""
    for flag in _RESTART_FLAGS:
        if hasattr(loop, flag):
            setattr(loop, flag, False)


# ------------------------------------------------------------------------- strategy, module and optimizers


def ddp_options(strategy: Any) -> dict[str, Any]:
    """Return the options that the strategy keeps for `DistributedDataParallel`."""
    return dict(part(strategy, "_ddp_kwargs"))


def with_synced_layers(strategy: Any, module: torch.nn.Module) -> torch.nn.Module | None:
    """Return the module with synchronized batch statistics where the trainer asks for them, else None."""
    layer_sync = part(strategy, "_layer_sync")
    return None if layer_sync is None else layer_sync.apply(module)


def before_batch_transfer(module: Any, batch: Any) -> Any:
    """Call the module's hooks for a batch that is to be moved to the device."""
    return part(module, "_on_before_batch_transfer")(batch, dataloader_idx=0)


@contextlib.contextmanager
def without_step_hooks(strategy: Any) -> Iterator[None]:
    """Let Lightning, which counts steps by two hooks of its optimizers, count none in the block."""
    wrapped = list(part(strategy, "_lightning_optimizers"))
    hooks = [(part(one, "_on_before_step"), part(one, "_on_after_step")) for one in wrapped]
    for one in wrapped:
        one._on_before_step = one._on_after_step = do_nothing_closure
    yield
    for one, (before, after) in zip(wrapped, hooks, strict=True):
        one._on_before_step, one._on_after_step = before, after


def is_placeholder(optimizer: Any) -> bool:
    """Return whether Lightning has made an optimizer because the module gave none."""
    return type(optimizer).__name__ == "_MockOptimizer"


# ----------------------------------------------------------------------------------------------- loggers


def set_version(logger: Any, version: Any) -> None:
    """Let a CSVLogger or a TensorBoardLogger go on with a version."""
    part(logger, "_version")
    logger._version = version


def purge_from(logger: Any, step: int) -> None:
    """Let TensorBoard hide what a TensorBoardLogger has logged from a step on, unless the user says when."""
    part(logger, "_kwargs").setdefault("purge_step", step)


def resume_run(logger: Any, run_id: str) -> None:
    """Let an MLFlowLogger go on with a run, unless the user has named one."""
    logger._run_id = part(logger, "_run_id") or run_id


# ----------------------------------------------------------------------------------------- logged values


def logged_results(trainer: Any) -> Any:
    """Return what `self.log` has logged in the epoch: a metric by the key of each value."""
    return part(trainer, "fit_loop.epoch_loop._results")


def logged_values(trainer: Any) -> dict[str, dict[str, Any]]:
    """Return the values that callbacks, loggers and the progress bar see, by kind; they can be changed."""
    return {name: part(trainer, f"_logger_connector.{name}") for name in _LOGGED}


def new_result(
    fields: Mapping[str, Any],
    *,
    reduction: Callable[..., Any],
    sync: Callable[..., Any],
    sync_options: Iterable[Any],
    is_tensor: bool,
) -> Any:
    """Return a metric as `self.log` makes one. `sync_options`: whether to sync, on rank 0 only, by what."""
    module = importlib.import_module(_RESULT_MODULE)
    should, rank_zero_only, op = sync_options
    meta = part(module, "_Metadata")(**fields, reduce_fx=reduction)
    meta.sync = part(module, "_Sync")(fn=sync, _should=should, rank_zero_only=rank_zero_only, _op=op)
    return part(module, "_ResultMetric")(meta, is_tensor)


# ------------------------------------------------------------------------------------------ torchmetrics


def _of_metric(metric: Any, name: str) -> Any:
    return part(metric, name, package="torchmetrics")


def step_value(metric: Any) -> Any:
    """Return what a metric has computed in its last forward pass."""
    return _of_metric(metric, "_forward_cache")


def set_step_value(metric: Any, value: Any) -> None:
    """Set it."""
    metric._forward_cache = value


def state_names(metric: Any) -> list[str]:
    """Return the names of a metric's states, which are attributes of it."""
    return list(_of_metric(metric, "_defaults"))


def reduction_of(metric: Any, state: str) -> Any:
    """Return the function that combines the replicas' values of a state."""
    return _of_metric(metric, "_reductions")[state]


def num_updates(metric: Any) -> int:
    """Return how often a metric was updated since its reset."""
    return int(_of_metric(metric, "_update_count"))


def set_num_updates(metric: Any, number: int) -> None:
    """Set it: a metric without an update warns, and is not reduced."""
    _of_metric(metric, "_update_count")
    metric._update_count = number


def counters(metric: Any) -> dict[str, Any]:
    """Return what a metric keeps beside its states, as attributes to be put back."""
    return {name: _of_metric(metric, name) for name in ("_update_count", "_computed")}
