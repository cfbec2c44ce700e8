"""Turn Lightning's train DataLoader into an adaptive one, of which each of Lightning's batches is one step.

Lightning's loop sees global batches: its batch index, its steps and its limits are the same at any number of
replicas. The micro-batches of a global batch are taken one after the other within the training step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any, Protocol

from lightning.fabric.utilities.seed import pl_worker_init_function
from torch.utils.data import DataLoader

from pollux_slurm.errors import UsageError
from pollux_slurm.torch import AdaptiveDataLoader
from pollux_slurm.torch.data.torch_loaders import given_seed, has_own_batches, loader_options, order_arguments

_END = object()


def adaptive_loader(
    loader: Any, *, factor: int = 1, max_local_batch_size: int | None = None
) -> AdaptiveDataLoader:
    """Return an adaptive loader over the same data, in the same order, with the same options.

    The loader's batch size becomes the global one, `factor` times as large. Raises `UsageError` for loaders
    whose order or batches would be lost.
    """
    if isinstance(loader, AdaptiveDataLoader):
        return loader
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise UsageError(
            f"{type(loader).__name__} is not a torch.utils.data.DataLoader (or overrides its __iter__), so "
            "its batches cannot be divided over replicas: return a DataLoader for training"
        )
    if loader.batch_size is None and loader.batch_sampler is None:
        raise UsageError(
            "a train DataLoader with batch_size=None yields what the dataset yields, which cannot be divided "
            "over replicas: let the dataset yield examples, and give the DataLoader a batch_size"
        )
    options = loader_options(loader)
    if int(os.environ.get("PL_SEED_WORKERS", "0")) and options["worker_init_fn"] is None:
        # As Lightning does for its own loaders after `seed_everything(workers=True)`.
        options["worker_init_fn"] = partial(pl_worker_init_function, rank=int(os.environ.get("RANK", "0")))
    adaptive = AdaptiveDataLoader(loader.dataset, **_order(loader, factor), **options)
    if factor > 1 or max_local_batch_size is not None:
        largest = min(max_local_batch_size or adaptive.batch_size, adaptive.batch_size // factor)
        adaptive.autoscale_batch_size(adaptive.batch_size, (None, largest), gradient_accumulation=True)
        adaptive.fix_batch_size()
    return adaptive


def _order(loader: DataLoader[Any], factor: int) -> dict[str, Any]:
    """Return the arguments that say which examples a batch has."""
    if has_own_batches(loader):
        if factor > 1:
            raise UsageError(
                "accumulate_grad_batches > 1 with a batch_sampler: let the batch sampler yield batches that "
                "many times as large"
            )
        return {"batch_sampler": loader.batch_sampler}
    assert loader.batch_size is not None
    seed = given_seed(loader)
    if seed is None:
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    order = order_arguments(loader, seed=seed)
    return {"batch_size": loader.batch_size * factor, "drop_last": loader.drop_last, **order}


class LoopControl(Protocol):
    """What a `TrainLoader` tells of its epochs and steps."""

    def begin_epoch(self) -> None:
        """An epoch begins; Lightning calls it before the epoch's hooks."""

    def begin_iteration(self) -> None:
        """An iterator is made, perhaps long before its first batch is wanted."""

    def before_fetch(self, loader: TrainLoader) -> bool:
        """The next global batch is wanted; return whether there may be one."""

    def fetched(self, loader: TrainLoader) -> None:
        """The first micro-batch of a global batch was fetched."""

    def ended(self, loader: TrainLoader) -> None:
        """No batch is left in the epoch."""


class TrainLoader:
    """The train loader that Lightning sees. Its batches are global ones, each given as its first micro-batch.

    `next_micro_batch` yields the others, `end_step` crosses the boundary after the step. Lightning calls
    `sampler.set_epoch` before each epoch.
    """

    def __init__(self, adaptive: AdaptiveDataLoader, control: LoopControl) -> None:
        self.adaptive, self._control = adaptive, control
        self._batches: Iterator[Any] | None = None
        self._is_in_step = False

    @property
    def sampler(self) -> TrainLoader:
        """Itself, so that `set_epoch` is called."""
        return self

    @property
    def dataset(self) -> Any:
        """The user's dataset."""
        return self.adaptive.dataset

    @property
    def batch_size(self) -> int:
        """The initial global batch size."""
        return self.adaptive.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self._control.begin_epoch()

    def __len__(self) -> int:
        """Return the number of global batches of an epoch, at the initial batch size."""
        return self.adaptive.num_initial_batches

    def __iter__(self) -> Iterator[Any]:
        self.leave()
        self._control.begin_iteration()
        return self

    def __next__(self) -> Any:
        if not self._control.before_fetch(self):
            self._control.ended(self)
            raise StopIteration
        self.end_step()
        if self._batches is None:
            self._batches = self.adaptive.iterate_steps()
        batch = next(self._batches, _END)
        if batch is _END:
            self._batches = None
            self._control.ended(self)
            raise StopIteration
        self._is_in_step = True
        self._control.fetched(self)
        return batch

    def next_micro_batch(self) -> Any:
        """Return the step's next micro-batch."""
        assert self._batches is not None
        return next(self._batches, _END)

    def end_step(self) -> None:
        """End the step under way, if any: replicas agree, and a checkpoint may be written."""
        if not self._is_in_step:
            return
        self._is_in_step = False
        assert self._batches is not None
        mark = next(self._batches, _END)
        assert mark is None, "a step ended before its last micro-batch"

    def end_loop(self) -> None:
        """End the epoch's loop at the end of its data."""
        self.end_step()
        if self._batches is not None:
            rest = next(self._batches, _END)
            assert rest is _END, "a loop was ended before its last step"
            self._batches = None

    def leave(self) -> None:
        """Leave the loop under way, if any, as `break` does."""
        self._is_in_step = False
        if self._batches is not None:
            batches, self._batches = self._batches, None
            batches.end("Lightning has left this epoch")  # type: ignore[attr-defined]

    @property
    def is_in_loop(self) -> bool:
        """True from an epoch's first batch until its loop is ended or left."""
        return self._batches is not None
