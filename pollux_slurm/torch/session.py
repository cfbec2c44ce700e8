"""The session of one training process: made by `init_process_group`, it ties the parts together."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

from pollux_slurm.agent.environment import JobEnvironment, process_age_s, read_environment
from pollux_slurm.agent.pacing import CheckpointPace
from pollux_slurm.agent.profile import Situation, StepProfile
from pollux_slurm.agent.reporter import Reporter
from pollux_slurm.agent.telemetry import Progress, Telemetry
from pollux_slurm.agent.tuning import Training, Tuner
from pollux_slurm.errors import UsageError
from pollux_slurm.model import BatchChoice, Configuration
from pollux_slurm.store.contract import RunPhase
from pollux_slurm.torch.batching import PassPlan, StepPlan
from pollux_slurm.torch.boundary import Agreement, Boundary
from pollux_slurm.torch.checkpoint import Checkpointable, Checkpointer, read_checkpoint
from pollux_slurm.torch.control import Control
from pollux_slurm.torch.current import has_session, set_session
from pollux_slurm.torch.joining import claim, join_group, make_reporter, memory_bounds, pace_of
from pollux_slurm.torch.memory import OutOfMemoryWatch
from pollux_slurm.torch.naming import Names, is_of_epoch, saved_name
from pollux_slurm.torch.progress import MeasuredState, ProgressState
from pollux_slurm.torch.quiet import wait_for_gloo
from pollux_slurm.torch.stepclock import StepClock
from pollux_slurm.torch.stopping import StopFlag
from pollux_slurm.torch.timing import cuda_instant, host_instant

if TYPE_CHECKING:
    from pollux_slurm.torch.data import AdaptiveDataLoader
    from pollux_slurm.torch.parallel import Adaptation

# Longer than a fit on a busy machine: a thread in the middle of one must not meet the interpreter's end.
_CLOSE_TIMEOUT_S = 10.0
_LAST_EXCHANGE_S = 1.0


def init_process_group(
    backend: str | None = None,
    *,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_interval_s: float | Literal["auto"] | None = "auto",
    max_wait_s: float = 600.0,
    node_mtbf_s: float = 7 * 86400.0,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Join the job's other replicas and take up the training where its last checkpoint left it.

    `backend` is NCCL on GPUs and gloo elsewhere; the process's own GPU becomes the current one.

    Checkpoints go to `checkpoint_dir`, else to where `pollux run` said; without either none are written. One
    is written at the first step boundary after each `checkpoint_interval_s` (None: only on request, on
    SIGTERM and at the end; "auto": as often as loses least time, given what one costs and that a node fails
    every `node_mtbf_s`), and training goes on by itself `max_wait_s` after a requested one if nobody stops
    the job.

    Everything the job was told comes from `environ` (the process's environment unless given).
    """
    if has_session():
        raise UsageError("init_process_group was called already in this process")
    environment = read_environment(os.environ if environ is None else environ)
    session = Session(
        environment,
        backend=backend,
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir is not None else environment.checkpoint_dir,
        pace=pace_of(checkpoint_interval_s, node_mtbf_s / environment.num_nodes),
        max_wait_s=max_wait_s,
    )
    set_session(session)
    atexit.register(_leave, session)


