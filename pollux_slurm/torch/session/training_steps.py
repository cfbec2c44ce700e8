"""The steps of the outermost loop: plan each micro-batch for the models, measure, and cross the boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux_slurm.agent.measure.fit_and_batch_choice import TrainingState
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.boundary.step_boundary import ExchangeContext, RegroupPlace, StepBoundary
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.failures.memory_bounds import MemoryBounds
from pollux_slurm.torch.session.allocation_history import AllocationHistory
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.measurements import Measurements
from pollux_slurm.torch.session.trained_models import TrainedModels

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel

# A step is split to measure noise after so many of the loop that had an optimizer's step: scripts that add up
# the gradients of several batches must not be disturbed.
_WHOLE_STEPS = 2
# A script may add up the gradients of so many batches before it steps. Beyond that it uses them otherwise.
_MAX_SKIPPED = 256


class TrainingSteps:
    """The steps of a run's models. Each method is called on all ranks alike.

    `is_dirty` is True while there is progress that no checkpoint has, `is_paused` between `pause` and
    `end_pause`.
    """

    def __init__(
        self,
        models: TrainedModels,
        *,
        side_channel: SideChannel[ExchangeContext],
        boundary: StepBoundary,
        measurements: Measurements,
        memory: MemoryBounds,
        progress: ProgressState,
        history: AllocationHistory,
    ) -> None:
        self._models, self._side_channel = models, side_channel
        self._boundary, self._memory = boundary, memory
        self._measurements, self._clock, self._progress = measurements, measurements.clock, progress
        self._history = history
        self._num_skipped = 0
        # The loop's steps without a batch that no optimizer stepped with.
        self._num_whole = 0
        self.is_paused = False
        self._chosen_in_pause: BatchChoice | None = None
        # Of the batches since the last step. A loop without steps, such as a validation, trains on none.
        self._num_examples = self._batch_size = 0
        self.is_dirty = False
        # Whether `cross_point` was called since the last loop, or in this pause.
        self._had_point = False

    def begin_run(self) -> None:
        """Go on with other replicas: all count alike what decides when they communicate."""
        self._num_skipped = 0

    def end_epoch(self) -> None:
        """The end of an epoch is progress that no checkpoint has."""
        self.is_dirty = True

    # ------------------------------------------------------------------------------------------- one loop

    def begin_loop(self, loader: Loader) -> None:
        """Begin a loop over `loader`."""
        self._num_examples = self._num_whole = 0
        self._boundary.begin_loop()
        for model in self._models:
            model.comparison.check_parameters()
            # Steps outside of loops do not belong to this one.
            model.take_stepped()
        self._cross_if_answered()
        self._choose_batch(loader)
        self._clock.start()

    def end_loop(self) -> None:
        """Let the ranks agree once more at the end of a loop, before code that may take long.

        Not while gradients wait for a step of the next loop: a checkpoint would lose them.
        """
        self._boundary.cross((), proposal=None, wait=True, may_copy=True, skips=self._must_skip([]))

    def pause(self) -> None:
        """Let the ranks agree between two steps of a loop, before code that may take long."""
        self.is_paused = True
        if not self._models.has_gradients:
            self._chosen_in_pause, _ = self._boundary.cross((), proposal=None, wait=True, may_copy=True)

    def end_pause(self) -> BatchChoice | None:
        """Go on after `pause`. Returns a new batch choice, if any."""
        self.is_paused, chosen, self._chosen_in_pause = False, self._chosen_in_pause, None
        self._cross_if_answered()
        self._clock.skip_steps(num_steps=1)
        self._clock.start()
        return chosen

    def cross_point(self) -> None:
        """Let the ranks agree in long-running code outside of loops, or in a pause."""
        self._had_point = True
        self._boundary.cross((), proposal=None, wait=False)

    def _cross_if_answered(self) -> None:
        """Cross a boundary where a request may have been answered: not one step is trained after it."""
        had_point, self._had_point = self._had_point, False
        if self._boundary.has_copy or had_point:
            self._boundary.cross((), proposal=None, wait=True)

    def leave_loop(self) -> None:
        """End a loop, also one that was left. A step before `break` counts, though no boundary follows."""
        self._models.plan(None)
        self.is_paused, self._chosen_in_pause = False, None
        stepped = self._models.take_stepped()
        for model in stepped:
            model.reducer.take_norms()
        if stepped:
            self._num_examples += self._batch_size
            self._count(stepped[0])
        self._num_examples = 0
        self._clock.skip_steps(num_steps=1)

    def _choose_batch(self, loader: Loader) -> None:
        """Choose the batch size anew where it may vary; rank 0 chooses for all."""
        first = self._models.first
        if loader.limits.max_batch_size is None or first is None:
            return
        for model in self._models:
            # Else its statistics would be those at the previous loop's initial batch size.
            model.noise.set_initial_batch_size(loader.batch_size)
        choice = loader.choice
        if self._side_channel.rank == 0:
            choice = self._measurements.propose(self._training(loader, first))
        values = self._side_channel.broadcast(
            [choice.global_batch_size, choice.atomic_batch_size, choice.accumulation_steps]
        )
        choice = BatchChoice(
            global_batch_size=values[0], atomic_batch_size=values[1], accumulation_steps=values[2]
        )
        if loader.choose(choice):
            self._clock.skip_steps()
            if self.is_dirty:
                self._save_before(loader, choice)

    def _training(self, loader: Loader, model: WrappedModel) -> TrainingState:
        """Return the state of training with `loader`, and the noise of `model`."""
        name = loader.name_across_epochs
        self._memory.hear(name, self._measurements.fitting_atomic)
        return TrainingState(
            limits=loader.limits,
            statistics=model.noise.statistics(),
            num_updates=model.noise.num_updates,
            batch=loader.choice,
            fitting_atomic=self._memory.heard(name),
        )

    def _save_before(self, loader: Loader, choice: BatchChoice) -> None:
        """Begin a checkpoint before a local batch that may not fit into memory."""
        if self._memory.is_untried(loader.name_across_epochs, choice.atomic_batch_size):
            self._boundary.checkpoint_in_background()

    def splits_to_measure(self, loader: Loader) -> bool:
        """Return, as a step is planned, whether it is split to measure gradient noise.

        That is for one replica, whose batches are one micro-batch and may be more. It costs more than a whole
        step, so it is seldom.
        """
        first = self._models.first
        may_split = (
            self._side_channel.world_size == 1
            and first is not None
            and loader.may_split
            and all(model.may_split for model in self._models)
        )
        for model in self._models:
            model.reducer.measured.is_by_splits = may_split
        if first is None or not may_split:
            return False
        schedule = first.reducer.measured.split_schedule
        splits = (
            schedule.is_due
            and self._num_whole >= _WHOLE_STEPS
            and all(model.can_measure for model in self._models)
        )
        schedule.add_step(is_probe=splits)
        return splits

    # ----------------------------------------------------------------------------------------- its batches

    def begin_micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        """Give the models the plan of the coming micro-batch."""
        self._clock.batch_ready()
        self._batch_size = plan.step_size
        if plan.index == 0:
            for model in self._models:
                model.reducer.steps_each |= loader.groups_micro_batches
                model.set_batch(
                    initial_batch_size=loader.batch_size,
                    global_batch_size=loader.choice.global_batch_size,
                    progress=self._progress.progress,
                    schedule_steps=loader.schedule_steps,
                    may_split=loader.limits.accumulation
                    or (loader.limits.max_atomic or loader.batch_size) < loader.batch_size,
                    may_vary=loader.limits.varies,
                )
        self._models.plan(plan)

    def end_micro_batch(self) -> None:
        """Take the time of a micro-batch's end."""
        self._clock.micro_batch_done()

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        """End a global batch: measure, then cross the step boundary. Returns a new batch choice, if any."""
        self._num_examples += step.size
        stepped = self._models.take_stepped()
        self._num_whole = self._num_whole + 1 if stepped else 0
        self._models.compare_now_and_then()
        first = stepped[0] if stepped else None
        if first is not None:
            # The largest of all replicas, so that all record the same.
            number = self._side_channel.world_size * len(step.micro_batches)
            self._memory.record_fitting(loader.name_across_epochs, -(-step.size // number))
        self._clock.step_done(
            local_end=None if first is None else first.reducer.local_end,
            sync_end=None if first is None else first.reducer.sync_end,
            atomic_batch_size=loader.choice.atomic_batch_size,
            num_examples=step.size,
            is_typical=step.is_typical
            and not any(model.reducer.measured.halves.is_measuring for model in stepped),
        )
        model_steps = tuple(model.take_step(step) for model in stepped)
        proposal = None
        if first is not None:
            self._count(first)
            proposal = self._measurements.record_step(self._training(loader, first), self._models)
        chosen, was_interrupted = self._boundary.cross(
            model_steps,
            proposal=proposal,
            wait=False,
            skips=self._must_skip(stepped),
            regroups_at=RegroupPlace.STEP,
        )
        if chosen is not None:
            self._clock.skip_steps()
            if not was_interrupted:
                self._save_before(loader, chosen)
        if was_interrupted:
            self.is_dirty = False
            self._clock.skip_steps(num_steps=1)
            self._clock.start()
        self._clock.batch_requested()
        return chosen

    def _must_skip(self, stepped: list[WrappedModel]) -> bool:
        """Return whether gradients of whole batches wait for a step: a checkpoint here would lose them."""
        is_pending = any(model.reducer.is_pending for model in self._models if model not in stepped)
        self._num_skipped = self._num_skipped + 1 if is_pending else 0
        return 0 < self._num_skipped <= _MAX_SKIPPED

    def _count(self, model: WrappedModel) -> None:
        self.is_dirty = True
        self._progress.num_steps += 1
        self._history.note_step(self._progress.num_steps)
        self._progress.run_examples += self._num_examples
        self._num_examples = 0
        self._progress.progress += model.last_gain
        self._measurements.report_progress()
