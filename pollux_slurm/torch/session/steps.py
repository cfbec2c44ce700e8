"""What the outermost loop does with its batches: plans for the models, a step, the boundary after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Optimizer

from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.boundary.step_boundary import Agreement, Boundary
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.replica_comparison import is_time_to_compare
from pollux_slurm.torch.coordination.side_channel import Control
from pollux_slurm.torch.data.micro_batches import PassPlan, StepPlan
from pollux_slurm.torch.session.loader import Loader
from pollux_slurm.torch.session.measuring import Measuring
from pollux_slurm.torch.session.memory_bounds import MemoryBounds

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.adaptation import Adaptation

# Batches whose gradients a script adds up before it steps; beyond that it has another use for them.
_MOST_PASSED_BY = 256


class Steps:
    """The steps of a run's models. Each method is called on all ranks alike.

    `is_dirty` tells whether there is anything that no checkpoint holds.
    """

    def __init__(
        self,
        *,
        control: Control[Agreement],
        boundary: Boundary,
        measuring: Measuring,
        memory: MemoryBounds,
        progress: ProgressState,
    ) -> None:
        self._control, self._boundary, self._memory = control, boundary, memory
        self._measuring, self._clock, self._progress = measuring, measuring.clock, progress
        self._models: list[Adaptation] = []
        self._num_passed_by = self._num_batches = 0
        # Of batches since the last step: a loop in which nothing steps, as a validation, trains on none.
        self._num_examples = self._batch_size = 0
        self.is_dirty = False

    def add(self, model: Adaptation) -> None:
        """Add a model that steps with the loaders' batches."""
        self._models.append(model)
        self._measuring.runs_on(model.device)

    @property
    def is_open(self) -> bool:
        """True between an optimizer's step and the boundary after it."""
        return any(model.has_stepped for model in self._models)

    def is_own(self, optimizer: Optimizer) -> bool:
        """True for an optimizer that was given to a model of this job."""
        return any(one is optimizer for model in self._models for one in model.optimizers)

    def take_up(self) -> None:
        """Finish what a restart takes up: the script has made its models, and training begins."""
        for model in self._models:
            model.take_up()

    @property
    def has_gradients(self) -> bool:
        """True where gradients of a wrapped model were computed and nothing was done with them."""
        return any(model.reducer.is_pending for model in self._models)

    def refuse(self, reason: str | None) -> None:
        """Let no backward pass come, for a reason; None where one may."""
        for model in self._models:
            model.reducer.refusal = reason

    # ------------------------------------------------------------------------------------------- one loop

    def begin_loop(self, loader: Loader, *, is_awaited: bool) -> None:
        """Begin a loop over `loader`. `is_awaited`: a checkpoint may have been confirmed meanwhile."""
        self._num_examples = 0
        self._boundary.begin_loop()
        for model in self._models:
            model.comparison.check_parameters()
            # Steps over something else are none of this loop's.
            model.take_stepped()
        if self._boundary.is_holding or is_awaited:
            # A request that was answered meanwhile: not one step is trained after it.
            self._boundary.cross((), proposal=None, wait=True)
        self._choose_batch(loader)
        self._clock.start()

    def end_loop(self) -> None:
        """Let the ranks agree once more at the end of a loop, before code that may take long."""
        self._boundary.cross((), proposal=None, wait=True, may_hold=True)

    def leave_loop(self) -> None:
        """A loop is over, or was left. After a step before `break` there is no boundary, but it counts."""
        self._set_plan(None)
        stepped = [model for model in self._models if model.take_stepped()]
        for model in stepped:
            model.reducer.take_norms()
        if stepped:
            self._num_examples += self._batch_size
            self._count(stepped[0])
        self._num_examples = 0
        self._clock.disturb(num_steps=1)

    def _choose_batch(self, loader: Loader) -> None:
        """Choose the batch size anew where it may vary: rank 0 does, for all."""
        if loader.limits.max_batch_size is None or not self._models:
            return
        for model in self._models:
            # Else its statistics would be at the batch of the loop before.
            model.noise.set_initial_batch_size(loader.batch_size)
        choice = loader.choice
        if self._control.rank == 0:
            choice = self._measuring.propose(loader.limits, choice, self._models[0].noise)
        values = self._control.broadcast(
            [choice.global_batch_size, choice.atomic_batch_size, choice.accumulation_steps]
        )
        choice = BatchChoice(
            global_batch_size=values[0], atomic_batch_size=values[1], accumulation_steps=values[2]
        )
        if loader.choose(choice):
            self._clock.disturb()
            if self.is_dirty:
                self._save_before(loader, choice)

    def _save_before(self, loader: Loader, choice: BatchChoice) -> None:
        """Begin a checkpoint before a local batch that may not fit into memory."""
        if self._memory.is_untried(loader.memory_name, choice.atomic_batch_size):
            self._boundary.checkpoint_unasked()

    # ----------------------------------------------------------------------------------------- its batches

    def begin_pass(self, loader: Loader, plan: PassPlan) -> None:
        """Tell the models what the coming pass is."""
        self._clock.batch_ready()
        self._batch_size = plan.step_size
        if plan.index == 0:
            for model in self._models:
                model.set_batch(
                    initial_batch_size=loader.batch_size,
                    global_batch_size=loader.choice.global_batch_size,
                    progress=self._progress.progress,
                    schedule_steps=loader.schedule_steps,
                )
        self._set_plan(plan)

    def end_pass(self) -> None:
        """Stamp the end of a pass."""
        self._clock.pass_done()

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        """Close a global batch: measure, then let the ranks agree. Returns the batch agreed upon, if any."""
        self._num_examples += step.size
        stepped = [model for model in self._models if model.take_stepped()]
        self._compare_now_and_then()
        first = stepped[0] if stepped else None
        if first is not None:
            # The largest of all replicas, so that all know the same.
            cells = self._control.world_size * len(step.passes)
            self._memory.proved(loader.memory_name, -(-step.size // cells))
        self._measuring.step_done(
            step,
            loader.choice,
            local_end=None if first is None else first.reducer.local_end,
            sync_end=None if first is None else first.reducer.sync_end,
        )
        model_steps = tuple(model.take_step(step) for model in stepped)
        proposal = None
        if first is not None:
            self._count(first)
            proposal = self._measuring.tell_step(loader.limits, loader.choice, first.noise)
        chosen, stood_still = self._boundary.cross(
            model_steps, proposal=proposal, wait=False, passes_by=self._must_pass_by(stepped)
        )
        if chosen is not None:
            self._clock.disturb()
            if not stood_still:
                self._save_before(loader, chosen)
        if stood_still:
            self.is_dirty = False
            self._clock.disturb(num_steps=1)
            self._clock.start()
        self._clock.batch_wanted()
        return chosen

    def _compare_now_and_then(self) -> None:
        """See whether the replicas' weights are the same, beside what each checkpoint does."""
        self._num_batches += 1
        if is_time_to_compare(self._num_batches):
            for model in self._models:
                model.comparison.compare()

    def _must_pass_by(self, stepped: list[Adaptation]) -> bool:
        """Whether gradients of whole batches wait for a step: a checkpoint here would lose them."""
        is_pending = any(model.reducer.is_pending for model in self._models if model not in stepped)
        self._num_passed_by = self._num_passed_by + 1 if is_pending else 0
        return 0 < self._num_passed_by <= _MOST_PASSED_BY

    def _count(self, model: Adaptation) -> None:
        self.is_dirty = True
        self._progress.num_steps += 1
        self._progress.run_examples += self._num_examples
        self._num_examples = 0
        self._progress.progress += model.last_gain
        self._measuring.tell_progress()

    def _set_plan(self, plan: PassPlan | None) -> None:
        for model in self._models:
            model.reducer.begin_pass(plan)
