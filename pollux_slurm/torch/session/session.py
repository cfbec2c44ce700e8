"""The session of one training process: it connects the parts that make its training adaptive."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.optim import Optimizer

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.node.environment import JobEnvironment
from pollux_slurm.errors import PolluxError, TrainingError, UsageError
from pollux_slurm.goodput import noise_scale
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.boundary.epoch_end_wait import EpochEndWait
from pollux_slurm.torch.boundary.sigterm import StopFlag, end_as_stopped
from pollux_slurm.torch.boundary.step_boundary import ExchangeContext, RegroupPlace, StepBoundary
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointable, Checkpointer, read_checkpoint
from pollux_slurm.torch.checkpoint.default_names import DefaultNames, is_of_epoch, saved_name
from pollux_slurm.torch.checkpoint.given_values import GivenValues
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.gloo_shutdown import wait_for_gloo
from pollux_slurm.torch.coordination.same_calls import SameCalls
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.coordination.training_faults import TrainingFaults
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.measurement.timestamps import Timestamp
from pollux_slurm.torch.session.allocation_history import AllocationHistory
from pollux_slurm.torch.session.figures import TrainingFigures
from pollux_slurm.torch.session.joining import (
    claim_here,
    claim_next_run,
    job_name,
    join_group,
    meeting_store,
    memory_bounds,
    side_channel_group,
)
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.measurements import Measurements
from pollux_slurm.torch.session.memory_bounds import OutOfMemoryWatch, device_bytes, is_out_of_memory
from pollux_slurm.torch.session.rank_failures import explain_loss, is_peer_lost, note_failure
from pollux_slurm.torch.session.regrouping import Regrouping
from pollux_slurm.torch.session.resume_notes import ResumeNotes
from pollux_slurm.torch.session.training_steps import TrainingSteps
from pollux_slurm.torch.session.uncaught_errors import UncaughtErrors
from pollux_slurm.torch.session.unstepped_loops import UnsteppedLoopCheck
from pollux_slurm.torch.wrapped_model.unwrapped_optimizers import UnwrappedOptimizerCheck

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.wrapped_model import WrappedModel

_LOG = logging.getLogger(__name__)
# Longer than a fit on a busy machine: a thread in the middle of one must not meet the interpreter's end.
_CLOSE_TIMEOUT_S = 10.0
_LAST_EXCHANGE_TIMEOUT_S = 1.0
_INNER = (
    "a backward pass over the batches of {inner!r} within a loop over {outer!r}: only the outermost loop "
    "can train. If that one is an iterator kept in a variable, delete it before (`del`). To train on two "
    "datasets side by side (zip), give one loader both: torch.utils.data.StackDataset(first, second)"
)


class Session:
    """One process's part in a job's training: in one run of it, and, after a regroup, in the next."""

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
    ) -> None:
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

        started = time.perf_counter()
        lineage, run_number, resume_path = claim_next_run(self.side_channel, environment, checkpoint_dir)
        loaded = {} if resume_path is None else read_checkpoint(resume_path)
        restore_s = None if resume_path is None else time.perf_counter() - started
        if lineage is not None and lineage.claim.resumed_from is not None:
            _LOG.info(
                "%s goes on from the checkpoint of its run %d, with %d replicas",
                *(job_name(environment), lineage.claim.resumed_from.run_number + 1, self.world_size),
            )
        self.run_number, self.is_resumed = run_number, resume_path is not None
        self.memory = memory_bounds(self.side_channel, checkpoint_dir)
        self.regrouping = Regrouping(self, environment.membership, backend=backend)
        for reason in self._obstacles(in_place):
            if environment.membership is not None and self.rank == 0:
                _LOG.warning("%s moves by requeue only: %s", job_name(environment), reason)
            self.regrouping.refuse(reason)
        self._watch = OutOfMemoryWatch(
            self.memory,
            directory=checkpoint_dir,
            run_number=run_number,
            rank=self.rank,
            under_way=self._under_way,
        )

        self._names = DefaultNames()
        self._loops: list[Loader] = []
        # The loader of the outermost loop, which makes the models' steps; None once that is over.
        self._outer_loader: Loader | None = None
        # The steps of the training when its outermost loop began.
        self._num_steps_before_loop = 0
        self.progress_state = ProgressState()
        self.history = AllocationHistory(
            run_number=run_number, num_gpus=self.world_size, num_nodes=environment.num_nodes
        )
        self._had_checkpoint_point = self.is_closed = False
        self.measurements = Measurements(
            environment,
            run_number=run_number,
            restore_s=restore_s,
            progress=self.progress_state,
            where=self.place,
        )
        self.faults = TrainingFaults(
            strict=strict, rank=self.rank, report_builder=self.measurements.report_builder
        )
        self.stop = StopFlag()
        checkpointer = Checkpointer(
            side_channel=self.side_channel,
            lineage=lineage,
            is_enabled=checkpoint_dir is not None,
            loaded=loaded,
        )
        self.checkpointer = checkpointer
        self._epoch_end = EpochEndWait(wait_s=epoch_end_wait_s)
        self.boundary = StepBoundary(
            side_channel=self.side_channel,
            checkpointer=checkpointer,
            stop=self.stop,
            reporter=self.measurements.reporter,
            report_builder=self.measurements.report_builder,
            checkpoint_interval=checkpoint_interval,
            epoch_end=self._epoch_end,
            max_wait_s=max_wait_s,
            regroups=self.regrouping,
        )
        self._steps = TrainingSteps(
            side_channel=self.side_channel,
            boundary=self.boundary,
            measurements=self.measurements,
            memory=self.memory,
            progress=self.progress_state,
            history=self.history,
        )
        self.needs_pairs = self._steps.needs_pairs
        self._unstepped_loops = UnsteppedLoopCheck(
            self.faults, is_wrapped=self.is_wrapped, is_in_loop=lambda: self.is_in_loop
        )
        checkpointer.register(self.progress_state)
        checkpointer.register(self.memory)
        checkpointer.register(self.measurements.state, is_rank_0s=True)
        checkpointer.register(self.history)
        self._resume_notes, self._resumed_at = (
            ResumeNotes(is_resumed=self.is_resumed),
            self.progress_state.num_steps,
        )
        self._uncaught_errors, self._has_failed = (
            UncaughtErrors(before=self._script_failed, after=self._after_traceback),
            False,
        )
        self._uncaught_errors.install()
        if checkpointer.is_enabled:
            self.stop.install()
        self._optimizer_check = UnwrappedOptimizerCheck()
        self.measurements.start()
        self.same_calls = SameCalls(
            progress=lambda: (self.progress_state.finished_epochs, self.progress_state.num_steps),
            is_stopped=lambda: self.stop.is_set,
        )
        self._meet_for_same_calls()

    def _meet_for_same_calls(self) -> None:
        store = meeting_store(self.environment)
        prefix = f"pollux/calls/{self.run_number}"
        self.same_calls.meet_through(store, prefix=prefix, rank=self.rank, world_size=self.world_size)

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
        self._steps.leave_run()
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
        self._steps.finish_restore()
        self.is_resumed, self._resumed_at = True, self.progress_state.num_steps
        self._resume_notes = ResumeNotes(is_resumed=True)

    def begin_run(self, environment: JobEnvironment, *, run_number: int) -> None:
        """Go on as another run, with other replicas."""
        self.environment, self.run_number = environment, run_number
        self.rank, self.world_size = environment.rank, environment.world_size
        self.progress_state.run_examples = 0
        self.memory.smallest_device = min(self.side_channel.gather(device_bytes()))
        self._watch.begin_run(run_number=run_number, rank=self.rank)
        self.history.begin_run(
            run_number=run_number, num_gpus=self.world_size, num_nodes=environment.num_nodes
        )
        self.measurements.begin_run(environment, run_number=run_number, restore_s=None)
        self.faults.begin_run(rank=self.rank, report_builder=self.measurements.report_builder)
        self.boundary.begin_run(self.measurements.reporter, self.measurements.report_builder)
        self._steps.begin_run()
        self._meet_for_same_calls()

    # ----------------------------------------------------------------------------------------------- queries

    @property
    def strict(self) -> bool:
        """Whether `faults.report` raises an error instead of logging one."""
        return self.faults.strict

    @property
    def current_epoch(self) -> int | None:
        return self.progress_state.epoch

    @property
    def finished_epochs(self) -> int:
        return self.progress_state.finished_epochs

    @property
    def progress(self) -> float:
        """How far training has come, in units of M0, earlier runs included."""
        return self.progress_state.progress

    @property
    def num_steps(self) -> int:
        """The optimizer steps of all runs so far, also one whose boundary is not crossed yet."""
        return self.progress_state.num_steps + self._steps.is_open

    def figures(self) -> TrainingFigures | None:
        """Return what the steps of the outermost loop are like; None outside of one, or without a model."""
        loader, models = self._outer_loader, self._steps.models
        if loader is None or not models:
            return None
        model, batch = models[0], loader.choice
        statistics, prediction = model.noise.statistics(), self.measurements.prediction(batch)
        return TrainingFigures(
            batch_size=batch.global_batch_size,
            local_batch_size=batch.atomic_batch_size,
            accumulation_steps=batch.accumulation_steps,
            num_gpus=self.world_size,
            num_nodes=self.environment.num_nodes,
            goodput=None if prediction is None else prediction.throughput * prediction.efficiency,
            efficiency=None if prediction is None else prediction.efficiency,
            gain=model.gain,
            lr_factor=model.last_factor,
            noise_scale=None
            if statistics is None or statistics.sqr <= 0
            else noise_scale(statistics, loader.batch_size),
            progress=self.progress + (model.last_gain if self._steps.is_open else 0.0),
        )

    @property
    def epoch_key(self) -> int:
        """The epoch that positions and orders belong to; −1 outside of `remaining_epochs_until`."""
        return -1 if self.progress_state.epoch is None else self.progress_state.epoch

    def place(self) -> str:
        """Return how far training is, as text for the job's log. Any thread may call it."""
        epoch, loader = self.progress_state.epoch, self._outer_loader
        if epoch is None:
            number = self.progress_state.finished_epochs
            return f"after {number} epoch{'' if number == 1 else 's'}"
        return f"in epoch {epoch}" + ("" if loader is None else f" at example {loader.num_examples_done}")

    @property
    def current_loader(self) -> Loader | None:
        """The loader of the outermost loop under way."""
        return self._loops[0] if self._loops else None

    @property
    def is_in_loop(self) -> bool:
        """True while a loop over an adaptive loader runs."""
        return bool(self._loops)

    @property
    def is_padding(self) -> bool:
        """True while the innermost loop yields padding."""
        return bool(self._loops) and self._loops[-1].is_padding

    @property
    def has_open_step(self) -> bool:
        """True between an optimizer's step and the boundary after it."""
        return self._steps.is_open

    def is_wrapped(self, optimizer: Optimizer) -> bool:
        """True for an optimizer that was given to a wrapped model."""
        return self._steps.is_wrapped(optimizer)

    def stamp(self) -> Timestamp | None:
        """Return a timestamp of the training device, in a step that is timed; else None."""
        return self.measurements.clock.stamp()

    def next_default_name(self, kind: str) -> str:
        """Return a name for the next unnamed object of its kind: the same in every run of one script."""
        return self._names.next(kind, self.epoch_key)

    def register(self, state: Checkpointable, *, is_rank_0s: bool = False) -> None:
        """Add a state to the checkpoints, and restore it. `is_rank_0s`: it may differ on others."""
        self.checkpointer.register(
            state,
            is_rank_0s=is_rank_0s,
            is_temporary=is_of_epoch(state.name),
            saved_as=saved_name(state.name, self.checkpointer.unrestored, self.epoch_key),
        )

    def add_model(self, model: WrappedModel) -> None:
        """Add a model that steps with the loaders' batches, and restore it."""
        self.checkpointer.register(model)
        self._optimizer_check.add(model)
        self._steps.add(model)
        self.regrouping.replay.add_model()

    # ----------------------------------------------------------------------------------------------- epochs

    def declare_epochs(self, num_epochs: int) -> None:
        """Set how many epochs there will be."""
        self.regrouping.join_training()
        self.progress_state.total_epochs = num_epochs
        self.measurements.report_progress()

    def begin_epoch(self) -> None:
        """Begin or resume the first epoch that is not finished."""
        self._end_loops("an epoch began")
        self.progress_state.epoch = self.progress_state.finished_epochs
        self._epoch_end.begin_epoch()
        self.regrouping.replay.begin_epoch()
        self._steps.finish_restore()
        if self.checkpointer.is_enabled:
            self.stop.install()

    def end_epoch(self) -> None:
        """Count the epoch as finished: a start from a later checkpoint repeats none of it."""
        self._unstepped_loops.check()
        self._resume_notes.end()
        self._end_loops(f"epoch {self.progress_state.epoch} ended")
        # A request that has waited for this moment is not answered with an older copy of the states.
        self.boundary.release()
        self.same_calls.begin_epoch_end()
        self._epoch_end.end_epoch()
        self.progress_state.finished_epochs += 1
        self.progress_state.epoch = None
        for name in [name for name in self.checkpointer.unrestored if is_of_epoch(name)]:
            # A state that this epoch has not restored belongs to an earlier one.
            self.checkpointer.forget(name)
        self._steps.is_dirty = True
        self.measurements.report_progress()
        is_last = self.progress_state.finished_epochs == self.progress_state.total_epochs
        self.boundary.cross((), proposal=None, wait=True, is_last=is_last, regroups_at=RegroupPlace.EPOCH_END)

    def finish(self) -> None:
        """Write the last checkpoint, report the end, and restore SIGTERM's handler: no epoch is left."""
        # Also where none was left at this start: the script may write the weights from here on.
        self._steps.finish_restore()
        self._check_steps()
        self._epoch_end.end_epoch()
        self._end_training()
        # In training by steps an epoch may be under way, and goes on where training does.
        self.progress_state.epoch = None
        self.regrouping.replay.end_epochs()
        if self.stop.is_set:
            # SIGTERM came after the last boundary.
            self.stop.raise_stopped()

    def _end_training(self) -> None:
        self.regrouping.note_step()
        if self._steps.is_dirty and self.checkpointer.is_enabled:
            self.boundary.checkpoint()
            self._steps.is_dirty = False
        self.stop.remove()
        self.measurements.report_finished()

    def leave_epochs(self, *, by_break: bool) -> None:
        """Leave the epochs before their end: by `break` on all ranks, or by an error on some."""
        self._epoch_end.end_epoch()
        if by_break:
            self._end_loops("the epochs were left")
            self.leave_together("the epochs")
            self.regrouping.replay.end_epochs()
            try:
                self._end_training()
            except (PolluxError, RuntimeError) as error:
                # Python ignores what is raised while a generator is closed.
                _LOG.error("no checkpoint was written after the epochs: %s", error)
            self.regrouping.replay.skip()
            self.stop.end_training()
        else:
            # Other ranks may train on, so no collective is possible.
            self.stop.leave_training()

    # ------------------------------------------------------------------------------------- loops and steps

    def _end_loops(self, event: str) -> None:
        """End loops that are still under way: positions belong to epochs."""
        for loader in self._loops[::-1]:
            loader.end_iteration(
                f"{event} while an iterator over {loader!r} was kept, which ended with it: make another one "
                "with iter(loader) in each epoch"
            )

    def end_previous_loop(self, loader: Loader) -> None:
        """End a loop over `loader` that is still under way: another one begins."""
        if loader in self._loops:
            loader.end_iteration(
                f"another loop over {loader!r} was begun, which ended this one: two cannot run at once"
            )

    @contextlib.contextmanager
    def loop(self, loader: Loader) -> Iterator[None]:
        """Enter a loop over `loader`, and leave it with the block.

        The outermost loop drives the models' steps and the boundaries. One inside of it (an evaluation) only
        yields batches.
        """
        is_outer = not self._loops
        self._loops.append(loader)
        try:
            if is_outer:
                self._outer_loader = loader
                self._num_steps_before_loop = self.progress_state.num_steps
                self._watch.forget()
                had_point, self._had_checkpoint_point = self._had_checkpoint_point, False
                self._unstepped_loops.check()
                self._steps.finish_restore()
                self.regrouping.replay.begin_loop()
                self._steps.begin_loop(loader, had_point=had_point)
                self.regrouping.replay.begin_step()
                self._epoch_end.begin_loop(loader)
            yield
        finally:
            self._loops.remove(loader)
            if is_outer:
                self._outer_loader = None
                self.regrouping.note_step()
                self._epoch_end.end_loop()
                self._steps.leave_loop()
                has_stepped = self.progress_state.num_steps > self._num_steps_before_loop
                self.regrouping.replay.end_loop(has_stepped=has_stepped)
            elif len(self._loops) == 1:
                self._steps.refuse(None)

    def splits_to_measure(self, loader: Loader) -> bool:
        """Return, as each step is planned, whether it is split to measure gradient noise."""
        return self._outer_loader is loader and self._steps.splits_to_measure(loader)

    def begin_micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        """Give the models the plan of the coming micro-batch."""
        if self._outer_loader is loader:
            self._steps.begin_micro_batch(loader, plan)
        else:
            # This batch belongs to no step: its gradients would go into the outer loop's.
            outer = "another loader" if self._outer_loader is None else self._outer_loader
            self._steps.refuse(_INNER.format(inner=loader, outer=outer))

    def end_micro_batch(self, loader: Loader) -> None:
        """Take the time of a micro-batch's end."""
        if self._outer_loader is loader:
            self._steps.end_micro_batch()

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        """End a global batch; return the batch choice that all ranks use from now on, None: as before."""
        if self._outer_loader is not loader:
            return None
        if len(self._loops) > 1:
            # No moment is between the steps of both, so no checkpoint would be possible.
            raise UsageError(
                "two AdaptiveDataLoaders advance together (zip, or an iterator over one is kept in a "
                "variable): combine their datasets into one, or make one of them an ordinary DataLoader"
            )
        run_number = self.run_number
        self.regrouping.replay.end_step(
            kind=(loader.name_across_epochs, len(step.micro_batches)), is_typical=step.is_full
        )
        chosen = self._steps.end_step(loader, step)
        if self.run_number != run_number:
            # As those do that have joined, and come to this loop now.
            self._steps.begin_loop(loader, had_point=False)
            self._steps.is_dirty = True
        else:
            self.regrouping.note_step()
        self.regrouping.replay.begin_step()
        return chosen

    def pause(self) -> None:
        """Allow a checkpoint here, and while the code that follows runs, between two steps of a loop.

        For a framework that owns the loop, such as before a validation within it.
        """
        if self._outer_loader is not None:
            self._steps.pause()

    def end_pause(self, loader: Loader) -> BatchChoice | None:
        """Go on after `pause`, if there was one; return the batch choice that all ranks use from now on."""
        if self._outer_loader is not loader or not self._steps.is_paused:
            return None
        had_point, self._had_checkpoint_point = self._had_checkpoint_point, False
        return self._steps.end_pause(had_point=had_point)

    def end_loop(self, loader: Loader) -> None:
        """End the outermost loop at the end of its data."""
        if self._outer_loader is loader:
            self._unstepped_loops.check()
            self._epoch_end.end_loop()
            self._steps.end_loop()

    def note_resumed_loop(self, loader: Loader, *, start: int | None, length: int | None) -> None:
        """Note where a loop goes on after a restart; `start` None: it had ended before."""
        self._resume_notes.loop(loader.name, start=start, length=length)

    def _check_steps(self) -> None:
        """Report a training without one step of a wrapped optimizer, here or in an earlier run."""
        if self.progress_state.num_steps == 0:
            self._unstepped_loops.check_end(has_gradients=self._steps.has_gradients)

    def _script_failed(self, error: BaseException) -> bool:
        """Take note of the error that ends the script; return whether its traceback is to be printed."""
        is_lost = is_peer_lost(error)
        # The others have stopped, or a start with smaller batches repairs it: this process was stopped, too.
        self._has_failed = not (self.stop.is_set and (is_lost or is_out_of_memory(error)))
        self.stop.ends_unfinished |= not self._has_failed
        self.regrouping.note_failure(error)
        self.note_failure(error)
        if not self._has_failed:
            return not is_lost
        return note_failure(error, self.checkpoint_dir, self.environment, run_number=self.run_number)

    def _after_traceback(self, error: BaseException) -> None:
        """Explain the error after its traceback, within the resumed epoch (outside of epochs: to a step)."""
        if is_peer_lost(error) and self.world_size > 1:
            explain_loss(self.environment)
            return
        epoch = self.current_epoch
        if epoch is not None or self.progress_state.num_steps == self._resumed_at:
            self._resume_notes.explain(error, epoch=epoch)

    def note_error_in_loop(self, loader: Loader) -> None:
        """Keep the local batch under way in a loop that an error leaves."""
        self._watch.leave()
        self.stop.ends_unfinished |= self.stop.is_set

    def leave_together(self, what: str, *, of_loop: bool = False) -> None:
        """Leave a loop, or the epochs, by `break`; end this process where another rank goes on with it.

        A loop without a step yet may be left by one rank alone: it has looked at some batches.
        """
        if of_loop and self.progress_state.num_steps == self._num_steps_before_loop:
            return
        try:
            self.same_calls.leave(what)
        except TrainingError as error:
            # Python ignores what is raised while a generator is closed.
            note_failure(error, self.checkpoint_dir, self.environment, run_number=self.run_number)
            _LOG.error("%s", error)
            sys.stdout.flush()
            os._exit(1)

    def _under_way(self) -> tuple[str, int] | None:
        """Return the innermost loader and the size of its current micro-batch; None between batches."""
        is_in_batch = bool(self._loops) and not self._steps.is_paused
        size = self._loops[-1].current_micro_batch_size if is_in_batch else None
        return None if size is None else (self._loops[-1].name_across_epochs, size)

    def checkpoint_point(self) -> None:
        """Cross a boundary between two loops, or in a pause, where long-running code calls for it."""
        if not self._loops or (self._steps.is_paused and not self._steps.has_gradients):
            self._watch.forget()
            self._had_checkpoint_point = True
            self.regrouping.replay.note("its script calls checkpoint_point() in this epoch")
            self.boundary.cross((), proposal=None, wait=False)

    def note_failure(self, error: BaseException) -> None:
        """Record, for the job's next start, a local batch that did not fit into memory."""
        self._watch.note(error)

    def leave(self) -> None:
        """Close the session at the end of the process."""
        self.close()
        if self.stop.ends_unfinished and not self._has_failed:
            end_as_stopped()
        # The interpreter's last garbage collection visits all that torch has imported. It takes up to a
        # second for each rank, while Slurm waits to start the job again. The kernel frees the memory anyway.
        gc.freeze()

    def close(self) -> None:
        """Wait for a checkpoint under way, send the last report for a bounded time, leave the group."""
        atexit.unregister(self.leave)
        if not (self._has_failed or self.regrouping.has_left or self.stop.is_set or self.is_closed):
            with contextlib.suppress(TrainingError):
                self._check_steps()
        # Before modules go: iterators in global variables outlive them.
        with contextlib.suppress(PolluxError):
            self._end_loops("the session ended")
        self.is_closed = True
        self.same_calls.close()
        self.stop.remove()
        self._uncaught_errors.remove()
        self._unstepped_loops.remove()
        self._optimizer_check.remove()
        self.boundary.release()
        self.checkpointer.wait()
        self.measurements.close(timeout_s=_CLOSE_TIMEOUT_S)
        self.regrouping.close(timeout_s=_CLOSE_TIMEOUT_S)
        self.side_channel.close(timeout_s=_LAST_EXCHANGE_TIMEOUT_S)
        wait_for_gloo(timeout_s=_CLOSE_TIMEOUT_S)
        if self._owns_group and dist.is_initialized():
            self.leave_run()
