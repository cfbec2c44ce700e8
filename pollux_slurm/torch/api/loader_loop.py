"""One loop over an `AdaptiveDataLoader`: its steps and micro-batches, and what happens where it ends."""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from pollux_slurm.torch.coordination.data_comparison import DataComparison
from pollux_slurm.torch.data.batch_iterator import BatchIterator
from pollux_slurm.torch.data.batch_sources import IterableSource, MapStyleSource, StepBatches
from pollux_slurm.torch.data.loader_position import LoaderPosition, Loop
from pollux_slurm.torch.data.loop_exit import is_left_by_break
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.data.sampling_order import SamplingOrder
from pollux_slurm.torch.session.loader_protocol import Loader

if TYPE_CHECKING:
    from pollux_slurm.torch.session.session import Session


class LoopedLoader(Loader, Protocol):
    """What a loop needs of its loader."""

    dataset: Any

    def deliver(self, batch: Any) -> Any:
        """Return what the loop gets for a micro-batch."""


class LoaderLoop:
    """A loop that begins at `loop.start`, in `order`, which is None for an iterable dataset.

    It does not keep its loader, which keeps it: a loader that an epoch makes goes with that epoch.
    `plan` and `step` are the micro-batch and the step under way, None where the loop is not. With
    `has_own_batches`, a batch sampler decides the batches. `schedule_steps` are the steps of a schedule that
    counts batches of the loader's `batch_size`, in the global batch under way.
    """

    def __init__(
        self,
        session: Session,
        loop: Loop,
        order: SamplingOrder | None,
        *,
        source: IterableSource | MapStyleSource,
        position: LoaderPosition,
        comparison: DataComparison,
        has_own_batches: bool,
    ) -> None:
        self._session, self._loop, self._order = session, loop, order
        self._source, self._position, self._comparison = source, position, comparison
        self._has_own_batches = has_own_batches
        self.plan: MicroBatchPlan | None = None
        self.step: StepPlan | None = None
        self.schedule_steps = 1
        self._iterator: ref[BatchIterator] | None = None

    @property
    def position_and_length(self) -> tuple[int, int | None]:
        """The position and the length, in examples (length None: not known)."""
        return self._loop.start, None if self._order is None else len(self._order)

    def end(self, reason: str) -> None:
        """End the loop; whoever still has its iterator gets `reason` as a `UsageError`."""
        batches = None if self._iterator is None else self._iterator()
        if batches is not None:
            batches.end(reason)

    def batches(
        self, loader: LoopedLoader, iterator: ref[BatchIterator], *, by_step: bool, goes_on: bool
    ) -> Generator[Any, None, None]:
        """Yield the micro-batches; with `by_step`, None after each step. See `iterate_steps`."""
        session, loop, position = self._session, self._loop, self._position
        with session.loops.enter(loader):
            self._iterator = iterator
            try:
                while not (yield from self._run(loader, by_step=by_step)):
                    pass
            except GeneratorExit:
                batches = iterator()
                is_break = is_left_by_break()
                by_error = not (is_break or (batches is not None and batches.is_ended))
                session.loops.leave(loader, by_break=is_break, by_error=by_error)
                has_stepped = session.models.has_open_step
                if goes_on:
                    if has_stepped and self.step is not None:
                        position.advance(loop, self.step.end)
                    position.pause_loop(loop)
                else:
                    position.leave_loop(loop, has_stepped=has_stepped)
                raise
            finally:
                self.plan = self.step = self._iterator = None
                self._source.end_loop()
            self._compare_ends(loader)
            position.end_loop(loop)
            session.loops.end(loader)

    def _run(self, loader: LoopedLoader, *, by_step: bool) -> Generator[Any, None, bool]:
        """Yield micro-batches to the end of the data (True), or until steps are planned anew (False).

        They are where the batch size changes, and where replicas join or leave.
        """
        session, position = self._session, self._position
        run_number = session.run_number
        position.global_batch_size = loader.choice.global_batch_size
        for step, batches in self._steps(loader, looks_ahead=by_step):
            self.step = step
            if not self._has_own_batches:
                self.schedule_steps = _scheduled(loader, step.end) - _scheduled(loader, step.start)
            for plan in step.micro_batches:
                batch = next(batches)
                session.loops.begin_micro_batch(loader, plan)
                self.plan = plan
                yield loader.deliver(batch)
                session.loops.end_micro_batch(loader)
            position.advance(self._loop, step.end)
            if session.loops.outermost is loader and not session.models.has_open_step:
                session.same_calls.go_over(repr(loader))
            was_read_again = self._compare_data(loader)
            chosen = session.loops.end_step(loader, step)
            if by_step:
                yield None
                chosen = session.loops.end_pause(loader) or chosen
            if (
                was_read_again
                or session.run_number != run_number
                or (chosen is not None and loader.choose(chosen))
            ):
                return False
        return True

    def _steps(self, loader: LoopedLoader, *, looks_ahead: bool) -> StepBatches:
        session = self._session
        if isinstance(self._source, IterableSource):
            return self._source.steps(
                session.progress_state.epoch_key,
                self._loop.start,
                loader.choice,
                num_replicas=session.world_size,
                rank=session.rank,
                looks_ahead=looks_ahead,
                in_pairs=session.models.needs_pairs(),
            )
        assert self._order is not None
        return self._source.steps(
            self._order,
            self._loop.start,
            loader.choice,
            largest=loader.limits.max_atomic,
            num_replicas=session.world_size,
            rank=session.rank,
            probes=functools.partial(session.loops.splits_to_measure, loader),
            needs_pairs=session.models.needs_pairs,
        )

    def _compare_data(self, loader: LoopedLoader) -> bool:
        """Compare, after the first step of a run, what the replicas read; return whether that ends the steps.

        Inner loops, such as those on one replica alone, are left out.
        """
        session = self._session
        if session.loops.outermost is not loader or not self._comparison.is_due(session.run_number):
            return False
        if isinstance(self._source, MapStyleSource):
            self._comparison.compare_datasets(loader.dataset)
            return False
        return self._comparison.compare_streams(self._source.digests or {}, self._source.read_again)

    def _compare_ends(self, loader: LoopedLoader) -> None:
        """Compare, at the end of a loop, how much the replicas have read of a stream.

        One that goes on at its end has no step: its first examples are compared.
        """
        session = self._session
        if isinstance(self._source, MapStyleSource) or session.loops.outermost is not loader:
            return
        self._comparison.compare_counts(self._loop.start)
        if self._comparison.is_due(session.run_number):
            self._comparison.compare_streams(self._source.read_first(), self._source.read_again)


def _scheduled(loader: Loader, position: int) -> int:
    """Return how many batches of `batch_size` a schedule has counted at a position of a loop."""
    return position // loader.batch_size if loader.drop_last else -(-position // loader.batch_size)
