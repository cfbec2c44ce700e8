"""One `trainer.fit`: when its epochs and steps begin and end for the session, and where it goes on.

Lightning's loop trains one global batch after the other. A step's boundary, where replicas agree and a
checkpoint may be written, is crossed at one of two places:

- Where the next batch is asked for: all of Lightning's work for the batch before is done.
- Before the end of the iteration (`on_advance_end`), if a validation or the end of the epoch follows. A
  checkpoint written there, or during the validation, is marked `is_pending`: the rest of the iteration runs
  again after a move.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pollux_slurm.lightning.private_parts import (
    clear_restart,
    data_fetcher,
    do_nothing,
    mute_sigterm,
    part,
    replace_method,
    restore_epoch_loop,
    should_validate,
)
from pollux_slurm.lightning.train_loader import TrainLoader
from pollux_slurm.torch.session.current_session import current_session


class FitControl:
    """Drives the session from Lightning's loop. `is_adaptive`: the global batch size may vary."""

    def __init__(self, trainer: Any, *, is_adaptive: bool) -> None:
        self._trainer, self._is_adaptive = trainer, is_adaptive
        self._session = current_session()
        self._fit_loop: Any = trainer.fit_loop
        self._epoch_loop = part(trainer, "fit_loop.epoch_loop")
        self.loader: TrainLoader | None = None
        # True from the beginning of an epoch until Lightning has counted it.
        self.is_in_epoch = False
        self.is_pending = self._has_finished = self._has_begun = self._is_resumed = False
        # True once the last checkpoint is written: another `fit` may use the same trainer.
        self.is_over = False
        # Batches of the initial size that were trained: `max_steps` counts them where the batch varies.
        self.batches_done = 0
        self._max_steps: int = self._epoch_loop.max_steps
        # Progress at the checkpoint, until the epoch that was under way goes on.
        self._resume: dict[str, Any] | None = None
        self.add_saved_sums: Callable[[], None] = do_nothing
        self._on_advance_end = replace_method(self._epoch_loop, "on_advance_end", self._end_iteration)
        mute_sigterm(self._epoch_loop)

    def restore_methods(self) -> None:
        """Remove what this object has replaced."""
        self._epoch_loop.max_steps = self._max_steps
        restore_epoch_loop(self._epoch_loop)

    # ---------------------------------------------------------------------------------------------- epochs

    def begin_epoch(self) -> None:
        """Begin an epoch; Lightning has counted the one before."""
        self.end_epoch()
        if not self._has_begun:
            self._has_begun = True
            self._begin_training()
        left = self._fit_loop.max_epochs
        if left is not None and left >= 0:
            done = self._fit_loop.epoch_progress.current.completed
            self._session.epochs.declare(self._session.progress_state.finished_epochs + max(left - done, 1))
        self._session.epochs.begin()
        self.is_in_epoch = True

    def _begin_training(self) -> None:
        """Take over the progress of a checkpoint of Lightning's, where the first start has loaded one."""
        if not self._is_resumed:
            progress = self._session.progress_state
            progress.finished_epochs = max(
                progress.finished_epochs, self._fit_loop.epoch_progress.current.completed
            )
            self.batches_done = self._epoch_loop.global_step

    def end_epoch(self) -> None:
        """End the epoch under way, if any: Lightning has counted it."""
        if not self.is_in_epoch:
            return
        if self.loader is not None:
            self.loader.leave()
        self.is_in_epoch = self.is_pending = False
        self._session.epochs.end()

    def finish(self) -> None:
        """End the training: the last checkpoint is written."""
        if self._has_finished:
            return
        self._has_finished = True
        self.end_epoch()
        # A callback (EarlyStopping) may have stopped this replica alone.
        self._session.epochs.leave_together()
        self._session.epochs.finish()
        self.is_over = True

    def fail(self) -> None:
        """Leave the training by an error: no checkpoint is written."""
        self._has_finished = True
        self._session.epochs.leave(by_break=False)

    # --------------------------------------------------------------------------------------------- batches

    def begin_iteration(self) -> None:
        """Lightning makes an iterator: it must not fetch a batch before the step of the one before."""
        fetcher = data_fetcher(self._fit_loop)
        if fetcher is not None:
            fetcher.prefetch_batches = 0

    def before_fetch(self, loader: TrainLoader) -> bool:
        """The next global batch is wanted; return whether there may be one."""
        if self._resume is None:
            return True
        saved, self._resume = self._resume, None
        load_progress(self._fit_loop, saved["fit_loop"])
        self.is_pending = saved["is_pending"]
        fetcher = data_fetcher(self._fit_loop)
        fetcher.fetched = self._epoch_loop.batch_progress.current.ready
        if self.is_pending:
            # The rest of the iteration that the checkpoint interrupted, such as its validation.
            self._on_advance_end(fetcher)
            self.is_pending = False
            return not self._epoch_loop.done
        return True

    def fetched(self, loader: TrainLoader) -> None:
        """The first micro-batch of a global batch was fetched: set how many batches the epoch has."""
        left = loader.adaptive.num_steps_left
        trainer, fetcher = self._trainer, data_fetcher(self._fit_loop)
        limit, interval = trainer.limit_train_batches, trainer.val_check_interval
        if left is None or (isinstance(limit, float) and limit != 1.0):
            return
        if fetcher.length is None:
            fetcher.done = left == 0
            return
        length = self._epoch_loop.batch_progress.current.ready + 1 + left
        length = min(length, limit) if isinstance(limit, int) else length
        self._fit_loop.max_batches = fetcher.length = length
        if isinstance(interval, float) and interval == 1.0:
            trainer.val_check_batch = length

    def ended(self, loader: TrainLoader) -> None:
        """No batch is left in the epoch."""
        self.add_saved_sums()

    def _end_iteration(self, fetcher: Any) -> None:
        """End an iteration of Lightning's loop; cross the step's boundary first if a validation follows."""
        loader = self.loader
        if loader is None or not loader.is_in_loop:
            self._on_advance_end(fetcher)
            return
        self._count_batches(loader)
        is_last = loader.adaptive.num_steps_left == 0
        if is_last or should_validate(self._epoch_loop, fetcher):
            self.is_pending = True
            if is_last:
                loader.end_loop()
            else:
                loader.end_step()
                self._session.loops.pause()
        self._on_advance_end(fetcher)
        self.is_pending = False

    def _count_batches(self, loader: TrainLoader) -> None:
        """Where the batch varies, move the limit of steps: it counts batches of the initial size."""
        self.batches_done += loader.adaptive.schedule_steps
        if not self._is_adaptive or self._max_steps == -1:
            return
        step, left = self._epoch_loop.global_step, self._max_steps - self.batches_done
        each = loader.adaptive.current_batch_size / loader.adaptive.batch_size
        self._epoch_loop.max_steps = step + (max(1, math.ceil(left / each)) if left > 0 else 0)

    # ---------------------------------------------------------------------------------------------- resume

    def resume(self, saved: dict[str, Any]) -> None:
        """Go on where the checkpoint was written. The epoch under way begins again, with its hooks."""
        self._is_resumed = True
        load_progress(self._fit_loop, saved["fit_loop"])
        for tracker in (self._fit_loop.epoch_progress.total, self._fit_loop.epoch_progress.current):
            tracker.ready = tracker.started = tracker.processed = tracker.completed
        self.batches_done = saved["batches_done"]
        if self._is_adaptive and self._max_steps != -1 and self.batches_done >= self._max_steps:
            self._epoch_loop.max_steps = self._epoch_loop.global_step
        self._trainer.should_stop = saved["should_stop"]
        # The state is a good one: it was trained.
        self._trainer.num_sanity_val_steps = 0
        if saved["is_in_epoch"]:
            self._resume = saved


def load_progress(fit_loop: Any, saved: dict[str, Any]) -> None:
    """Set the counters of Lightning's loops. Its own logic for resuming stays off: it differs by release."""
    fit_loop.load_state_dict(saved)
    epoch_loop = fit_loop.epoch_loop
    for loop in (
        *(fit_loop, epoch_loop, epoch_loop.val_loop),
        *(epoch_loop.automatic_optimization, epoch_loop.manual_optimization),
    ):
        clear_restart(loop)
