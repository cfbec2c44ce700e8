"""The loaders that `prepare()` makes of torch's: an adaptive one to train with, or shares for evaluation."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import torch
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.state import GradientState
from accelerate.utils import send_to_device
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.api.data_loader import AdaptiveDataLoader
from pollux_slurm.torch.data.batch_sources import IterableSource, check_options
from pollux_slurm.torch.data.sampling_order import SamplerOrder, SamplingOrder
from pollux_slurm.torch.data.torch_loaders import given_seed, has_own_batches, loader_options, order_arguments
from pollux_slurm.torch.data.workers import ShieldedWorker, sigterm_blocked
from pollux_slurm.torch.session.current_session import current_session


class TrainingLoader(AdaptiveDataLoader):
    """An `AdaptiveDataLoader` that tells accelerate when a step is whole, and moves batches to its device."""

    def __init__(
        self,
        *args: Any,
        device: torch.device | None,
        non_blocking: bool,
        num_batches: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._device, self._non_blocking, self._num_batches = device, non_blocking, num_batches
        self._gradient_state = GradientState()

    def __len__(self) -> int:
        """Count the script's own batches before the epochs: it divides them by those of a step itself.

        Within an epoch it is the number of micro-batches, as in an `AdaptiveDataLoader`.
        """
        return super().__len__() if self._is_in_epoch else self.num_initial_batches * self._num_batches

    def deliver(self, batch: Any) -> Any:
        self.tell_whether_step_is_whole()
        if self._device is None:
            return batch
        return send_to_device(batch, self._device, non_blocking=self._non_blocking)

    def tell_whether_step_is_whole(self) -> None:
        """Set accelerate's `sync_gradients` for the present micro-batch."""
        # Private in accelerate (read in 1.15), and called by transformers' Trainer just so.
        self._gradient_state._set_sync_gradients(self.is_stepping)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: the order depends on the epoch under way, and a sampler's own `set_epoch` is called."""

    @property
    def num_own_examples(self) -> int:
        """This replica's examples in the present micro-batch: 0 for padding."""
        return 0 if self.is_padding else self.current_micro_batch_size or 0


def make_training_loader(
    loader: DataLoader[Any],
    *,
    batch_size: int | None,
    num_batches: int,
    max_batch_size: int | None,
    seed: int | None,
    device: torch.device | None,
    non_blocking: bool,
) -> TrainingLoader:
    """Return an adaptive loader of the same data. Raises `UsageError` for one that has no batch size.

    The global batch has `batch_size` examples, else `num_batches` of the loader's batches. A micro-batch has
    at most the loader's own batch size.
    """
    options = loader_options(loader)
    options |= {"device": device, "non_blocking": non_blocking}
    if has_own_batches(loader):
        if num_batches > 1 or max_batch_size is not None:
            raise UsageError(
                "each list of a batch sampler is a global batch: leave gradient accumulation and "
                "max_batch_size out; global_batch_size= is the typical length of its lists"
            )
        return TrainingLoader(loader.dataset, batch_size, batch_sampler=loader.batch_sampler, **options)
    if loader.batch_size is None:
        raise UsageError("a DataLoader with batch_size=None: give it a batch size, of examples per device")
    largest = loader.batch_size
    batch_size = largest * num_batches if batch_size is None else batch_size
    seed = (given_seed(loader) or 0) if seed is None else seed
    order = order_arguments(loader, seed=seed)
    options |= {"num_batches": num_batches, "drop_last": loader.drop_last}
    made = TrainingLoader(loader.dataset, batch_size, **order, **options)
    made.autoscale_batch_size(
        batch_size if max_batch_size is None else max_batch_size,
        (1, min(largest, batch_size)),
        gradient_accumulation=True,
    )
    if max_batch_size is None:
        made.fix_batch_size()
    return made