class Session:
    """One process's part in one run of a job."""

    def __init__(
        self,
        environment: JobEnvironment,
        *,
        backend: str | None,
        checkpoint_dir: Path | None,
        pace: CheckpointPace | None,
        max_wait_s: float,
    ) -> None:
        self.rank, self.world_size = environment.rank, environment.world_size
        self._environment = environment
        self._owns_group = join_group(environment, backend)
        group = dist.new_group(backend="gloo") if self.world_size > 1 else None
        self.control: Control[Agreement] = Control(rank=self.rank, world_size=self.world_size, group=group)
        self._on_gpu = torch.cuda.is_available() and dist.get_backend() == "nccl"

        started = time.perf_counter()
        lineage, run_number, resume_path = claim(self.control, environment, checkpoint_dir)
        loaded = {} if resume_path is None else read_checkpoint(resume_path)
        restore_s = None if resume_path is None else time.perf_counter() - started
        self.run_number, self.is_resumed = run_number, resume_path is not None
        self.memory = memory_bounds(self.control, checkpoint_dir)
        self._watch = OutOfMemoryWatch(
            self.memory, directory=checkpoint_dir, run_number=run_number, rank=self.rank
        )

        self._names = Names()
        self._models: list[Adaptation] = []
        self._loops: list[AdaptiveDataLoader] = []
        self._progress = ProgressState()
        self._clock = StepClock(cuda_instant if self._on_gpu else host_instant)
        self._is_dirty = False

        self._gpu_type = torch.cuda.get_device_name() if self._on_gpu else None
        self._profile = StepProfile()
        self._tuner = Tuner(
            Configuration(num_nodes=environment.num_nodes, num_gpus=self.world_size),
            self._profile,
            gpu_type=self._gpu_type,
            equation=environment.config.agent.throughput_equation,
        )
        self._telemetry: Telemetry | None = None
        self._reporter: Reporter | None = None
        if self.rank == 0:
            self._telemetry = Telemetry(
                run_number=run_number,
                restart_count=environment.restart_count,
                gpus_per_node=environment.gpus_per_node,
                tuner=self._tuner,
                restore_s=restore_s,
            )
            self._reporter = make_reporter(environment, self._telemetry, run_number)
        self._stop = StopFlag()
        checkpointer = Checkpointer(
            control=self.control, lineage=lineage, is_kept=checkpoint_dir is not None, loaded=loaded
        )
        self._checkpointer = checkpointer
        self._boundary = Boundary(
            control=self.control,
            checkpointer=checkpointer,
            stop=self._stop,
            reporter=self._reporter,
            telemetry=self._telemetry,
            pace=pace,
            max_wait_s=max_wait_s,
        )
        checkpointer.register(self._progress)
        checkpointer.register(self.memory)
        checkpointer.register(MeasuredState(self._profile, self._tuner))
        self._tell_progress()
        if checkpointer.is_kept:
            self._stop.install()
            self._watch.install()
        if self._reporter is not None:
            self._reporter.start()

    # ------------------------------------------------------------------------------------ what others ask

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

    @property
    def current_loader(self) -> AdaptiveDataLoader | None:
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
        return any(model.has_stepped for model in self._models)

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
        self._models.append(model)

    # ----------------------------------------------------------------------------------------------- epochs

    def declare_epochs(self, num_epochs: int) -> None:
        """Tell how many epochs there will be."""
        self._progress.total_epochs = num_epochs
        self._tell_progress()

    def begin_epoch(self) -> None:
        """Begin, or take up again, the first epoch that is not finished."""
        self._progress.epoch = self._progress.finished_epochs
        if self._checkpointer.is_kept:
            self._stop.install()

    def end_epoch(self) -> None:
        """Count the epoch as finished: from here on a checkpoint does not repeat any of it."""
        self._progress.finished_epochs += 1
        self._progress.epoch = None
        for name in [name for name in self._checkpointer.unclaimed if is_of_epoch(name)]:
            # What this epoch has not asked for belongs to an earlier one.
            self._checkpointer.forget(name)
        self._is_dirty = True
        self._tell_progress()
        self._boundary.cross((), proposal=None, wait=True)

    def finish(self) -> None:
        """Write the checkpoint after which no epoch is left, and say so. SIGTERM ends the script again."""
        if self._is_dirty and self._checkpointer.is_kept:
            self._boundary.checkpoint()
            self._is_dirty = False
        self._stop.remove()
        if self._telemetry is not None and self._reporter is not None:
            self._telemetry.set_phase(RunPhase.FINISHED)
            self._reporter.report_soon()

    # ------------------------------------------------------------------------------------- loops and steps

    @contextlib.contextmanager
    def loop(self, loader: AdaptiveDataLoader) -> Iterator[None]:
        """Hold while a loop over `loader` runs.

        The outermost loop drives the models' steps and the boundaries; one inside of it (an evaluation now
        and then) only hands out batches.
        """
        if loader in self._loops:
            raise UsageError("two loops over the same AdaptiveDataLoader cannot run at once")
        is_outer = not self._loops
        self._loops.append(loader)
        try:
            if is_outer:
                if self._boundary.is_holding:
                    # A request that was answered meanwhile: not one step is trained after it.
                    self._boundary.cross((), proposal=None, wait=True)
                self._choose_batch(loader)
                self._clock.start()
            yield
        finally:
            self._loops.remove(loader)
            if is_outer:
                self._set_plan(None)
                self._clock.disturb(num_steps=1)

    def _drives(self, loader: AdaptiveDataLoader) -> bool:
        return self._loops[0] is loader

    def _choose_batch(self, loader: AdaptiveDataLoader) -> None:
        """Choose the batch size anew where it may vary: rank 0 does, for all."""
        if loader.limits.max_batch_size is None or not self._models:
            return
        choice = loader.choice
        if self.rank == 0:
            choice = self._tuner.propose(self._training(loader, self._models[0]))
        values = self.control.broadcast(
            [choice.global_batch_size, choice.atomic_batch_size, choice.accumulation_steps]
        )
        if loader.choose(
            BatchChoice(
                global_batch_size=values[0], atomic_batch_size=values[1], accumulation_steps=values[2]
            )
        ):
            self._clock.disturb()

    def begin_pass(self, loader: AdaptiveDataLoader, plan: PassPlan) -> None:
        """Tell the models what the coming pass is."""
        if not self._drives(loader):
            return
        self._clock.batch_ready()
        if plan.index == 0:
            for model in self._models:
                model.set_batch(
                    initial_batch_size=loader.batch_size,
                    global_batch_size=loader.choice.global_batch_size,
                    progress=self._progress.progress,
                )
        self._set_plan(plan)

    def _set_plan(self, plan: PassPlan | None) -> None:
        for model in self._models:
            model.reducer.begin_pass(plan)

    def end_pass(self, loader: AdaptiveDataLoader) -> None:
        """Stamp the end of a pass."""
        if self._drives(loader):
            self._clock.pass_done()

    def end_step(self, loader: AdaptiveDataLoader, step: StepPlan) -> BatchChoice | None:
        """Close a global batch: measure, then let the ranks agree. Returns the batch agreed upon, if any."""
        if not self._drives(loader):
            return None
        if len(self._loops) > 1:
            # No moment would be between the steps of both: nothing could be checkpointed, ever.
            raise UsageError(
                "two AdaptiveDataLoaders advance together (zip?): combine their datasets into one, or make "
                "one of them an ordinary DataLoader"
            )
        stepped = [model for model in self._models if model.take_stepped()]
        if stepped:
            # The largest of all replicas, so that all know the same.
            self.memory.proved(loader.memory_name, -(-step.size // (self.world_size * len(step.passes))))
        first = stepped[0] if stepped else None
        self._clock.step_done(
            local_end=None if first is None else first.reducer.local_end,
            sync_end=None if first is None else first.reducer.sync_end,
            atomic_batch_size=loader.choice.atomic_batch_size,
            num_examples=step.size,
            is_typical=step.is_full and first is not None and not any(p.is_padding for p in step.passes),
        )
        model_steps = tuple(model.take_step(step) for model in stepped)
        proposal = None
        if first is not None:
            self._is_dirty = True
            self._progress.num_steps += 1
            self._progress.progress += first.last_gain
            proposal = self._tell_step(loader, first)
        chosen, stood_still = self._boundary.cross(model_steps, proposal=proposal, wait=False)
        if chosen is not None:
            self._clock.disturb()
            if self.memory.is_untried(loader.memory_name, chosen.atomic_batch_size) and not stood_still:
                # It may not fit into memory: whatever happens, little is lost.
                self._boundary.checkpoint_unasked()
        if stood_still:
            self._is_dirty = False
            self._clock.disturb(num_steps=1)
            self._clock.start()
        self._clock.batch_wanted()
        return chosen

    def end_loop(self, loader: AdaptiveDataLoader) -> None:
        """Let the ranks agree once more at the end of a loop, before code that may take long."""
        if self._drives(loader):
            self._boundary.cross((), proposal=None, wait=True, may_hold=True)

    def leave_loop(self, loader: AdaptiveDataLoader) -> None:
        """Remember what was under way when a loop was left: by a break, or by an error on its way up."""
        self._watch.leave(loader.memory_name, loader.size_under_way)

    def checkpoint_point(self) -> None:
        """Let the ranks agree between two loops, where code that takes long asks for it."""
        if not self._loops:
            self._boundary.cross((), proposal=None, wait=False)

    def note_failure(self, error: BaseException) -> None:
        """Remember, for the job's next start, a local batch that did not fit into memory."""
        for loader in self._loops[-1:]:
            self._watch.leave(loader.memory_name, loader.size_under_way)
        self._watch.note(error)

    def _training(self, loader: AdaptiveDataLoader, model: Adaptation) -> Training:
        return Training(
            limits=loader.limits,
            statistics=model.noise.statistics(),
            num_updates=model.noise.num_updates,
            batch=loader.choice,
        )

    def _tell_step(self, loader: AdaptiveDataLoader, model: Adaptation) -> BatchChoice | None:
        """On rank 0: record what was measured; return the batch that was proposed meanwhile."""
        if self._telemetry is None or self._reporter is None:
            return None
        for measured in self._clock.measured():
            self._profile.record(
                Situation(
                    num_nodes=self._environment.num_nodes,
                    num_gpus=self.world_size,
                    atomic_batch_size=measured.atomic_batch_size,
                    gpu_type=self._gpu_type,
                ),
                grad_time_s=measured.grad_time_s,
                iter_time_s=measured.iter_time_s,
                data_time_s=measured.data_s,
            )
            self._telemetry.measured(
                num_examples=measured.num_examples, duration_s=measured.total_s, data_s=measured.data_s
            )
        self._telemetry.step(self._training(loader, model))
        self._tell_progress()
        if self._telemetry.first_step_s is None:
            self._telemetry.first_step(process_age_s())
            self._telemetry.set_phase(RunPhase.TRAINING)
            self._reporter.report_soon()
        elif self._telemetry.phase is not RunPhase.TRAINING:
            self._telemetry.set_phase(RunPhase.TRAINING)
        return self._telemetry.take_proposal(loader.limits)

    def _tell_progress(self) -> None:
        if self._telemetry is not None:
            self._telemetry.set_progress(
                Progress(
                    num_steps=self._progress.num_steps,
                    progress=self._progress.progress,
                    epoch=self._progress.finished_epochs,
                    total_epochs=self._progress.total_epochs,
                )
            )

    def close(self) -> None:
        """Wait for a checkpoint under way; send what is left to say, for a bounded time; leave the group."""
        atexit.unregister(_leave)
        self._stop.remove()
        self._watch.remove()
        self._boundary.release()
        self._checkpointer.wait()
        if self._reporter is not None:
            self._reporter.close(timeout_s=_CLOSE_TIMEOUT_S)
        self.control.close(timeout_s=_LAST_EXCHANGE_S)
        wait_for_gloo(timeout_s=_CLOSE_TIMEOUT_S)
        if self._owns_group and dist.is_initialized():
            dist.destroy_process_group()


def _leave(session: Session) -> None:
    """End the session with the process."""
    session.close()
    # The interpreter's last garbage collection walks over all that torch has imported: a second of a busy
    # machine for each rank, while Slurm waits to start the job anew. The kernel frees it anyway.
    gc.freeze()
