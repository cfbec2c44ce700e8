"""The session of one training process: it makes the parts of its training, and wires what they hear."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.environment.job_environment import JobEnvironment
from pollux_slurm.errors import PolluxError, TrainingError
from pollux_slurm.torch.boundary.epoch_end_wait import EpochEndWait
from pollux_slurm.torch.boundary.seams import Seams
from pollux_slurm.torch.boundary.sigterm import StopFlag, end_as_stopped
from pollux_slurm.torch.boundary.step_boundary import ExchangeContext, StepBoundary
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointable, Checkpointer
from pollux_slurm.torch.checkpoint.default_names import DefaultNames, is_of_epoch, saved_name
from pollux_slurm.torch.checkpoint.given_values import GivenValues
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.gloo_shutdown import wait_for_gloo
from pollux_slurm.torch.coordination.same_calls import SameCalls
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.coordination.training_faults import TrainingFaults
from pollux_slurm.torch.failures.memory_bounds import OutOfMemoryWatch
from pollux_slurm.torch.failures.script_errors import ScriptErrors
from pollux_slurm.torch.failures.unstepped_loops import UnsteppedLoopCheck
from pollux_slurm.torch.session.allocation_history import AllocationHistory
from pollux_slurm.torch.session.epochs import Epochs
from pollux_slurm.torch.session.events import Event, Events, Listener
from pollux_slurm.torch.session.figures import TrainingFigures, figures_of
from pollux_slurm.torch.session.joining import (
    RunStart,
    claim_here,
    job_name,
    join_group,
    meeting_store,
    memory_bounds,
    side_channel_group,
    start_run,
)
from pollux_slurm.torch.session.loops import Loops
from pollux_slurm.torch.session.measurements import Measurements
from pollux_slurm.torch.session.regrouping import Regrouping
from pollux_slurm.torch.session.trained_models import TrainedModels
from pollux_slurm.torch.session.training_steps import TrainingSteps
from pollux_slurm.torch.wrapped_model.unwrapped_optimizers import UnwrappedOptimizerCheck

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel

_LOG = logging.getLogger(__name__)
# Longer than a fit on a busy machine: a thread in the middle of one must not meet the interpreter's end.
_CLOSE_TIMEOUT_S = 10.0
_LAST_EXCHANGE_TIMEOUT_S = 1.0


class Session:
    """One process's part in a job's training: in one run of it, and, after a regroup, in the next.

    `listener` hears of the training, `seams` changes it, for a rehearsal.
    """

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        backend: str | None,
        checkpoint_dir: Path | None,
        checkpoint_interval: CheckpointInterval | None,
        epoch_end_wait_s: float,
        max_wait_s: float,
        strict: bool,
        in_place: bool = False,
        listener: Listener | None = None,
        seams: Seams | None = None,
    ) -> None:
        listener, seams = listener or Listener(), seams or Seams()
        self.rank, self.world_size = environment.rank, environment.world_size
        self.environment, self.checkpoint_dir = environment, checkpoint_dir
        self.given = GivenValues(
            num_replicas=environment.world_size, accepts=environment.accepts_changes, logs=self.rank == 0
        )
        self._owns_group = join_group(environment, backend)
        group = side_channel_group(environment)
        self.side_channel: SideChannel[ExchangeContext] = SideChannel(
            rank=self.rank, world_size=self.world_size, group=group
        )
        start = start_run(self.side_channel, environment, checkpoint_dir)
        self.run_number, self.is_resumed, self.is_closed = start.run_number, start.is_resumed, False
        self._make_states(start)
        self.regrouping = Regrouping(
            self, environment.membership, backend=backend, progress=self.progress_state, seams=seams
        )
        for reason in self._obstacles(in_place):
            if environment.membership is not None and self.rank == 0:
                _LOG.warning("%s moves by requeue only: %s", job_name(environment), reason)
            self.regrouping.refuse(reason)
        self._make_measurements(restore_s=start.restore_s, strict=strict, seams=seams)
        self._epoch_end = EpochEndWait(wait_s=epoch_end_wait_s)
        self.boundary = StepBoundary(
            side_channel=self.side_channel,
            checkpointer=self.checkpointer,
            stop=self.stop,
            reporter=self.measurements.reporter,
            report_builder=self.measurements.report_builder,
            checkpoint_interval=checkpoint_interval,
            epoch_end=self._epoch_end,
            max_wait_s=max_wait_s,
            regroups=self.regrouping,
            seams=seams,
        )
        self._make_loops(listener)
        self.errors.install()
        if self.checkpointer.is_enabled:
            self.stop.install()
        self.measurements.start()
        self._meet_for_same_calls(environment, self.run_number)

    def _make_states(self, start: RunStart) -> None:
        """Make what checkpoints hold, and the checkpointer."""
        environment = self.environment
        self.progress_state, self.stop = ProgressState(), StopFlag()
        self.memory = memory_bounds(self.side_channel, self.checkpoint_dir)
        self.checkpointer = Checkpointer(
            side_channel=self.side_channel,
            lineage=start.lineage,
            is_enabled=self.checkpoint_dir is not None,
            loaded=start.states,
        )
        self.history = AllocationHistory(
            run_number=self.run_number, num_gpus=self.world_size, num_nodes=environment.num_nodes
        )
        self._names = DefaultNames()

    def _make_measurements(self, *, restore_s: float | None, strict: bool, seams: Seams) -> None:
        """Make what watches a run: its memory, its step times, its faults, and the replicas' calls."""
        self.memory_watch = OutOfMemoryWatch(
            self.memory,
            directory=self.checkpoint_dir,
            run_number=self.run_number,
            rank=self.rank,
            under_way=lambda: self.loops.under_way(),
        )
        self.measurements = Measurements(
            self.environment,
            run_number=self.run_number,
            restore_s=restore_s,
            progress=self.progress_state,
            where=lambda: self.loops.place(),
            seams=seams,
        )
        self.faults = TrainingFaults(
            strict=strict,
            rank=self.rank,
            report_builder=self.measurements.report_builder,
            on_log=seams.note_shape,
        )
        self.same_calls = SameCalls(
            progress=lambda: (self.progress_state.finished_epochs, self.progress_state.num_steps),
            is_stopped=lambda: self.stop.is_set,
        )

    def _make_loops(self, listener: Listener) -> None:
        """Make the steps, loops and epochs, and what hears of them; restore what they count on."""
        self.models = TrainedModels()
        self.steps = TrainingSteps(
            self.models,
            side_channel=self.side_channel,
            boundary=self.boundary,
            measurements=self.measurements,
            memory=self.memory,
            progress=self.progress_state,
            history=self.history,
        )
        self._unstepped = UnsteppedLoopCheck(
            self.faults, is_wrapped=self.models.is_wrapped, is_in_loop=lambda: self.loops.is_running
        )
        self.checkpointer.register(self.progress_state)
        self.checkpointer.register(self.memory, is_rank_0s=True)
        self.checkpointer.register(self.measurements.state, is_rank_0s=True)
        self.checkpointer.register(self.history)
        self._optimizer_check = UnwrappedOptimizerCheck()
        self.errors = ScriptErrors(
            self.environment,
            run_number=self.run_number,
            directory=self.checkpoint_dir,
            is_resumed=self.is_resumed,
            progress=self.progress_state,
            stop=self.stop,
            same_calls=self.same_calls,
            memory_watch=self.memory_watch,
            failed=lambda error: self.events.failed(error),
        )
        self.events = self._wire(listener)
        self.loops = Loops(
            events=self.events,
            listener=listener,
            progress=self.progress_state,
            models=self.models,
            steps=self.steps,
            regrouping=self.regrouping,
            errors=self.errors,
            memory_watch=self.memory_watch,
            unstepped=self._unstepped,
        )
        self.epochs = Epochs(
            events=self.events,
            progress=self.progress_state,
            loops=self.loops,
            models=self.models,
            steps=self.steps,
            boundary=self.boundary,
            regrouping=self.regrouping,
            stop=self.stop,
            leave_together=self.errors.leave_together,
        )

    def _wire(self, listener: Listener) -> Events:
        """Return who hears each event, in its order.

        The orders differ. What a loop or an epoch leaves behind is looked at before it is over. What the
        boundaries communicate is no part of the script's, so `replay` counts anew after them.
        """
        progress, replay, regrouping = self.progress_state, self.regrouping.replay, self.regrouping
        measurements, boundary, steps, models = self.measurements, self.boundary, self.steps, self.models
        epoch_end, unstepped, errors = self._epoch_end, self._unstepped, self.errors
        return Events(
            declare_epochs=Event(
                lambda _: measurements.report_progress(),
                listener.declare_epochs,
            ),
            begin_epoch=Event(
                epoch_end.begin_epoch,
                replay.begin_epoch,
                models.finish_restore,
                *((self.stop.install,) if self.checkpointer.is_enabled else ()),
            ),
            begin_loop=Event(
                lambda _: self.memory_watch.forget(),
                lambda _: unstepped.check(),
                lambda _: models.finish_restore(),
                lambda _: replay.begin_loop(),
                steps.begin_loop,
                lambda _: replay.begin_step(),
                epoch_end.begin_loop,
            ),
            begin_micro_batch=Event(steps.begin_micro_batch, listener.begin_micro_batch),
            end_micro_batch=Event(listener.end_micro_batch, lambda _: steps.end_micro_batch()),
            end_step=Event(
                listener.end_step,
                lambda loader, step: replay.end_step(
                    kind=(loader.name_across_epochs, len(step.micro_batches)), is_typical=step.is_full
                ),
            ),
            step_done=Event(regrouping.note_step, replay.begin_step, listener.step_done),
            end_loop=Event(
                listener.end_loop,
                lambda _: unstepped.check(),
                lambda _: epoch_end.end_loop(),
                lambda _: steps.end_loop(),
                listener.loop_done,
            ),
            leave_loop=Event(
                lambda _: regrouping.note_step(),
                lambda _: epoch_end.end_loop(),
                lambda _: steps.leave_loop(),
                lambda _: replay.end_loop(has_stepped=self.loops.has_stepped),
            ),
            end_epoch=Event(
                listener.end_epoch,
                unstepped.check,
                lambda: errors.notes.end(),
                lambda: self.loops.end_all(f"epoch {progress.epoch} ended"),
                # A request that has waited for this moment is not answered with an older copy of the states.
                boundary.release,
                self.same_calls.begin_epoch_end,
                epoch_end.end_epoch,
                progress.end_epoch,
                self._forget_epoch,
                steps.end_epoch,
                measurements.report_progress,
            ),
            leave_epochs=Event(epoch_end.end_epoch),
            end_training=Event(self.stop.remove, measurements.report_finished),
            finish=Event(listener.finish),
            begin_run=Event(
                lambda environment, _: listener.begin_run(environment),
                lambda *_: progress.begin_run(),
                lambda *_: self.memory.begin_run(self.side_channel),
                lambda environment, number: self.memory_watch.begin_run(
                    run_number=number, rank=environment.rank
                ),
                lambda environment, number: self.history.begin_run(
                    run_number=number, num_gpus=environment.world_size, num_nodes=environment.num_nodes
                ),
                lambda environment, number: measurements.begin_run(
                    environment, run_number=number, restore_s=None
                ),
                lambda environment, _: self.faults.begin_run(
                    rank=environment.rank, report_builder=measurements.report_builder
                ),
                lambda *_: boundary.begin_run(measurements.reporter, measurements.report_builder),
                lambda *_: steps.begin_run(),
                lambda *_: models.begin_run(),
                errors.begin_run,
                self._meet_for_same_calls,
                lambda *_: listener.run_begun(),
            ),
            failed=Event(regrouping.note_failure, self.memory_watch.note),
            close=Event(
                self.same_calls.close,
                self.stop.remove,
                errors.remove,
                unstepped.remove,
                self._optimizer_check.remove,
                boundary.release,
                self.checkpointer.wait,
                lambda: measurements.close(timeout_s=_CLOSE_TIMEOUT_S),
                lambda: regrouping.close(timeout_s=_CLOSE_TIMEOUT_S),
                lambda: self.side_channel.close(timeout_s=_LAST_EXCHANGE_TIMEOUT_S),
                lambda: wait_for_gloo(timeout_s=_CLOSE_TIMEOUT_S),
            ),
        )

    def _meet_for_same_calls(self, environment: JobEnvironment, run_number: int) -> None:
        self.same_calls.meet_through(
            meeting_store(environment),
            prefix=f"pollux/calls/{run_number}",
            rank=environment.rank,
            world_size=environment.world_size,
        )

    def _forget_epoch(self) -> None:
        """Drop the checkpoint's states that the epoch has not restored: they belong to an earlier one."""
        for name in [name for name in self.checkpointer.unrestored if is_of_epoch(name)]:
            self.checkpointer.forget(name)

    # ---------------------------------------------------------------------------------------------- regroups

    def _obstacles(self, in_place: bool) -> Iterator[str]:
        """Yield what keeps this process from regrouping, as far as that is known at its start."""
        if not in_place:
            yield "its script does not ask for it: init_process_group(in_place=True)"
        if self.checkpoint_dir is None:
            yield "it has no checkpoint directory, which is the way back: pollux run --checkpoint-dir DIR"
        if not self._owns_group:
            yield "its script makes the process group itself: leave torch.distributed.init_process_group out"

    def leave_run(self) -> None:
        """Let go of all process groups, between two steps."""
        self.models.leave_run()
        self.side_channel.begin_run(rank=0, world_size=1, group=None)
        dist.destroy_process_group()

    def claim_next_run(self) -> int:
        """Claim, on the new rank 0, the run that follows in memory; return its number."""
        assert self.checkpoint_dir is not None, "an obstacle otherwise"
        lineage = claim_here(self.environment, self.checkpoint_dir, goes_on_from=self.run_number)
        self.checkpointer.lineage = lineage
        return lineage.claim.run_number

    def save_states(self, states: Mapping[str, Any]) -> None:
        """Write the states of a regroup that failed as a checkpoint."""
        try:
            if self.checkpointer.lineage is None:
                # They were handed over by the former rank 0.
                self.claim_next_run()
            self.checkpointer.write_states(states)
        except PolluxError as error:
            _LOG.error("no checkpoint was written: %s", error)

    def adopt(self, states: Mapping[str, Any]) -> None:
        """Take over the states of the training that this process joins."""
        self.checkpointer.restore(states)
        self.models.finish_restore()
        self.is_resumed = True
        self.errors.begin_training(is_resumed=True)

    def begin_run(self, environment: JobEnvironment, *, run_number: int) -> None:
        """Go on as another run, with other replicas."""
        self.environment, self.run_number = environment, run_number
        self.rank, self.world_size = environment.rank, environment.world_size
        self.events.begin_run(environment, run_number)

    # ------------------------------------------------------------------------------- the script's objects

    @property
    def num_steps(self) -> int:
        """The optimizer steps of all runs so far, also one whose boundary is not crossed yet."""
        return self.progress_state.num_steps + self.models.has_open_step

    def next_default_name(self, kind: str) -> str:
        """Return a name for the next unnamed object of its kind: the same in every run of one script."""
        return self._names.next(kind, self.progress_state.epoch_key)

    def register(self, state: Checkpointable, *, is_rank_0s: bool = False) -> None:
        """Add a state to the checkpoints, and restore it. `is_rank_0s`: it may differ on others."""
        self.checkpointer.register(
            state,
            is_rank_0s=is_rank_0s,
            is_temporary=is_of_epoch(state.name),
            saved_as=saved_name(state.name, self.checkpointer.unrestored, self.progress_state.epoch_key),
        )

    def add_model(self, model: WrappedModel) -> None:
        """Add a model that steps with the loaders' batches, and restore it."""
        self.checkpointer.register(model)
        self._optimizer_check.add(model)
        self.models.add(model)
        self.measurements.set_device(model.device)
        self.regrouping.replay.add_model()

    def figures(self) -> TrainingFigures | None:
        """Return what the steps of the outermost loop are like; None outside of one, or without a model."""
        loader, model = self.loops.stepping, self.models.first
        if loader is None or model is None:
            return None
        return figures_of(
            loader,
            model,
            environment=self.environment,
            prediction=self.measurements.prediction(loader.choice),
            progress=self.progress_state.progress + (model.last_gain if self.models.has_open_step else 0.0),
        )

    # --------------------------------------------------------------------------------------------- the end

    def leave(self) -> None:
        """Close the session at the end of the process."""
        self.close()
        if self.stop.ends_unfinished and not self.errors.has_failed:
            end_as_stopped()
        # The interpreter's last garbage collection visits all that torch has imported. It takes up to a
        # second for each rank, while Slurm waits to start the job again. The kernel frees the memory anyway.
        gc.freeze()

    def close(self) -> None:
        """Wait for a checkpoint under way, send the last report for a bounded time, leave the group."""
        atexit.unregister(self.leave)
        if not (self.errors.has_failed or self.regrouping.has_left or self.stop.is_set or self.is_closed):
            with contextlib.suppress(TrainingError):
                self.loops.check_steps()
        # Before modules go: iterators in global variables outlive them.
        with contextlib.suppress(PolluxError):
            self.loops.end_all("the session ended")
        self.is_closed = True
        self.events.close()
        if self._owns_group and dist.is_initialized():
            self.leave_run()
