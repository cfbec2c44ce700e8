"""The session of a rehearsed script: it logs events, and stops the script at the planned moment.

Everything else is the session of a job. Checkpoints go to the rehearsal's folder, not to the script's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist

from pollux_slurm.agent.exit_codes import LeftTraining
from pollux_slurm.agent.node.environment import JobEnvironment, process_age_s
from pollux_slurm.agent.node.layout import MEMBERSHIP_VARIABLE
from pollux_slurm.agent.rehearsal_protocol import (
    NO_EPOCH,
    EventLog,
    RehearsalStore,
    RunPlan,
    Stop,
    StopMethod,
    StopMoment,
)
from pollux_slurm.errors import PolluxError
from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.regroup.user_frames import is_user_code
from pollux_slurm.torch.rehearsal.loop_sums import on_each_collective, take_sums, variable_of, zeros_of
from pollux_slurm.torch.rehearsal.planned_lack_of_memory import PlannedLackOfMemory
from pollux_slurm.torch.rehearsal.planned_regroups import PlannedRegroups
from pollux_slurm.torch.rehearsal.random_draws import RandomDrawDetector
from pollux_slurm.torch.rehearsal.repetition import Repetition
from pollux_slurm.torch.rehearsal.snapshot import numbers_of, take_snapshot, take_variables
from pollux_slurm.torch.rehearsal.step_log import StepLog
from pollux_slurm.torch.rehearsal.weight_averages import WeightAverageDetector
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.session import Session
from pollux_slurm.torch.wrapped_model.patching import patch

# A request takes this long at most to reach the training thread, and a copy of the states to be written.
_MAX_WAIT_S = 60.0
_POLL_INTERVAL_S = 0.01
_STEPS_PER_BATCH = 3


class RehearsalSession(Session):
    """The session of one run (`plan`) of a rehearsal."""

    def __init__(self, plan: RunPlan, environment: JobEnvironment, **options: Any) -> None:
        self._plan, self._stop_at = plan, plan.stop
        membership = environment.membership
        generation = 0 if membership is None else membership.joins or 0
        self._events = EventLog(plan.folder, environment.rank, generation=generation)
        self._store = RehearsalStore(self._events)
        self._epoch_snapshot: int | None = None
        self._opens_loop = self._has_stepped = False
        self._num_steps = 0
        self._zeros: set[str] = set()
        self._shape_texts: set[str] = set()
        self._averages = WeightAverageDetector(self._modules)
        self._repetition = Repetition(plan, environment.rank, self._events)
        self._draws = RandomDrawDetector(self._modules, self._log_draws, self._repetition.roots)
        self._step_log = StepLog(lambda: self._steps.models, self._events)
        self._lack_of_memory = PlannedLackOfMemory(plan.folder, environment.rank, self._modules, self._events)
        self._log_errors()
        # Requests are answered where they are planned, not at the end of the epoch.
        options["epoch_end_wait_s"] = 0.0
        age_s = process_age_s()
        super().__init__(replace(environment, open_store=lambda: self._store), **options)
        self._events.write(
            "start",
            rank=self.rank,
            world_size=self.world_size,
            backend=dist.get_backend(),
            is_resumed=self.is_resumed,
            in_place=options["in_place"],
            imported_s=age_s,
            joined_s=process_age_s(),
        )
        patch(self.measurements, "propose", self._propose)
        patch(self.measurements, "record_step", self._propose_after_step)
        patch(self.checkpointer, "write", self._write)
        patch(self.checkpointer, "copy_states", self._copy_states)
        on_each_collective(lambda: self._events.write("combined"))
        # Each boundary has an exchange, so that the script stops where it is planned.
        patch(self.boundary.exchange_interval, "set_interval", lambda original, number: original(1))
        patch(self.regrouping, "refuse", self._note_obstacle)
        patch(self.faults, "log", self._note_shape)
        self._planned_regroups: PlannedRegroups | None = None
        if membership is not None:
            folder = Path(os.environ[MEMBERSHIP_VARIABLE])
            self._planned_regroups = PlannedRegroups(folder, plan.regroups, self._events)
            patch(membership, "refuse", self._note_refusal)
            patch(self.regrouping, "regroup", self._regroup)

    # ------------------------------------------------------------------------------------------- events

    def declare_epochs(self, num_epochs: int) -> None:
        super().declare_epochs(num_epochs)
        self._events.write("epochs", total=num_epochs, finished=self.finished_epochs)

    @contextlib.contextmanager
    def loop(self, loader: Loader) -> Iterator[None]:
        largest = loader.limits.max_batch_size
        if largest is not None and not self.is_in_loop:
            self._events.write("autoscale", batch_size=loader.batch_size, max_batch_size=largest)
            if not self._plan.varies_batch:
                loader.fix_batch_size()
        self._opens_loop = True
        self._repetition.begin_loop(loader, lambda: self._place_of(loader))
        if not self.is_in_loop:
            self._zeros = zeros_of(take_sums())
            self._draws.begin_loop()
        is_outermost = not self.is_in_loop
        try:
            with super().loop(loader):
                yield
        except GeneratorExit:
            if is_outermost:
                self._log_loop_end("loop_left", loader)
            raise
        finally:
            self._draws.leave()
            self._lack_of_memory.end_micro_batch()

    def _place_of(self, loader: Loader) -> list[Any]:
        return [self.epoch_key, loader.name_across_epochs, loader.loop_number]

    def _modules(self) -> list[torch.nn.Module]:
        return [model.module for model in self._steps.models]

    def _log_draws(self, who: str, generators: list[str]) -> None:
        self._events.write("drew", who=who, generators=generators)

    def begin_micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        super().begin_micro_batch(loader, plan)
        if self._outer_loader is not loader:
            return
        if not self._plan.varies_batch:
            self._draws.begin_micro_batch()
        if not plan.is_last and self.rank == 0:
            self._averages.begin_micro_batch()
        self._plan_lack_of_memory(loader, plan)
        if self._opens_loop:
            self._opens_loop = False
            self._log_loop(loader)
        if self._epoch_snapshot != self.epoch_key:
            self._epoch_snapshot = self.epoch_key
            self._log_snapshot("epoch", loader=loader.name_across_epochs, position=plan.start)
        if not plan.is_padding:
            self._events.write(
                "micro_batch",
                loader=loader.name_across_epochs,
                epoch=self.epoch_key,
                loop=loader.loop_number,
                start=plan.start,
                size=plan.size,
                global_batch_size=loader.current_batch_size,
                accumulation_steps=loader.accumulation_steps,
            )

    def _plan_lack_of_memory(self, loader: Loader, plan: MicroBatchPlan) -> None:
        stop, step = self._plan.out_of_memory, cast("Any", loader)._step
        if stop is None or self._lack_of_memory.is_done:
            return
        # One example cannot be split.
        if plan.index == 0 and plan.size > 1 and self._is_at_or_after(stop, loader, step):
            self._lack_of_memory.begin_micro_batch()

    def end_micro_batch(self, loader: Loader) -> None:
        if self._outer_loader is loader:
            self._lack_of_memory.end_micro_batch()
            self._draws.end_micro_batch()
            moved = self._averages.end_micro_batch()
            if moved:
                self._events.write("averaged", names=moved)
        super().end_micro_batch(loader)

    def _log_loop(self, loader: Loader) -> None:
        order = loader.order
        indices = None if order is None else order.indices.numpy()
        self._events.write(
            "loop",
            loader=loader.name_across_epochs,
            epoch=self.epoch_key,
            loop=loader.loop_number,
            length=None if indices is None else len(indices),
            order=None if indices is None else hashlib.sha256(indices.tobytes()).hexdigest()[:16],
            drops_last=loader.drop_last,
            batch_size=loader.batch_size,
        )

    def _log_loop_end(self, kind: str, loader: Loader) -> None:
        self._events.write(
            kind,
            loader=loader.name_across_epochs,
            epoch=self.epoch_key,
            loop=loader.loop_number,
            steps=self.progress_state.num_steps,
        )

    def _log_sums(self, loader: Loader) -> None:
        """Log the sums that the script's variables have over a loop that trains nothing."""
        if self.progress_state.num_steps == self._num_steps_before_loop:
            sums = {name: values for name, values in take_sums().items() if name in self._zeros}
            self._events.write(
                "summed",
                variable=variable_of(loader),
                loader=loader.name_across_epochs,
                epoch=self.epoch_key,
                loop=loader.loop_number,
                sums=sums,
            )

    def _log_snapshot(self, moment: str, **fields: Any) -> None:
        models = {
            model.name: numbers_of(dict(model.module.named_parameters())) for model in self._steps.models
        }
        # One with p=0 is a dropout in name alone.
        layers = sorted(
            {
                type(part).__name__
                for model in self._steps.models
                for part in model.module.modules()
                if getattr(part, "p", None) != 0
            }
        )
        snapshot = take_snapshot() if self.rank == 0 else take_variables()
        self._repetition.note_workers()
        self._events.write(
            "snapshot",
            moment=moment,
            epoch=self.epoch_key,
            step=self.progress_state.num_steps,
            precisions=sorted(self._draws.precisions),
            in_loop=self.is_in_loop,
            models=models,
            layers=layers,
            **snapshot,
            **fields,
        )

    def _log_errors(self) -> None:
        """Log the error that ends the script, with the innermost line of the script's own code."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
            own = [place for place in lines if is_user_code(place[0])] or lines or [("", 0)]
            self._events.write(
                "error",
                type=kind.__name__,
                message=str(error),
                is_ours=isinstance(error, PolluxError),
                traceback="".join(traceback.format_exception(kind, error, trace)),
                file=own[-1][0],
                line=own[-1][1],
                has_stepped=self._has_stepped,
            )
            before(kind, error, trace)

        sys.excepthook = hook

    # ------------------------------------------------------------------------------------- planned stops

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        if self._outer_loader is loader:
            stop = self._stop_at
            if (
                stop is not None
                and stop.moment is StopMoment.STEP
                and self._is_at_or_after(stop, loader, step)
            ):
                self._stop_now(stop.method)
            self._ask_for_regroup(lambda planned: self._is_at_or_after(planned, loader, step))
        before, run_number = self.progress_state.num_steps, self.run_number
        chosen = super().end_step(loader, step)
        # A step before a regroup is none of the next run's.
        if self.progress_state.num_steps > before and self.run_number == run_number:
            if not self._has_stepped:
                self._has_stepped = True
                self._events.write("first_step", age_s=process_age_s())
            if self.rank == 0:
                self._step_log.log(self.progress_state.num_steps)
        return chosen

    def _is_at_or_after(self, stop: Stop, loader: Loader, step: StepPlan) -> bool:
        if not stop.loader:
            # Where a script counts its epochs itself, each loop counts as one.
            return max(self.epoch_key, loader.loop_number if self.epoch_key == NO_EPOCH else 0) > stop.epoch
        if self.epoch_key != stop.epoch:
            return self.epoch_key > stop.epoch
        if stop.moment is not StopMoment.STEP:
            return False
        return (loader.name_across_epochs, loader.loop_number) == (
            stop.loader,
            stop.loop,
        ) and step.end >= stop.position

    def end_loop(self, loader: Loader) -> None:
        is_outermost = self._outer_loader is loader
        if is_outermost:
            self._log_sums(loader)
        super().end_loop(loader)
        if not is_outermost:
            return
        self._log_loop_end("loop_end", loader)
        stop = self._stop_at
        if (
            stop is not None
            and stop.moment is StopMoment.AFTER_LOOP
            and (self.epoch_key, loader.name_across_epochs, loader.loop_number)
            == (stop.epoch, stop.loader, stop.loop)
        ):
            self._stop_now(stop.method)
            if self.rank == 0 and self._store.wait_for_confirmation(_MAX_WAIT_S):
                # As Slurm ends a validation that takes longer than KillWait.
                self._events.write("killed")
                os.kill(os.getpid(), signal.SIGKILL)

    def end_epoch(self) -> None:
        epoch, stop = self.epoch_key, self._stop_at
        if stop is not None and stop.moment is StopMoment.EPOCH_END and stop.epoch == epoch:
            # The request is not to be answered with the copy of the states after the loop.
            self.boundary.release()
            self._stop_now(stop.method)
        # Also for one that was planned at a step which this epoch did not make.
        self._ask_for_regroup(lambda planned: planned.epoch <= epoch)
        self._events.write("epoch_end", epoch=epoch, steps=self.progress_state.num_steps)
        super().end_epoch()

    def finish(self) -> None:
        super().finish()
        self._events.write("finished")

    def _stop_now(self, method: StopMethod) -> None:
        """Stop as in a job: SIGTERM to every rank, or a checkpoint request that rank 0 has polled."""
        self._stop_at = None
        self._events.write("stop", method=method, epoch=self.epoch_key)
        if method is StopMethod.SIGTERM:
            signal.raise_signal(signal.SIGTERM)
        elif self.rank == 0:
            reporter = self.measurements.reporter
            assert reporter is not None
            self._store.request_checkpoint()
            deadline = time.monotonic() + _MAX_WAIT_S
            while reporter.checkpoint_request is None and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL_S)

    # ---------------------------------------------------------------------------------- planned regroups

    def _note_obstacle(self, original: Callable[..., None], reason: str) -> None:
        self._events.write("cannot_regroup", reason=reason)
        original(reason)

    def _note_shape(self, original: Callable[..., None], text: str) -> None:
        if text not in self._shape_texts:
            self._shape_texts.add(text)
            self._events.write("depends_on_shape", text=text)
        original(text)

    def _note_refusal(self, original: Callable[..., None], number: int, reason: str) -> None:
        assert self._planned_regroups is not None
        if not self.regrouping.is_joining:
            self._planned_regroups.note_refusal(reason)
        original(number, reason)

    def _ask_for_regroup(self, is_due: Callable[[Stop], bool]) -> None:
        """On rank 0: ask for the next regroup if it is due; end the run where one does not come about."""
        planned = self._planned_regroups
        if planned is None or self.rank != 0 or self.stop.is_set:
            return
        stop = planned.next_after(self.regrouping.number)
        # The launcher takes the next request once the processes have made a step together.
        if stop is not None and self._has_stepped and is_due(stop):
            planned.ask(stop, self.regrouping.number, is_stopped=lambda: self.stop.is_set)
        if self.is_in_loop and planned.joins(self.world_size):
            planned.note_reason_to_wait(self.regrouping.replay.reason)
        if planned.note_answer():
            self._stop_now(StopMethod.SIGTERM)

    def _regroup(self, original: Callable[[int], bool], number: int) -> bool:
        self._log_snapshot("checkpoint")
        # The snapshots do not count as a part of the regroup.
        self.side_channel.gather(0)
        try:
            return original(number)
        except LeftTraining:
            self._events.write("left")
            raise

    def begin_run(self, environment: JobEnvironment, *, run_number: int) -> None:
        assert self._planned_regroups is not None
        self._events.begin_generation(self.regrouping.number, environment.rank)
        super().begin_run(environment, run_number=run_number)
        self._events.write("begun", standstill_s=sum(self.regrouping.times.parts.values()))
        self._planned_regroups.note_regrouped()
        self._epoch_snapshot, self._opens_loop, self._has_stepped = None, True, False

    # ------------------------------------------------------------------------------------- checkpoints

    def _write(self, original: Callable[[], Any]) -> Any:
        self._log_snapshot("checkpoint")
        if self._outer_loader is not None:
            self._repetition.note_checkpoint(self._place_of(self._outer_loader))
        written = original()
        self._events.write("checkpoint", blocked_s=written.blocked_s, size_bytes=written.size_bytes)
        return written

    def _copy_states(self, original: Callable[[], Any]) -> Any:
        write = original()
        self._events.write("states_copied")
        return write

    # ---------------------------------------------------------------------------------- the batch size

    def _propose(
        self, original: Callable[..., BatchChoice], limits: BatchLimits, batch: BatchChoice, noise: Any
    ) -> BatchChoice:
        del original, limits, noise
        return batch

    def _propose_after_step(
        self, original: Callable[..., Any], limits: BatchLimits, batch: BatchChoice, noise: Any
    ) -> BatchChoice | None:
        original(limits, batch, noise)
        self._num_steps += 1
        if not self._plan.varies_batch or limits.max_batch_size is None or self._num_steps % _STEPS_PER_BATCH:
            return None
        choices = batch_choices(limits, self.world_size)
        return choices[self._num_steps // _STEPS_PER_BATCH % len(choices)]


def batch_choices(limits: BatchLimits, num_replicas: int) -> list[BatchChoice]:
    """Return batches within the limits: M0, 2·M0 and the largest, also with one more accumulation step."""
    assert limits.max_batch_size is not None
    first, largest = limits.initial_batch_size, limits.max_batch_size
    choices = []
    for batch in sorted({first, min(2 * first, largest), largest}):
        fewest = -(-batch // (num_replicas * (limits.max_atomic or batch)))
        for number in range(fewest, fewest + 1 + limits.accumulation):
            atomic = -(-batch // (num_replicas * number))
            if atomic >= limits.min_atomic and (number == 1 or limits.accumulation):
                choices.append(
                    BatchChoice(
                        global_batch_size=batch, atomic_batch_size=atomic, accumulation_steps=number - 1
                    )
                )
    return choices or [
        BatchChoice(
            global_batch_size=first, atomic_batch_size=-(-first // num_replicas), accumulation_steps=0
        )
    ]
