"""The session of one training process: it ties the parts together that make its training adaptive."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.optim import Optimizer

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.launch.environment import JobEnvironment
from pollux_slurm.errors import PolluxError, TrainingError, UsageError
from pollux_slurm.model import BatchChoice
from pollux_slurm.torch.boundary.epoch_end_wait import EpochEnd
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.boundary.step_boundary import Agreement, Boundary
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointable, Checkpointer, read_checkpoint
from pollux_slurm.torch.checkpoint.default_names import Names, is_of_epoch, saved_name
from pollux_slurm.torch.checkpoint.progress import ProgressState
from pollux_slurm.torch.coordination.faults import Faults
from pollux_slurm.torch.coordination.gloo_shutdown import wait_for_gloo
from pollux_slurm.torch.coordination.side_channel import Control
from pollux_slurm.torch.data.micro_batches import PassPlan, StepPlan
from pollux_slurm.torch.measurement.timestamps import Instant
from pollux_slurm.torch.session.joining import claim, control_group, job_name, join_group, memory_bounds
from pollux_slurm.torch.session.loader import Loader
from pollux_slurm.torch.session.measuring import Measuring
from pollux_slurm.torch.session.memory_bounds import OutOfMemoryWatch
from pollux_slurm.torch.session.resume_notes import TakenUp
from pollux_slurm.torch.session.steps import Steps
from pollux_slurm.torch.session.uncaught_errors import Uncaught
from pollux_slurm.torch.session.unstepped_loops import ForeignSteps
from pollux_slurm.torch.wrapped_model.unwrapped_optimizers import Strays

if TYPE_CHECKING:
    from pollux_slurm.torch.wrapped_model.adaptation import Adaptation

_LOG = logging.getLogger(__name__)
# Longer than a fit on a busy machine: a thread in the middle of one must not meet the interpreter's end.
_CLOSE_TIMEOUT_S = 10.0
_LAST_EXCHANGE_S = 1.0
_INNER = (
    "a backward pass over the batches of {inner!r} within a loop over {outer!r}: only the outermost loop "
    "can train. If that one is an iterator held in a variable, let it go before (`del`); else make one of "
    "the two an ordinary DataLoader"
)


class Session:
    """One process's part in one run of a job."""

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        backend: str | None,
        checkpoint_dir: Path | None,
        pace: CheckpointInterval | None,
        epoch_end_wait_s: float,
        max_wait_s: float,
        strict: bool,
    ) -> None:
        self.rank, self.world_size = environment.rank, environment.world_size
        self._environment = environment
        self._owns_group = join_group(environment, backend)
        group = control_group(environment)
        self.control: Control[Agreement] = Control(rank=self.rank, world_size=self.world_size, group=group)

        started = time.perf_counter()
        lineage, run_number, resume_path = claim(self.control, environment, checkpoint_dir)
        loaded = {} if resume_path is None else read_checkpoint(resume_path)
        restore_s = None if resume_path is None else time.perf_counter() - started
        if lineage is not None and lineage.claim.resumed_from is not None:
            _LOG.info(
                "%s goes on from the checkpoint of its run %d, with %d replicas",
                *(job_name(environment), lineage.claim.resumed_from.run_number, self.world_size),
            )
        self.run_number, self.is_resumed = run_number, resume_path is not None
        self.memory = memory_bounds(self.control, checkpoint_dir)
        self._watch = OutOfMemoryWatch(
            self.memory,
            directory=checkpoint_dir,
            run_number=run_number,
            rank=self.rank,
            under_way=self._under_way,
        )

        self._names = Names()
        self._loops: list[Loader] = []
        # Of the outermost loop, which makes the models' steps; None once it is over.
        self._driver: Loader | None = None
        self._progress = ProgressState()
        self._has_pointed = self.is_closed = False
        self._measuring = Measuring(
            environment, run_number=run_number, restore_s=restore_s, progress=self._progress, where=self.place
        )
        self.faults = Faults(strict=strict, rank=self.rank, report_builder=self._measuring.report_builder)
        self._stop = StopFlag()
        checkpointer = Checkpointer(
            control=self.control, lineage=lineage, is_kept=checkpoint_dir is not None, loaded=loaded
        )
        self._checkpointer = checkpointer
        self._epoch_end = EpochEnd(wait_s=epoch_end_wait_s)
        self._boundary = Boundary(
            control=self.control,
            checkpointer=checkpointer,
            stop=self._stop,
            reporter=self._measuring.reporter,
            report_builder=self._measuring.report_builder,
            pace=pace,
            epoch_end=self._epoch_end,
            max_wait_s=max_wait_s,
        )
        self._steps = Steps(
            control=self.control,
            boundary=self._boundary,
            measuring=self._measuring,
            memory=self.memory,
            progress=self._progress,
        )
        self._foreign = ForeignSteps(self.faults, is_own=self.is_own, is_in_loop=lambda: self.is_in_loop)
        checkpointer.register(self._progress)
        checkpointer.register(self.memory)
        checkpointer.register(self._measuring.state)
        self._taken_up, self._resumed_at = TakenUp(is_resumed=self.is_resumed), self._progress.num_steps
        self._uncaught, self._has_died = Uncaught(before=self._die, after=self._explain), False
        self._uncaught.install()
        if checkpointer.is_kept:
            self._stop.install()
        self._strays = Strays()
        self._measuring.start()

    # ------------------------------------------------------------------------------------ what others ask

    @property
    def strict(self) -> bool:
        """Whether a fault of the training raises; told of by `faults.tell` either way."""
        return self.faults.strict

    @property
    def current_epoch(self) -> int | None:
        return self._progress.epoch

    @property
    def finished_epochs(self) -> int:
        return self._progress.finished_epochs

    @property
    def progress(self) -> float:
        """How far training has come, in scale-invariant iterations, earlier runs included."""
        return self._progress.progress

    @property
    def epoch_key(self) -> int:
        """The epoch that positions and orders belong to; −1 outside of `remaining_epochs_until`."""
        return -1 if self._progress.epoch is None else self._progress.epoch

    def place(self) -> str:
        """Say how far training is, for the job's log; from any thread."""
        epoch, loader = self._progress.epoch, self._driver
        if epoch is None:
            number = self._progress.finished_epochs
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
        """True while the innermost loop passes over a stand-in."""
        return bool(self._loops) and self._loops[-1].is_padding

    @property
    def has_open_step(self) -> bool:
        """True between an optimizer's step and the boundary after it."""
        return self._steps.is_open

    def is_own(self, optimizer: Optimizer) -> bool:
        """True for an optimizer that was given to a wrapped model."""
        return self._steps.is_own(optimizer)

    def stamp(self) -> Instant | None:
        """Return this moment of the training device, in a step whose time is taken."""
        return self._measuring.clock.stamp()

    def next_name(self, kind: str) -> str:
        """Return a name for the next unnamed object of its kind: the same in every run of one script."""
        return self._names.next(kind, self.epoch_key)

    def register(self, state: Checkpointable) -> None:
        """Add a state to the checkpoints, and restore it."""
        self._checkpointer.register(
            state,
            is_passing=is_of_epoch(state.name),
            saved_as=saved_name(state.name, self._checkpointer.unclaimed, self.epoch_key),
        )

    def add_model(self, model: Adaptation) -> None:
        """Add a model that steps with the loaders' batches, and restore it."""
        self._checkpointer.register(model)
        self._strays.add(model)
        self._steps.add(model)

    # ----------------------------------------------------------------------------------------------- epochs

    def declare_epochs(self, num_epochs: int) -> None:
        """Tell how many epochs there will be."""
        self._progress.total_epochs = num_epochs
        self._measuring.tell_progress()

    def begin_epoch(self) -> None:
        """Begin, or take up again, the first epoch that is not finished."""
        self._end_loops("an epoch began")
        self._progress.epoch = self._progress.finished_epochs
        self._epoch_end.begin_epoch()
        self._steps.take_up()
        if self._checkpointer.is_kept:
            self._stop.install()

    def end_epoch(self) -> None:
        """Count the epoch as finished: from here on a checkpoint does not repeat any of it."""
        self._foreign.check()
        self._taken_up.end()
        self._end_loops(f"epoch {self._progress.epoch} ended")
        # A request that has waited for this moment is not to be answered with what was before.
        self._boundary.release()
        self._epoch_end.end_epoch()
        self._progress.finished_epochs += 1
        self._progress.epoch = None
        for name in [name for name in self._checkpointer.unclaimed if is_of_epoch(name)]:
            # What this epoch has not asked for belongs to an earlier one.
            self._checkpointer.forget(name)
        self._steps.is_dirty = True
        self._measuring.tell_progress()
        is_last = self._progress.finished_epochs == self._progress.total_epochs
        self._boundary.cross((), proposal=None, wait=True, is_last=is_last)

    def finish(self) -> None:
        """Write the checkpoint after which no epoch is left, and say so. SIGTERM ends the script again."""
        self._check_steps()
        self._end_training()
        if self._stop.is_set:
            # It came after the last boundary.
            self._stop.heed()

    def _end_training(self) -> None:
        if self._steps.is_dirty and self._checkpointer.is_kept:
            self._boundary.checkpoint()
            self._steps.is_dirty = False
        self._stop.remove()
        self._measuring.tell_end()

    def leave_epochs(self, *, by_break: bool) -> None:
        """The script leaves its epochs before their end: by `break` on all ranks, or by an error on some."""
        self._epoch_end.end_epoch()
        if by_break:
            self._end_loops("the epochs were left")
            try:
                self._end_training()
            except (PolluxError, RuntimeError) as error:
                # Raised where a generator is let go of, it would be lost.
                _LOG.error("no checkpoint was written after the epochs: %s", error)
        # Else others may train on, and nothing can be done that takes all. SIGTERM ends what comes now.
        self._stop.pass_on()

    # ------------------------------------------------------------------------------------- loops and steps

    def _end_loops(self, event: str) -> None:
        """Leave what loops are still under way: positions belong to epochs."""
        for loader in self._loops[::-1]:
            loader.let_go(
                f"{event} while an iterator over {loader!r} was held, which ended with it: make another one "
                "with iter(loader) in each epoch"
            )

    def make_way(self, loader: Loader) -> None:
        """Leave a loop over `loader` that is still under way: another one begins."""
        if loader in self._loops:
            loader.let_go(
                f"another loop over {loader!r} was begun, which ended this one: two cannot run at once"
            )

    @contextlib.contextmanager
    def loop(self, loader: Loader) -> Iterator[None]:
        """Hold while a loop over `loader` runs.

        The outermost loop drives the models' steps and the boundaries; one inside of it (an evaluation now
        and then) only hands out batches.
        """
        is_outer = not self._loops
        self._loops.append(loader)
        try:
            if is_outer:
                self._driver = loader
                self._watch.forget()
                is_awaited, self._has_pointed = self._has_pointed, False
                self._foreign.check()
                self._steps.take_up()
                self._steps.begin_loop(loader, is_awaited=is_awaited)
                self._epoch_end.begin_loop(loader)
            yield
        finally:
            self._loops.remove(loader)
            if is_outer:
                self._driver = None
                self._epoch_end.end_loop()
                self._steps.leave_loop()
            elif len(self._loops) == 1:
                self._steps.refuse(None)

    def begin_pass(self, loader: Loader, plan: PassPlan) -> None:
        """Tell the models what the coming pass is."""
        if self._driver is loader:
            self._steps.begin_pass(loader, plan)
        else:
            # What is handed out now belongs to no step: its gradients would go into that of the outer loop.
            self._steps.refuse(_INNER.format(inner=loader, outer=self._driver or "another loader"))

    def end_pass(self, loader: Loader) -> None:
        """Stamp the end of a pass."""
        if self._driver is loader:
            self._steps.end_pass()

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        """Close a global batch; return the batch that all ranks agreed to use from now on, if another."""
        if self._driver is not loader:
            return None
        if len(self._loops) > 1:
            # No moment would be between the steps of both: nothing could be checkpointed, ever.
            raise UsageError(
                "two AdaptiveDataLoaders advance together (zip, or an iterator over one is held in a "
                "variable): combine their datasets into one, or make one of them an ordinary DataLoader"
            )
        return self._steps.end_step(loader, step)

    def end_loop(self, loader: Loader) -> None:
        """A loop has come to its end."""
        if self._driver is loader:
            self._foreign.check()
            self._epoch_end.end_loop()
            self._steps.end_loop()

    def takes_up(self, loader: Loader, *, start: int | None, length: int | None) -> None:
        """Remember where a loop goes on after a restart; `start` None: it had ended before."""
        self._taken_up.loop(loader.name, start=start, length=length)

    def _check_steps(self) -> None:
        """Tell of a training none of whose steps is known, here or in an earlier run."""
        if self._progress.num_steps == 0:
            self._foreign.check_end(has_gradients=self._steps.has_gradients)

    def _die(self, error: BaseException) -> None:
        """An error ends the script."""
        self._has_died = True
        self.note_failure(error)

    def _explain(self, error: BaseException) -> None:
        """Say what an error may come of, until the epoch that was taken up ends (without one: to a step)."""
        epoch = self.current_epoch
        if epoch is not None or self._progress.num_steps == self._resumed_at:
            self._taken_up.explain(error, epoch=epoch)

    def failed_in(self, loader: Loader) -> None:
        """Remember what was under way in a loop that an error leaves."""
        self._watch.leave()

    def _under_way(self) -> tuple[str, int] | None:
        """Return the innermost loader and its local batch under way; None between batches."""
        size = self._loops[-1].size_under_way if self._loops else None
        return None if size is None else (self._loops[-1].memory_name, size)

    def checkpoint_point(self) -> None:
        """Let the ranks agree between two loops, where code that takes long asks for it."""
        if not self._loops:
            self._watch.forget()
            self._has_pointed = True
            self._boundary.cross((), proposal=None, wait=False)

    def note_failure(self, error: BaseException) -> None:
        """Remember, for the job's next start, a local batch that did not fit into memory."""
        self._watch.note(error)

    def leave(self) -> None:
        """End with the process."""
        self.close()
        # The interpreter's last garbage collection walks over all that torch has imported: a second of a busy
        # machine for each rank, while Slurm waits to start the job anew. The kernel frees it anyway.
        gc.freeze()

    def close(self) -> None:
        """Wait for a checkpoint under way; send what is left to say, for a bounded time; leave the group."""
        atexit.unregister(self.leave)
        if not (self._has_died or self._stop.is_set or self.is_closed):
            with contextlib.suppress(TrainingError):
                self._check_steps()
        # While there is something to leave them to: iterators in global variables outlive all modules.
        with contextlib.suppress(PolluxError):
            self._end_loops("the session ended")
        self.is_closed = True
        self._stop.remove()
        self._uncaught.remove()
        self._foreign.remove()
        self._strays.remove()
        self._boundary.release()
        self._checkpointer.wait()
        self._measuring.close(timeout_s=_CLOSE_TIMEOUT_S)
        self.control.close(timeout_s=_LAST_EXCHANGE_S)
        wait_for_gloo(timeout_s=_CLOSE_TIMEOUT_S)
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()
