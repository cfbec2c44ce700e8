"""`AdaptiveDataLoader`: batches of one global size over any number of replicas, exact to the example."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Generator, Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.api.loader_loop import LoaderLoop
from pollux_slurm.torch.checkpoint.default_names import without_epoch
from pollux_slurm.torch.coordination.data_comparison import DataComparison
from pollux_slurm.torch.data.batch_iterator import BatchIterator
from pollux_slurm.torch.data.batch_sources import IterableSource, MapStyleSource, check_options
from pollux_slurm.torch.data.loader_position import LoaderPosition, Loop
from pollux_slurm.torch.data.micro_batches import (
    MicroBatchPlan,
    StepPlan,
    checked_size,
    first_choice,
    plan_epoch,
)
from pollux_slurm.torch.data.sampling_order import SamplerOrder, SamplingOrder, derived_seed, shuffled
from pollux_slurm.torch.data.workers import ShieldedWorker
from pollux_slurm.torch.measurement.tensorboard import ScalarWriter, write_scalars
from pollux_slurm.torch.session.current_session import current_session, join_session

if TYPE_CHECKING:
    from pollux_slurm.torch.session.session import Session


class AdaptiveDataLoader:
    """Yield each replica's part of every global batch of `batch_size` examples.

    Each epoch visits every index of a map-style `dataset` exactly once (except the examples that `drop_last`
    drops), over any sequence of replicas, batch sizes and restarts. The order depends only on the epoch and
    on `seed`.

    An iterable dataset is read in its own order. It must yield the same examples in the same order on every
    replica and when the epoch is read again. `set_epoch(epoch)` is called where it has that;
    `iterate_from(position)`, where it has that, saves reading earlier examples again.

    It may be made before `init_process_group`; `autoscale_batch_size` and `len` work there, too.

    A training loop over it yields micro-batches; the optimizer steps at the end of each global batch (see
    `AdaptiveDataParallel`). Where a global batch has fewer examples than there are replicas, a replica
    without any gets padding, whose gradient does not count; `is_padding` is then True.

    Args:
        dataset: A map-style or iterable dataset, or a sequence.
        batch_size: The global batch size, in examples; None: that of `batch_sampler`, else 1.
        shuffle: Visit the examples in another order in each epoch.
        sampler: Yields the indices to visit, in its order.
        batch_sampler: Yields lists of indices. Each list is one global batch, typically of `batch_size`
            examples (its own attribute, if it has one).
        drop_last: Drop the examples that do not fill a last global batch.
        seed: The seed of the order; None: that of the `generator` among the options, else 0.
        name: Its name in checkpoints; None: one by the order in which loaders are made.
        **options: Further arguments of `torch.utils.data.DataLoader`.

    Raises:
        UsageError: Arguments contradict each other, or an option cannot hold in a job that is moved.

    Examples:
        >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32, shuffle=True)
        >>> loader.autoscale_batch_size(128, local_bsz_bounds=(8, 64), gradient_accumulation=True)
        >>> len(loader), loader.current_batch_size
        (2, 32)
        >>> for inputs, targets in loader:
        ...     print(inputs.shape)
        torch.Size([32, 4])
        torch.Size([32, 4])
    """

    # Whether who iterates knows which micro-batches are one step.
    groups_micro_batches = False

    def __init__(
        self,
        dataset: Dataset[Any] | Sequence[Any],
        batch_size: int | None = None,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        *,
        drop_last: bool = False,
        seed: int | None = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        if isinstance(dataset, DataLoader):
            raise UsageError(
                "AdaptiveDataLoader makes the DataLoader itself: give it the dataset and the options, "
                "AdaptiveDataLoader(dataset, batch_size=..., shuffle=...)"
            )
        check_options(options)
        is_stream = isinstance(dataset, IterableDataset)
        if is_stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise UsageError("an IterableDataset has its own order: no shuffle=, sampler=, batch_sampler=")
        if sampler is not None and (shuffle or batch_sampler is not None):
            raise UsageError("sampler= cannot be combined with shuffle= or batch_sampler=")
        if batch_sampler is not None:
            if shuffle or drop_last:
                raise UsageError("batch_sampler= cannot be combined with shuffle= or drop_last=")
            batch_size = getattr(batch_sampler, "batch_size", None) if batch_size is None else batch_size
            if batch_size is None:
                raise UsageError(
                    "batch_sampler= has no batch_size: pass batch_size=, the number of examples that its "
                    "batches typically have"
                )
        batch_size = 1 if batch_size is None else batch_size
        batch_size = checked_size(batch_size, "batch_size")
        self._shuffle, self._drop_last = shuffle, drop_last
        generator = options.get("generator")
        self._seed = (0 if generator is None else generator.initial_seed()) if seed is None else seed
        self._user_order: SamplerOrder | None = None
        if sampler is not None or batch_sampler is not None:
            self._user_order = SamplerOrder(
                batch_sampler if sampler is None else sampler, is_batches=batch_sampler is not None
            )
        self._has_own_batches = batch_sampler is not None
        options["worker_init_fn"] = ShieldedWorker(
            owner=os.getpid(), init=options.get("worker_init_fn"), collects_garbage=gc.isenabled()
        )
        self.dataset, self.batch_size = dataset, batch_size
        self.sampler, self.batch_sampler, self.drop_last = sampler, batch_sampler, drop_last
        # With the number of replicas that it is for.
        self._choice: tuple[int, BatchChoice] | None = None
        # The loop under way, or the last.
        self._loop: LoaderLoop | None = None
        self._given_limits = BatchLimits(initial_batch_size=batch_size)
        self._joined: Session | None = None
        join_session(functools.partial(self._join, name, options))

    def _join(self, name: str | None, options: Mapping[str, Any], session: Session) -> None:
        """Join the session: get this replica's share, and restore the checkpoint's position."""
        is_stream = isinstance(self.dataset, IterableDataset)
        feed = IterableSource if is_stream else MapStyleSource
        self._source: IterableSource | MapStyleSource = feed(
            self.dataset,  # type: ignore[arg-type]
            drop_last=self._drop_last,
            options=options,
        )
        length = None if is_stream else len(self.dataset)  # type: ignore[arg-type]
        sampler = self.batch_sampler if self.sampler is None else self.sampler
        self._position = LoaderPosition(
            name or session.next_default_name("loader"),
            length=length,
            num_sampled=len(sampler) if isinstance(sampler, Sized) else None,
            batch_size=self.batch_size,
            given=session.given,
        )
        self._comparison = DataComparison(
            repr(self._position.name), session.side_channel, accepts=session.given.accepts
        )
        if self._user_order is not None and session.world_size == 1:
            self._user_order.warn_on_one_replica()
        session.register(self._position)
        self._joined = session

    @property
    def _session(self) -> Session:
        """The session. Raises `UsageError` before `init_process_group`."""
        return self._joined or current_session()

    def autoscale_batch_size(
        self,
        max_batch_size: int,
        local_bsz_bounds: tuple[int | None, int | None] | None = None,
        gradient_accumulation: bool = False,
    ) -> None:
        """Let the global batch size vary between `batch_size` and `max_batch_size`.

        Without this call the global batch size is always `batch_size`.

        Args:
            max_batch_size: The largest global batch size, in examples.
            local_bsz_bounds: The least and the most examples of a micro-batch; None: no bound.
            gradient_accumulation: Allow several micro-batches a step.

        Raises:
            UsageError: The sizes contradict each other, or the batch sampler's.
        """
        max_batch_size = checked_size(max_batch_size, "max_batch_size")
        low, high = (
            None if bound is None else checked_size(bound, "each of local_bsz_bounds")
            for bound in local_bsz_bounds or (None, None)
        )
        low = 1 if low is None else low
        if not self.batch_size <= max_batch_size:
            raise UsageError(f"max_batch_size={max_batch_size} is below batch_size={self.batch_size}")
        if self._has_own_batches and max_batch_size != self.batch_size:
            raise UsageError(
                f"the batch sampler decides the batch size: max_batch_size must be its {self.batch_size}"
            )
        if low > max_batch_size or (high is not None and high < low):
            raise UsageError(f"local_bsz_bounds={local_bsz_bounds} leave no size from 1 to {max_batch_size}")
        self._given_limits = BatchLimits(
            initial_batch_size=self.batch_size,
            max_batch_size=max_batch_size,
            min_atomic=low,
            max_atomic=high,
            accumulation=gradient_accumulation,
        )
        self._choice = None

    def fix_batch_size(self) -> None:
        """Fix the global batch size at `batch_size`; the bounds of local batches stay.

        Examples:
            >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32)
            >>> loader.autoscale_batch_size(128)
            >>> loader.fix_batch_size()  # the batch is 32 again
        """
        self._given_limits = replace(self._given_limits, max_batch_size=None)
        self._choice = None

    @property
    def limits(self) -> BatchLimits:
        """The user's limits, narrowed to what is known to fit into memory."""
        return self._narrowed(by_kind=True)

    @property
    def own_limits(self) -> BatchLimits:
        """The user's limits, narrowed to what is known to fit by this job itself, not by its kind."""
        return self._narrowed(by_kind=False)

    def _narrowed(self, *, by_kind: bool) -> BatchLimits:
        limits = self._given_limits
        if self._joined is None:
            return limits
        return self._joined.memory.narrowed(self.name_across_epochs, limits, by_kind=by_kind)

    @property
    def name(self) -> str:
        """The loader's name in checkpoints."""
        return self._position.name

    @property
    def name_across_epochs(self) -> str:
        """The common name of loaders that each epoch makes at the same place."""
        return without_epoch(self.name)

    @property
    def loop_number(self) -> int:
        """The number of the loop under way (or of the last) within its epoch."""
        return self._position.loop_number

    @property
    def order(self) -> SamplingOrder | None:
        """The order of the loop under way (or of the last); None for an iterable dataset."""
        return self._source.order if isinstance(self._source, MapStyleSource) else None

    @property
    def current_micro_batch_size(self) -> int | None:
        """The number of examples in the script's current micro-batch; None between them."""
        return None if (plan := self.current_plan) is None else len(plan.positions())

    @property
    def num_examples_done(self) -> int:
        """The examples of the loop under way whose steps are done; after a restart, where it goes on."""
        return self._position.start

    @property
    def choice(self) -> BatchChoice:
        """The batch in use."""
        number = self._session.world_size
        if self._choice is None or self._choice[0] != number:
            wanted = self._position.global_batch_size
            self._choice = number, first_choice(self.limits, number, wanted=wanted)
        return self._choice[1]

    @property
    def current_batch_size(self) -> int:
        """The global batch size in use."""
        return self.choice.global_batch_size

    @property
    def current_local_bsz(self) -> int:
        """The atomic batch size in use: examples of one micro-batch."""
        return self.choice.atomic_batch_size

    @property
    def accumulation_steps(self) -> int:
        """How many micro-batches of a step come before its last one."""
        return self.choice.accumulation_steps

    @property
    def is_padding(self) -> bool:
        """True while this replica's micro-batch is padding: its gradient does not count."""
        return (plan := self.current_plan) is not None and plan.is_padding

    @property
    def is_stepping(self) -> bool:
        """True in the micro-batch whose `optimizer.step()` takes effect, False in those that only accumulate.

        True outside of a loop, too.
        """
        return (plan := self.current_plan) is None or plan.is_last

    @property
    def current_plan(self) -> MicroBatchPlan | None:
        """The script's current micro-batch; None outside of a loop."""
        return None if self._loop is None else self._loop.plan

    @property
    def current_step(self) -> StepPlan | None:
        """The step under way; None outside of a loop."""
        return None if self._loop is None else self._loop.step

    @property
    def schedule_steps(self) -> int:
        """The steps of a schedule that counts batches of `batch_size`, in the global batch under way."""
        return 1 if self._loop is None else self._loop.schedule_steps

    @property
    def current_share(self) -> float:
        """This replica's micro-batch as a share of the step's examples: the weight of its mean. 0: padding.

        The shares of all replicas' micro-batches of a step add up to 1. It is 1 outside of a loop.
        """
        return 1.0 if (plan := self.current_plan) is None else plan.weight

    @property
    def num_steps_left(self) -> int | None:
        """How many steps this loop has after the one under way, at the present batch size.

        None where that is not known, and outside of a loop.
        """
        step = self.current_step
        return None if step is None else step.num_left

    @property
    def position_and_length(self) -> tuple[int, int | None]:
        """The position and the length of the loop under way, in examples (length None: not known)."""
        return (0, None) if self._loop is None else self._loop.position_and_length

    def to_tensorboard(self, writer: ScalarWriter, global_step: int, tag_prefix: str = "") -> None:
        """Write the batch in use to a TensorBoard writer.

        Args:
            writer: A `SummaryWriter`, or another object with its `add_scalar`.
            global_step: The step at which it is written.
            tag_prefix: What the names begin with.

        Examples:
            >>> class Printer:
            ...     def add_scalar(self, tag, value, global_step):
            ...         print(tag, value)
            >>> loader = pollux.AdaptiveDataLoader(dataset, batch_size=32)
            >>> loader.to_tensorboard(Printer(), pollux.finished_steps(), "train/")  # doctest: +ELLIPSIS
            train/...
        """
        scalars = {
            "Total_Batch_Size": self.current_batch_size,
            "Local_Batch_Size": self.current_local_bsz,
            "Accumulation_Steps": self.accumulation_steps,
        }
        write_scalars(writer, scalars, global_step, tag_prefix)

    def __len__(self) -> int:
        """Return how many batches an epoch has.

        Within an epoch of `remaining_epochs_until`, or a loop, these are the micro-batches that a whole loop
        yields: the exact number with a fixed batch, else an estimate by the present batch size. Before, where
        schedules are made, they are global batches of `batch_size` examples: the same number for any
        replicas, accumulation steps and batch sizes.

        With a batch sampler it is the number if all its batches had the typical size. Raises `TypeError`
        where the dataset or the sampler has no length.
        """
        if not self._is_in_epoch:
            return self.num_initial_batches
        num_micro_batches = self.choice.accumulation_steps + 1
        if self._has_own_batches:
            return len(self.batch_sampler) * num_micro_batches  # type: ignore[arg-type]
        full, rest = divmod(self._num_sampled, self.choice.global_batch_size)
        if not rest or self._drop_last:
            return full * num_micro_batches
        last = next(
            plan_epoch(0, rest, self.choice, num_replicas=self._session.world_size, rank=0, drop_last=False)
        )
        return full * num_micro_batches + len(last.micro_batches)

    @property
    def _is_in_epoch(self) -> bool:
        joined, plan = self._joined, self.current_plan
        return joined is not None and (joined.progress_state.epoch is not None or plan is not None)

    @property
    def _num_sampled(self) -> int:
        return len(self.dataset if self.sampler is None else self.sampler)  # type: ignore[arg-type]

    @property
    def num_initial_batches(self) -> int:
        """How many global batches of `batch_size` an epoch has; `TypeError` where the length is not known."""
        if self._has_own_batches:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        full, rest = divmod(self._num_sampled, self.batch_size)
        return full + (rest > 0 and not self._drop_last)

    def __iter__(self) -> BatchIterator:
        return BatchIterator(self._batches, lambda: self._session.models.has_open_step)

    def iterate_steps(self, *, goes_on: bool = False) -> BatchIterator:
        """Return an iterator for a framework, or `remaining_steps_until`, that owns the loop.

        It yields None after each step's boundary. So a step can be ended before the next batch is asked for,
        and `session.loops.pause()` may follow. The last step of an iterable dataset is known in advance, too.
        With `goes_on` a loop that is left is not ended: the next one goes on there, also after a restart.
        """
        self.groups_micro_batches = True
        make = functools.partial(self._batches, by_step=True, goes_on=goes_on)
        return BatchIterator(make, lambda: self._session.models.has_open_step)

    def end_iteration(self, reason: str) -> None:
        """End the loop under way; whoever still has its iterator gets `reason` as a `UsageError`."""
        if self._loop is not None:
            self._loop.end(reason)

    def __repr__(self) -> str:
        name = repr(self.name) if self._joined else "before init_process_group()"
        return f"AdaptiveDataLoader {name} ({type(self.dataset).__name__}, batch_size={self.batch_size})"

    def _batches(
        self, iterator: ref[BatchIterator], *, by_step: bool = False, goes_on: bool = False
    ) -> Generator[Any, None, None]:
        session, position = self._session, self._position
        session.regrouping.join_training()
        session.loops.end_previous(self)
        begun = position.begin_loop(session.progress_state.epoch_key, is_inner=session.loops.is_running)
        if begun is None:
            # This loop had run to its end before the restart.
            session.errors.notes.loop(self.name, start=None, length=None)
            return
        self._loop = LoaderLoop(
            session,
            begun,
            self._order(begun),
            source=self._source,
            position=position,
            comparison=self._comparison,
            has_own_batches=self._has_own_batches,
        )
        start, length = self._loop.position_and_length
        session.errors.notes.loop(self.name, start=start, length=length)
        yield from self._loop.batches(self, iterator, by_step=by_step, goes_on=goes_on)

    def deliver(self, batch: Any) -> Any:
        """Return what the loop gets for a micro-batch. A subclass may override it; its properties are set."""
        return batch

    @property
    def may_split(self) -> bool:
        """Whether a step of one micro-batch may be split in two to measure gradient noise.

        Not where the batch is fixed: a loop then yields just as many micro-batches as `len` says.
        """
        limits, choice = self._given_limits, self.choice
        return (
            limits.accumulation
            and limits.varies
            and choice.accumulation_steps == 0
            and choice.global_batch_size > 1
            and isinstance(self._source, MapStyleSource)
            and not self._has_own_batches
        )

    def choose(self, choice: BatchChoice) -> bool:
        """Use `choice` from the next step on; return False if it is in use already or the batch is fixed."""
        if self.limits.max_batch_size is None or choice == self.choice:
            return False
        self._choice = self._session.world_size, choice
        return True

    def _order(self, loop: Loop) -> SamplingOrder | None:
        """Return the loop's order of indices, the same on every replica; None for an iterable dataset."""
        if isinstance(self._source, IterableSource):
            return None
        seed, epoch = self._seed, self._session.progress_state.epoch_key
        if self._user_order is not None:
            order = loop.order
            if order is None:
                order = self._drawn(self._user_order, epoch, loop.number)
            self._position.keep_order(loop, order)
            return order
        length = len(self.dataset)  # type: ignore[arg-type]
        if not self._shuffle:
            return SamplingOrder(indices=torch.arange(length))
        return shuffled(length, derived_seed(seed, epoch, loop.number))

    def _drawn(self, user_order: SamplerOrder, epoch: int, loop: int) -> SamplingOrder:
        """Draw an order on rank 0, for all."""
        drawn: Any = None
        if self._session.rank == 0:
            drawn = user_order.draw(seed=self._seed, epoch=epoch, loop=loop).to_plain()
        return SamplingOrder.from_plain(self._session.side_channel.broadcast(drawn))
