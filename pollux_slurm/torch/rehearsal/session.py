"""The session of a script that is being rehearsed: it tells what happens, and stops at the moment it is told.

All else is the session of a job. Checkpoints go to the rehearsal's folder, whatever the script says.
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
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist

from pollux_slurm.agent.launch.environment import JobEnvironment, process_age_s
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
from pollux_slurm.torch.data.micro_batches import PassPlan, StepPlan
from pollux_slurm.torch.rehearsal.averages import AverageWatch
from pollux_slurm.torch.rehearsal.draws import DrawWatch
from pollux_slurm.torch.rehearsal.shares import take_sums, tell_of_combining, variable_of, zeros_of
from pollux_slurm.torch.rehearsal.snapshot import is_users, numbers_of, take_snapshot
from pollux_slurm.torch.session.loader import Loader
from pollux_slurm.torch.session.session import Session
from pollux_slurm.torch.wrapped_model.patching import patch

# A request takes this long at most to reach the training thread, and a copy of the states to be written.
_MOST_WAIT_S = 60.0
_LOOK_EVERY_S = 0.01
_STEPS_PER_BATCH = 3


class RehearsedSession(Session):
    """A session that carries out the plan of one run of a rehearsal."""

    def __init__(self, plan: RunPlan, environment: JobEnvironment, **options: Any) -> None:
        self._plan, self._stop_at = plan, plan.stop
        self._events = EventLog(plan.folder, environment.rank)
        self._store = RehearsalStore(self._events)
        self._epoch_snapshot: int | None = None
        self._opens_loop = self._has_stepped = False
        self._num_steps = self._steps_before_loop = 0
        self._zeros: set[str] = set()
        self._averages = AverageWatch(self._plain_models)
        self._draws = DrawWatch(self._plain_models, self._tell_draws)
        self._tell_errors()
        # Requests are answered where they are planned, not at an end of the epoch that is near.
        options["epoch_end_wait_s"] = 0.0
        age_s = process_age_s()
        super().__init__(replace(environment, open_store=lambda: self._store), **options)
        self._events.write(
            "start",
            rank=self.rank,
            world_size=self.world_size,
            backend=dist.get_backend(),
            is_resumed=self.is_resumed,
            imported_s=age_s,
            joined_s=process_age_s(),
        )
        patch(self._measuring, "propose", self._propose)
        patch(self._measuring, "tell_step", self._propose_after_step)
        patch(self._checkpointer, "write", self._write)
        patch(self._checkpointer, "hold", self._hold)
        tell_of_combining(lambda: self._events.write("combined"))
        # Each boundary has its exchange, however short the steps are: a stop comes where it is planned.
        patch(self._boundary._spacing, "agree", lambda original, number: original(1))

    # --------------------------------------------------------------------------------- what is told of

    def declare_epochs(self, num_epochs: int) -> None:
        super().declare_epochs(num_epochs)
        self._events.write("epochs", total=num_epochs, finished=self.finished_epochs)

    @contextlib.contextmanager
    def loop(self, loader: Loader) -> Iterator[None]:
        largest = loader.limits.max_batch_size
        if largest is not None and not self.is_in_loop:
            self._events.write("autoscale", batch_size=loader.batch_size, max_batch_size=largest)
            if not self._plan.varies_batch:
                loader.hold_batch_size()
        self._opens_loop = True
        if not self.is_in_loop:
            self._steps_before_loop = self._progress.num_steps
            self._zeros = zeros_of(take_sums())
            self._draws.begin_loop()
        is_driver = not self.is_in_loop
        try:
            with super().loop(loader):
                yield
        except GeneratorExit:
            if is_driver:
                self._tell_end("loop_left", loader)
            raise
        finally:
            self._draws.leave()

    def _plain_models(self) -> list[torch.nn.Module]:
        return [model._model for model in self._steps._models]

    def _tell_draws(self, who: str, generators: list[str]) -> None:
        self._events.write("drew", who=who, generators=generators)

    def begin_pass(self, loader: Loader, plan: PassPlan) -> None:
        super().begin_pass(loader, plan)
        if self._driver is not loader:
            return
        if not self._plan.varies_batch:
            self._draws.begin_pass()
        if not plan.is_last and self.rank == 0:
            self._averages.begin_pass()
        if self._opens_loop:
            self._opens_loop = False
            self._tell_loop(loader)
        if self._epoch_snapshot != self.epoch_key:
            self._epoch_snapshot = self.epoch_key
            self._tell_snapshot("epoch", loader=loader.memory_name, position=plan.start)
        if not plan.is_padding:
            self._events.write(
                "micro_batch",
                loader=loader.memory_name,
                epoch=self.epoch_key,
                loop=loader.loop_number,
                start=plan.start,
                size=plan.size,
                global_batch_size=loader.current_batch_size,
                accumulation_steps=loader.accumulation_steps,
            )

    def end_pass(self, loader: Loader) -> None:
        if self._driver is loader:
            self._draws.end_pass()
            moved = self._averages.end_pass()
            if moved:
                self._events.write("averaged", names=moved)
        super().end_pass(loader)

    def _tell_loop(self, loader: Loader) -> None:
        order = loader.order
        indices = None if order is None else order.indices.numpy()
        self._events.write(
            "loop",
            loader=loader.memory_name,
            epoch=self.epoch_key,
            loop=loader.loop_number,
            length=None if indices is None else len(indices),
            order=None if indices is None else hashlib.sha256(indices.tobytes()).hexdigest()[:16],
            drops_last=loader.drop_last,
            batch_size=loader.batch_size,
            has_workers=cast("Any", loader)._feed._inner.num_workers > 0,
        )

    def _tell_end(self, kind: str, loader: Loader) -> None:
        self._events.write(
            kind,
            loader=loader.memory_name,
            epoch=self.epoch_key,
            loop=loader.loop_number,
            steps=self._progress.num_steps,
        )

    def _tell_sums(self, loader: Loader) -> None:
        """Tell what the script has summed up over a loop that trains nothing."""
        if self._progress.num_steps == self._steps_before_loop:
            sums = {name: values for name, values in take_sums().items() if name in self._zeros}
            self._events.write(
                "summed",
                variable=variable_of(loader),
                loader=loader.memory_name,
                epoch=self.epoch_key,
                loop=loader.loop_number,
                sums=sums,
            )

    def _tell_snapshot(self, moment: str, **fields: Any) -> None:
        models = {
            model.name: numbers_of(dict(model._model.named_parameters())) for model in self._steps._models
        }
        layers = sorted(
            {type(part).__name__ for model in self._steps._models for part in model._model.modules()}
        )
        snapshot = take_snapshot() if self.rank == 0 else {"objects": {}, "variables": {}, "tensors": {}}
        self._events.write(
            "snapshot",
            moment=moment,
            epoch=self.epoch_key,
            in_loop=self.is_in_loop,
            models=models,
            layers=layers,
            **snapshot,
            **fields,
        )

    def _tell_errors(self) -> None:
        """Tell of the error that ends the script, with the line of the script's own that it came through."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
            own = [place for place in lines if is_users(place[0])] or lines or [("", 0)]
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

    # ------------------------------------------------------------------------------ where it is stopped

    def end_step(self, loader: Loader, step: StepPlan) -> BatchChoice | None:
        if self._driver is loader:
            stop = self._stop_at
            if stop is not None and stop.moment is StopMoment.STEP and self._is_behind(stop, loader, step):
                self._stop_now(stop.method)
        before = self._progress.num_steps
        chosen = super().end_step(loader, step)
        if not self._has_stepped and self._progress.num_steps > before:
            self._has_stepped = True
            self._events.write("first_step", age_s=process_age_s())
        return chosen

    def _is_behind(self, stop: Stop, loader: Loader, step: StepPlan) -> bool:
        if not stop.loader:
            # Where a script counts its epochs itself, each loop is taken for one.
            return max(self.epoch_key, loader.loop_number if self.epoch_key == NO_EPOCH else 0) > stop.epoch
        if self.epoch_key != stop.epoch:
            return self.epoch_key > stop.epoch
        return (loader.memory_name, loader.loop_number) == (
            stop.loader,
            stop.loop,
        ) and step.end >= stop.position

    def end_loop(self, loader: Loader) -> None:
        is_driver = self._driver is loader
        if is_driver:
            self._tell_sums(loader)
        super().end_loop(loader)
        if not is_driver:
            return
        self._tell_end("loop_end", loader)
        stop = self._stop_at
        if (
            stop is not None
            and stop.moment is StopMoment.AFTER_LOOP
            and (self.epoch_key, loader.memory_name, loader.loop_number)
            == (stop.epoch, stop.loader, stop.loop)
        ):
            self._stop_now(stop.method)
            if self.rank == 0 and self._store.wait_for_confirmation(_MOST_WAIT_S):
                # A validation that outlasts Slurm's KillWait ends like this.
                self._events.write("killed")
                os.kill(os.getpid(), signal.SIGKILL)

    def end_epoch(self) -> None:
        epoch, stop = self.epoch_key, self._stop_at
        if stop is not None and stop.moment is StopMoment.EPOCH_END and stop.epoch == epoch:
            # Not to be answered with the states as they were after the loop.
            self._boundary.release()
            self._stop_now(stop.method)
        self._events.write("epoch_end", epoch=epoch, steps=self._progress.num_steps)
        super().end_epoch()

    def finish(self) -> None:
        super().finish()
        self._events.write("finished")

    def _stop_now(self, method: StopMethod) -> None:
        """Stop as the cluster would: SIGTERM to every rank, or a request that rank 0 has learned of."""
        self._stop_at = None
        self._events.write("stop", method=method, epoch=self.epoch_key)
        if method is StopMethod.SIGTERM:
            signal.raise_signal(signal.SIGTERM)
        elif self.rank == 0:
            reporter = self._measuring.reporter
            assert reporter is not None
            self._store.request_checkpoint()
            deadline = time.monotonic() + _MOST_WAIT_S
            while reporter.checkpoint_request is None and time.monotonic() < deadline:
                time.sleep(_LOOK_EVERY_S)

    # ------------------------------------------------------------------------------------- checkpoints

    def _write(self, original: Callable[[], Any]) -> Any:
        self._tell_snapshot("checkpoint")
        written = original()
        self._events.write("checkpoint", blocked_s=written.blocked_s, size_bytes=written.size_bytes)
        return written

    def _hold(self, original: Callable[[], Any]) -> Any:
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
    """Return batches that the limits allow: M0, 2·M0 and the largest, also in a pass more than needed."""
    assert limits.max_batch_size is not None
    first, largest = limits.initial_batch_size, limits.max_batch_size
    choices = []
    for batch in sorted({first, min(2 * first, largest), largest}):
        fewest = -(-batch // (num_replicas * (limits.max_atomic or batch)))
        for passes in range(fewest, fewest + 1 + limits.accumulation):
            atomic = -(-batch // (num_replicas * passes))
            if atomic >= limits.min_atomic and (passes == 1 or limits.accumulation):
                choices.append(
                    BatchChoice(
                        global_batch_size=batch, atomic_batch_size=atomic, accumulation_steps=passes - 1
                    )
                )
    return choices or [
        BatchChoice(
            global_batch_size=first, atomic_batch_size=-(-first // num_replicas), accumulation_steps=0
        )
    ]