class EvaluationLoader(DataLoaderStateMixin):
    """Yields this replica's share of each evaluation: the loader's own batches, in turn over the replicas.

    So the batches are the same at any number of replicas, and those of all replicas, in rank order, are in
    the dataset's order. Every replica gets equally many; one that has none left gets padding
    (`num_own_examples` is 0). A stream is read by every replica, and split evenly.

    A loop is read from its beginning after a restart. Between the loops of the training loader it lets the
    replicas answer a request or SIGTERM after each batch.
    """

    def __init__(self, loader: DataLoader[Any], *, device: torch.device | None, non_blocking: bool) -> None:
        session = current_session()
        if loader.batch_size is None and not has_own_batches(loader):
            raise UsageError(
                "a DataLoader with batch_size=None: give it a batch size, of examples per device"
            )
        check_options(loader_options(loader))
        self.dataset: Any = loader.dataset
        self.batch_size, self.batch_sampler = loader.batch_size, loader.batch_sampler
        self._world_size, self._rank = session.world_size, session.rank
        self.total_batch_size = (loader.batch_size or 1) * session.world_size
        self._drop_last, self._device, self._non_blocking = bool(loader.drop_last), device, non_blocking
        self._loader = loader
        options = loader_options(loader)
        options["worker_init_fn"] = ShieldedWorker(
            owner=os.getpid(), init=options.get("worker_init_fn"), collects_garbage=gc.isenabled()
        )
        self._stream: IterableSource | None = None
        self._own: list[list[int]] = []
        if isinstance(loader.dataset, IterableDataset):
            self._stream = IterableSource(loader.dataset, drop_last=self._drop_last, options=options)
        else:
            self._inner: DataLoader[Any] = DataLoader(self.dataset, batch_sampler=self._own, **options)
        self.gradient_state = GradientState()
        self.num_own_examples = 0
        self._num_loops = 0

    def __len__(self) -> int:
        """Return the number of batches, the same on each replica."""
        if self._stream is not None:
            full, rest = divmod(len(self.dataset), self.total_batch_size)
            return full + (rest > 0 and not self._drop_last)
        batches: Any = self._loader.batch_sampler
        return -(-len(batches) // self._world_size)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: shuffled evaluations are drawn anew in each loop."""

    def __iter__(self) -> Iterator[Any]:
        self.begin()
        try:
            yield from self._batches()
        finally:
            self.num_own_examples = 0
            self.end()

    def _batches(self) -> Iterator[Any]:
        session = current_session()
        sized = self._read_stream() if self._stream is not None else self._read()
        here = next(sized, None)
        while here is not None:
            size, batch = here
            here = next(sized, None)
            self.end_of_dataloader = here is None
            self.num_own_examples = size
            if self._device is not None:
                batch = send_to_device(batch, self._device, non_blocking=self._non_blocking)
            yield batch
            session.loops.checkpoint_point()

    def _read_stream(self) -> Iterator[tuple[int, Any]]:
        assert self._stream is not None
        choice = BatchChoice(
            global_batch_size=self.total_batch_size,
            atomic_batch_size=self.batch_size or 1,
            accumulation_steps=0,
        )
        steps = self._stream.steps(
            current_session().progress_state.epoch_key,
            0,
            choice,
            num_replicas=self._world_size,
            rank=self._rank,
        )
        for step, batches in steps:
            yield step.micro_batches[0].size, next(batches)
        self._stream.end_loop()

    def _read(self) -> Iterator[tuple[int, Any]]:
        batches = self._drawn()
        own = batches[self._rank :: self._world_size]
        sizes = [len(batch) for batch in own]
        if len(own) < -(-len(batches) // self._world_size):
            own.append(batches[0][:1])
            sizes.append(0)
        # In place: the workers of an earlier loop may persist.
        self._own[:] = own
        with sigterm_blocked():
            loaded = iter(self._inner)
        yield from zip(sizes, loaded, strict=True)

    def _drawn(self) -> list[list[int]]:
        """Return the batches of all replicas, the same on each."""
        batches: Any = self._loader.batch_sampler
        if type(self._loader.sampler) is SequentialSampler and not has_own_batches(self._loader):
            return list(batches)
        self._num_loops += 1
        drawn: Any = None
        if current_session().rank == 0:
            order = SamplerOrder(batches, is_batches=True)
            if self._num_loops == 1 and current_session().world_size == 1:
                order.warn_on_one_replica()
            drawn = order.draw(seed=given_seed(self._loader) or 0, epoch=-1, loop=self._num_loops).to_plain()
        order_of_all = SamplingOrder.from_plain(current_session().side_channel.broadcast(drawn))
        assert order_of_all.ends is not None
        return [part.tolist() for part in torch.tensor_split(order_of_all.indices, order_of_all.ends[:-1])]
