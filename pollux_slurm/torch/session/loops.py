"""The loops over adaptive loaders: which one drives the models' steps, and what happens in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.text import plural
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.failures.memory_bounds import OutOfMemoryWatch
from pollux_slurm.torch.failures.script_errors import ScriptErrors
from pollux_slurm.torch.failures.unstepped_loops import UnsteppedLoopCheck
from pollux_slurm.torch.session.events import Events, Listener
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.regrouping import Regrouping
from pollux_slurm.torch.session.trained_models import TrainedModels
from pollux_slurm.torch.session.training_steps import TrainingSteps

_INNER = (
    "a backward pass over the batches of {inner!r} within a loop over {outer!r}: only the outermost loop "
    "can train. If that one is an iterator kept in a variable, delete it before (`del`). To train on two "
    "datasets side by side (zip), give one loader both: torch.utils.data.StackDataset(first, second)"
)
_SIDE_BY_SIDE = (
    "two AdaptiveDataLoaders advance together (zip, or an iterator over one is kept in a variable): combine "
    "their datasets into one, or make one of them an ordinary DataLoader"
)


class Loops:
    """The stack of loops under way. The outermost one drives the models' steps and the boundaries.

    One inside of it (an evaluation) only yields batches.
    """

    def __init__(
        self,
        *,
        events: Events,
        listener: Listener,
        progress: ProgressState,
        models: TrainedModels,
        steps: TrainingSteps,
        regrouping: Regrouping,
        errors: ScriptErrors,
        memory_watch: OutOfMemoryWatch,
        unstepped: UnsteppedLoopCheck,
    ) -> None:
        self._events, self._listener, self._progress = events, listener, progress
        self._models, self._steps = models, steps
        self._regrouping, self._errors, self._unstepped = regrouping, errors, unstepped
        self._memory_watch = memory_watch
        self._stack: list[Loader] = []
        # The loader of the outermost loop, which makes the models' steps; None once that is over.
        self.stepping: Loader | None = None
        # The steps of the training when its outermost loop began.
        self._num_steps_before = 0

    # ----------------------------------------------------------------------------------------------- queries

    @property
    def outermost(self) -> Loader | None:
        """The loader of the outermost loop under way."""
        return self._stack[0] if self._stack else None

    @property
    def is_running(self) -> bool:
        """True while a loop over an adaptive loader runs."""
        return bool(self._stack)

    @property
    def is_padding(self) -> bool:
        """True while the innermost loop yields padding."""
        return bool(self._stack) and self._stack[-1].is_padding

    @property
    def has_stepped(self) -> bool:
        """Whether the outermost loop under way has made a step."""
        return self._progress.num_steps > self._num_steps_before

    def under_way(self) -> tuple[str, int] | None:
        """Return the innermost loader and the size of its current micro-batch; None between batches."""
        is_in_batch = bool(self._stack) and not self._steps.is_paused
        size = self._stack[-1].current_micro_batch_size if is_in_batch else None
        return None if size is None else (self._stack[-1].name_across_epochs, size)

    def place(self) -> str:
        """Return how far training is, as text for the job's log. Any thread may call it."""
        epoch, loader = self._progress.epoch, self.stepping
        if epoch is None:
            number = self._progress.finished_epochs
            return f"after {plural(number, 'epoch')}"
        return f"in epoch {epoch}" + ("" if loader is None else f" at example {loader.num_examples_done}")

    # --------------------------------------------------------------------------------------- begin and end

    def end_all(self, event: str) -> None:
        """End loops that are still under way: positions belong to epochs."""
        for loader in self._stack[::-1]:
            loader.end_iteration(
                f"{event} while an iterator over {loader!r} was kept, which ended with it: make another one "
                "with iter(loader) in each epoch"
            )

    @contextlib.contextmanager
    def enter(self, loader: Loader) -> Iterator[None]:
        """Enter a loop over `loader`, and leave it with the block."""
        is_outermost, is_left = not self._stack, False
        self._listener.enter_loop(loader, is_outermost=is_outermost)
        self._stack.append(loader)
        try:
            if is_outermost:
                self.stepping, self._num_steps_before = loader, self._progress.num_steps
                self._events.begin_loop(loader)
            yield
        except GeneratorExit:
            is_left = True
            raise
        finally:
            self._stack.remove(loader)
            if is_outermost:
                self.stepping = None
                self._events.leave_loop(loader)
            elif len(self._stack) == 1:
                self._models.refuse(None)
            self._listener.leave_loop(loader, is_outermost=is_outermost, is_left=is_left)

    def end_previous(self, loader: Loader) -> None:
        """End a loop over `loader` that is still under way: another one begins."""
        if loader in self._stack:
            loader.end_iteration(
                f"another loop over {loader!r} was begun, which ended this one: two cannot run at once"
            )

    def end(self, loader: Loader) -> None:
        """End the outermost loop at the end of its data."""
        if self.stepping is loader:
            self._events.end_loop(loader)

    def leave(self, loader: Loader, *, by_break: bool, by_error: bool) -> None:
        """Leave a loop before the end of its data: by `break` with all replicas, or by an error.

        A loop without a step yet may be left by one rank alone: it has looked at some batches.
        """
        if by_error:
            self._errors.leave_loop()
        if by_break and self.outermost is loader and self.has_stepped:
            self._errors.leave_together(f"the loop over {loader!r}")

    # ------------------------------------------------------------------------------------------------ steps

    def splits_to_measure(self, loader: Loader) -> bool:
        """Return, as each step is planned, whether it is split to measure gradient noise."""
        return self.stepping is loader and self._steps.splits_to_measure(loader)

    def begin_micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        """Give the models the plan of the coming micro-batch."""
        if self.stepping is loader:
            self._events.begin_micro_batch(loader, plan)
        else:
            # This batch belongs to no step: its gradients would go into the outer loop's.
            outer = "another loader" if self.stepping is None else self.stepping
            self._models.refuse(_INNER.format(inner=loader, outer=outer))

    def end_micro_batch(self, loader: Loader) -> None:
        """Take the time of a micro-batch's end."""
        if self.stepping is loader:
            self._events.end_micro_batch(loader)

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        """End a global batch; return the batch choice that all ranks use from now on, None: as before."""
        if self.stepping is not loader:
            return None
        if len(self._stack) > 1:
            # No moment is between the steps of both, so no checkpoint would be possible.
            raise UsageError(_SIDE_BY_SIDE)
        generation = self._regrouping.number
        self._events.end_step(loader, step)
        chosen = self._steps.end_step(loader, step)
        if self._regrouping.number != generation:
            # As those do that have joined, and come to this loop now.
            self._steps.begin_loop(loader)
            self._steps.is_dirty = True
            self._regrouping.replay.begin_step()
        else:
            self._events.step_done()
        return chosen

    def pause(self) -> None:
        """Allow a checkpoint here, and while the code that follows runs, between two steps of a loop.

        For a framework that owns the loop, such as before a validation within it.
        """
        if self.stepping is not None:
            self._steps.pause()

    def end_pause(self, loader: Loader) -> BatchChoice | None:
        """Go on after `pause`, if there was one; return the batch choice that all ranks use from now on."""
        if self.stepping is not loader or not self._steps.is_paused:
            return None
        return self._steps.end_pause()

    def checkpoint_point(self) -> None:
        """Cross a boundary between two loops, or in a pause, where long-running code calls for it."""
        if not self._stack or (self._steps.is_paused and not self._models.has_gradients):
            self._memory_watch.forget()
            self._regrouping.replay.note("its script calls checkpoint_point() in this epoch")
            self._steps.cross_point()

    def check_steps(self) -> None:
        """Report a training without one step of a wrapped optimizer, here or in an earlier run."""
        if self._progress.num_steps == 0:
            self._unstepped.check_end(has_gradients=self._models.has_gradients)
