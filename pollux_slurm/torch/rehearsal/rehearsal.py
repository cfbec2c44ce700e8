"""The rehearsal of a script: it listens to the session, logs events, and changes it at its seams.

Everything else is the session of a job. Checkpoints go to the rehearsal's folder, not to the script's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from pollux_slurm.agent.environment.job_environment import JobEnvironment, process_age_s
from pollux_slurm.agent.environment.layout import MEMBERSHIP_VARIABLE
from pollux_slurm.agent.exit_codes import LeftTraining
from pollux_slurm.agent.rehearsal_protocol import EventLog, RehearsalStore, RunPlan
from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.boundary.seams import Seams
from pollux_slurm.torch.checkpoint.checkpoint_file import WriteResult
from pollux_slurm.torch.data.micro_batches import MicroBatchPlan, StepPlan
from pollux_slurm.torch.rehearsal.loop_sums import on_each_collective
from pollux_slurm.torch.rehearsal.planned_lack_of_memory import PlannedLackOfMemory
from pollux_slurm.torch.rehearsal.planned_regroups import PlannedRegroups
from pollux_slurm.torch.rehearsal.planned_stops import PlannedStops
from pollux_slurm.torch.rehearsal.random_draws import RandomDrawDetector
from pollux_slurm.torch.rehearsal.repetition import Repetition
from pollux_slurm.torch.rehearsal.run_log import ErrorLog, RunLog
from pollux_slurm.torch.rehearsal.step_log import StepLog
from pollux_slurm.torch.rehearsal.weight_averages import WeightAverageDetector
from pollux_slurm.torch.session.events import Listener
from pollux_slurm.torch.session.loader_protocol import Loader
from pollux_slurm.torch.session.session import Session

T = TypeVar("T")
_STEPS_PER_BATCH = 3


class Rehearsal:
    """One run (`plan`) of a rehearsal, in one of its processes."""

    def __init__(self, plan: RunPlan, environment: JobEnvironment) -> None:
        self._plan = plan
        membership = environment.membership
        generation = 0 if membership is None else membership.joins or 0
        self._events = EventLog(plan.folder, environment.rank, generation=generation)
        self._errors, self._store = ErrorLog(self._events), RehearsalStore(self._events)
        self._regroups: PlannedRegroups | None = None
        if membership is not None:
            folder = Path(os.environ[MEMBERSHIP_VARIABLE])
            self._regroups = PlannedRegroups(folder, plan.regroups, self._events)
        self._listener = RehearsalListener(plan, self._events, self._errors)
        self._seams = RehearsalSeams(plan, self._events, self._listener)

    def make_session(self, environment: JobEnvironment, **options: Any) -> Session:
        """Return the session of this run, which logs that it has begun."""
        # Requests are answered where they are planned, not at the end of the epoch.
        options["epoch_end_wait_s"] = 0.0
        age_s = process_age_s()
        environment = replace(environment, open_store=lambda: self._store)
        session = Session(environment, listener=self._listener, seams=self._seams, **options)
        self._events.write(
            "start",
            rank=session.rank,
            world_size=session.world_size,
            backend=dist.get_backend(),
            is_resumed=session.is_resumed,
            in_place=options["in_place"],
            imported_s=age_s,
            joined_s=process_age_s(),
        )
        on_each_collective(lambda: self._events.write("combined"))
        stops = PlannedStops(self._plan, session, self._store, self._events, self._regroups)
        self._listener.begin(session, stops, self._regroups)
        self._seams.begin(session, self._regroups)
        return session


class RehearsalListener(Listener):
    """Logs what a training does, and stops it where that is planned."""

    log: RunLog
    repetition: Repetition
    _session: Session
    _stops: PlannedStops
    _regroups: PlannedRegroups | None
    _draws: RandomDrawDetector
    _averages: WeightAverageDetector
    _lack_of_memory: PlannedLackOfMemory
    _step_log: StepLog

    def __init__(self, plan: RunPlan, events: EventLog, errors: ErrorLog) -> None:
        self._plan, self._events, self._errors = plan, events, errors
        self._epoch_snapshot: int | None = None
        self._opens_loop = False
        self._num_steps_before = 0

    def begin(self, session: Session, stops: PlannedStops, regroups: PlannedRegroups | None) -> None:
        """Listen to a session, before the script makes a model or a loader."""
        self._session, self._stops, self._regroups = session, stops, regroups
        plan, events = self._plan, self._events
        self.repetition = Repetition(plan, session.environment.rank, events)
        self._draws = RandomDrawDetector(self._modules, self._log_draws, self.repetition.roots)
        self.log = RunLog(session, events, self._draws.precisions)
        self._averages = WeightAverageDetector(self._modules)
        self._step_log = StepLog(lambda: list(session.models), events)
        self._lack_of_memory = PlannedLackOfMemory(
            plan.folder, session.environment.rank, self._modules, events
        )

    def snapshot(self, moment: str, **fields: Any) -> None:
        """Log the weights, and what the script's variables are."""
        self.repetition.note_workers()
        self.log.snapshot(moment, **fields)

    def _modules(self) -> list[torch.nn.Module]:
        return self.log.modules()

    def _log_draws(self, who: str, generators: list[str]) -> None:
        self._events.write("drew", who=who, generators=generators)

    # -------------------------------------------------------------------------------------- what it hears

    def declare_epochs(self, num_epochs: int) -> None:
        finished = self._session.progress_state.finished_epochs
        self._events.write("epochs", total=num_epochs, finished=finished)

    def enter_loop(self, loader: Loader, *, is_outermost: bool) -> None:
        largest = loader.limits.max_batch_size
        if largest is not None and is_outermost:
            self._events.write("autoscale", batch_size=loader.batch_size, max_batch_size=largest)
            if not self._plan.varies_batch:
                loader.fix_batch_size()
        self._opens_loop = True
        self.repetition.begin_loop(loader, lambda: self.log.place_of(loader))
        if is_outermost:
            self.log.note_zeros()
            self._draws.begin_loop()

    def begin_micro_batch(self, loader: Loader, plan: MicroBatchPlan) -> None:
        if not self._plan.varies_batch:
            self._draws.begin_micro_batch()
        if not plan.is_last and self._session.rank == 0:
            self._averages.begin_micro_batch()
        self._plan_lack_of_memory(loader, plan)
        if self._opens_loop:
            self._opens_loop = False
            self.log.loop(loader)
        epoch = self._session.progress_state.epoch_key
        if self._epoch_snapshot != epoch:
            self._epoch_snapshot = epoch
            self.snapshot("epoch", loader=loader.name_across_epochs, position=plan.start)
        self.log.micro_batch(loader, plan)

    def _plan_lack_of_memory(self, loader: Loader, plan: MicroBatchPlan) -> None:
        stop, step = self._plan.out_of_memory, cast("Any", loader).current_step
        if stop is None or self._lack_of_memory.is_done:
            return
        # One example cannot be split.
        if plan.index == 0 and plan.size > 1 and self._stops.is_due(stop, loader, step):
            self._lack_of_memory.begin_micro_batch()

    def end_micro_batch(self, loader: Loader) -> None:
        self._lack_of_memory.end_micro_batch()
        self._draws.end_micro_batch()
        moved = self._averages.end_micro_batch()
        if moved:
            self._events.write("averaged", names=moved)

    def end_step(self, loader: Loader, step: StepPlan) -> None:
        self._stops.at_step(loader, step)
        self._num_steps_before = self._session.progress_state.num_steps

    def step_done(self) -> None:
        number = self._session.progress_state.num_steps
        if number == self._num_steps_before:
            return
        if not self._stops.has_stepped:
            self._stops.has_stepped = self._errors.has_stepped = True
            self._events.write("first_step", age_s=process_age_s())
        if self._session.rank == 0:
            self._step_log.log(number)

    def end_loop(self, loader: Loader) -> None:
        self.log.sums(loader)

    def loop_done(self, loader: Loader) -> None:
        self.log.loop_end("loop_end", loader)
        self._stops.after_loop(self.log.place_of(loader))

    def leave_loop(self, loader: Loader, *, is_outermost: bool, is_left: bool) -> None:
        if is_outermost and is_left:
            self.log.loop_end("loop_left", loader)
        self._draws.leave()
        self._lack_of_memory.end_micro_batch()

    def end_epoch(self) -> None:
        progress = self._session.progress_state
        self._stops.at_epoch_end(progress.epoch_key)
        self._events.write("epoch_end", epoch=progress.epoch_key, steps=progress.num_steps)

    def finish(self) -> None:
        self._events.write("finished")

    def begin_run(self, environment: JobEnvironment) -> None:
        self._events.begin_generation(self._session.regrouping.number, environment.rank)

    def run_begun(self) -> None:
        assert self._regroups is not None
        times = self._session.regrouping.times
        self._events.write("begun", standstill_s=sum(times.parts.values()))
        self._regroups.note_regrouped()
        self._epoch_snapshot, self._opens_loop = None, True
        self._stops.has_stepped = self._errors.has_stepped = False


class RehearsalSeams(Seams):
    """Changes what a job does: batches as planned, an exchange at each boundary; logs what comes to pass."""

    def __init__(self, plan: RunPlan, events: EventLog, listener: RehearsalListener) -> None:
        self._plan, self._events, self._listener = plan, events, listener
        # None while the session is made: what its script allows is in the log of the start.
        self._session: Session | None = None
        self._regroups: PlannedRegroups | None = None
        self._num_steps = 0
        self._shapes: set[str] = set()

    def begin(self, session: Session, regroups: PlannedRegroups | None) -> None:
        """Take part in a session, from its start on."""
        self._session, self._regroups = session, regroups

    @property
    def _known(self) -> Session:
        assert self._session is not None, "it has begun"
        return self._session

    def exchange_interval(self, number: int) -> int:
        # So that the script stops where it is planned.
        return 1

    def write(self, write: Callable[[], WriteResult]) -> WriteResult:
        self._listener.snapshot("checkpoint")
        loader = self._known.loops.stepping
        if loader is not None:
            self._listener.repetition.note_checkpoint(self._listener.log.place_of(loader))
        written = write()
        self._events.write("checkpoint", blocked_s=written.blocked_s, size_bytes=written.size_bytes)
        return written

    def copy_states(self, copy: Callable[[], T]) -> T:
        copied = copy()
        self._events.write("states_copied")
        return copied

    def regroup(self, regroup: Callable[[], bool]) -> bool:
        self._listener.snapshot("checkpoint")
        # The snapshots do not count as a part of the regroup.
        self._known.side_channel.gather(0)
        try:
            return regroup()
        except LeftTraining:
            self._events.write("left")
            raise

    def first_batch(
        self, limits: BatchLimits, batch: BatchChoice, propose: Callable[[], BatchChoice]
    ) -> BatchChoice:
        return batch

    def next_batch(self, limits: BatchLimits, proposal: BatchChoice | None) -> BatchChoice | None:
        self._num_steps += 1
        if not self._plan.varies_batch or limits.max_batch_size is None or self._num_steps % _STEPS_PER_BATCH:
            return None
        choices = batch_choices(limits, self._known.world_size)
        return choices[self._num_steps // _STEPS_PER_BATCH % len(choices)]

    def note_obstacle(self, reason: str) -> None:
        if self._session is not None:
            self._events.write("cannot_regroup", reason=reason)

    def note_refusal(self, reason: str) -> None:
        if self._session is not None and not self._session.regrouping.is_joining:
            assert self._regroups is not None
            self._regroups.note_refusal(reason)

    def note_shape(self, text: str) -> None:
        if text not in self._shapes:
            self._shapes.add(text)
            self._events.write("depends_on_shape", text=text)


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
