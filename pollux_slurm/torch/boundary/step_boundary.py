"""The step boundary: between two optimizer steps the ranks agree on what to do, and do it together.

At a boundary every rank adds its flags and gradient norms to one exchange (a sum over the ranks). It acts on
the sums of the previous exchange, which had a step's time to finish; with one replica, on its own. So all
ranks checkpoint, wait, stop and change the batch size at the same boundary, and no step waits for a rank.
Short steps share an exchange (`exchange_interval`). A request waits for the end of the epoch where that is
near (`EpochEndWait`): only then does rank 0 set its flag.

Between two adaptive loops there is no boundary, so a validation over an ordinary loader is not interrupted.
A request or SIGTERM that comes meanwhile is answered with an earlier copy of the states
(`BackgroundResponder`). The ranks see it at the end of the epoch or at the next adaptive batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Protocol

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.errors import CheckpointError, SupersededRunError
from pollux_slurm.model import BatchChoice, JobWarning
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase
from pollux_slurm.torch.boundary.background_responder import GRACE_S, BackgroundResponder
from pollux_slurm.torch.boundary.epoch_end_wait import EpochEndWait
from pollux_slurm.torch.boundary.exchange_interval import ExchangeInterval
from pollux_slurm.torch.boundary.seams import Seams
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointer, WriteResult
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.gradients.step_norms import NormSums

_POLL_INTERVAL_S = 0.1
_LAST_REPORT_TIMEOUT_S = 2.0
# After a checkpoint that could not be written.
_RETRY_S = 10.0
# The indices of the flags in an exchange; norms follow.
_REQUEST, _CONFIRMED, _PERIODIC, _STOP, _SUPERSEDED, _COPY = range(6)
_REGROUP, _BATCH, _MICRO_BATCHES, _INTERVAL, _NUM_FLAGS = range(6, 11)
# Between loops the states are copied if that takes at most this share of the time.
_MAX_COPY_SHARE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """One model's norms in a step on this replica, and the callback for their sums over all replicas."""

    sums: NormSums
    update_noise: Callable[[NormSums], None]


class RegroupPlace(Enum):
    """A boundary at which replicas may join and leave."""

    STEP = "step"
    EPOCH_END = "epoch_end"


class Regroups(Protocol):
    """Replaces the replicas of a training that goes on."""

    def wanted(self, place: RegroupPlace) -> int:
        """Return, on rank 0, the number of the generation that is to take over soon; 0 for none."""

    def regroup(self, number: int) -> bool:
        """Go on as that generation, on all ranks; False if it was withdrawn, and nothing has changed."""


@dataclass(slots=True)
class ExchangeContext:
    """What an exchange was started with. `is_void`: its flags have been acted on already.

    `loop` numbers the loop in which it was started: a batch or a regroup proposed there is for that loop.
    """

    models: tuple[ModelStep, ...] = ()
    loop: int = 0
    is_void: bool = False


@dataclass(slots=True)
class _Flags:
    request: bool = False
    confirmed: bool = False
    periodic: bool = False
    stop: bool = False
    superseded: bool = False
    copy: bool = False
    # The number of the generation, 0 for none.
    regroup: int = 0
    batch: BatchChoice | None = None


@dataclass(slots=True)
class StepBoundary:
    """The step boundaries of one run. `reporter` and `report_builder` are None except on rank 0.

    `max_wait_s` bounds how long the ranks wait after a confirmed checkpoint if nobody stops them (the daemon
    or the store is down). Going on is safe: later steps are in the lineage only with a later checkpoint.
    """

    side_channel: SideChannel[ExchangeContext]
    checkpointer: Checkpointer
    stop: StopFlag
    reporter: Reporter | None
    report_builder: ReportBuilder | None
    checkpoint_interval: CheckpointInterval | None
    epoch_end: EpochEndWait
    max_wait_s: float
    regroups: Regroups | None = None
    seams: Seams = field(default_factory=Seams)
    pause: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _answered: int | None = field(default=None, init=False)
    last_checkpoint_s: float = field(default=0.0, init=False)
    _not_before_s: float = field(default=-math.inf, init=False)
    _superseded: str | None = field(default=None, init=False)
    _responder: BackgroundResponder | None = field(default=None, init=False)
    _confirmed: CheckpointConfirmation | None = field(default=None, init=False)
    _next_copy_s: float = field(default=-math.inf, init=False)
    has_copy: bool = field(default=False, init=False)
    _loop: int = field(default=0, init=False)
    # Since the last exchange.
    _models: tuple[ModelStep, ...] = field(default=(), init=False)
    _proposal: BatchChoice | None = field(default=None, init=False)
    exchange_interval: ExchangeInterval = field(init=False)
    _pending: ExchangeContext | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.last_checkpoint_s = self.monotonic()
        self.exchange_interval = ExchangeInterval(lambda: self.monotonic())

    def begin_loop(self) -> None:
        """Begin a loop over a loader: a batch that was proposed earlier is not for this one."""
        self._loop += 1
        self._proposal = None

    def cross(
        self,
        models: tuple[ModelStep, ...],
        *,
        proposal: BatchChoice | None,
        wait: bool,
        may_copy: bool = False,
        skips: bool = False,
        is_last: bool = False,
        regroups_at: RegroupPlace | None = None,
    ) -> tuple[BatchChoice | None, bool]:
        """Exchange, then act. Returns the batch that all ranks use from now on (None: as before), and whether
        training was interrupted.

        `wait` also finishes this boundary's own exchange (at the end of a loop). `may_copy` allows a copy of
        the states for requests during the code that follows. The others are the same on all ranks: `skips`
        does nothing, because gradients that are in no checkpoint wait for a step; `is_last` answers no
        request, because nothing is left to train; `regroups_at` allows that replicas join and leave.
        """
        self.release()
        self.stop.take_back()
        self._models += models
        self._proposal = proposal or self._proposal
        # A single replica waits for nobody.
        if skips or not (self.exchange_interval.is_due() or wait or self.side_channel.world_size == 1):
            return None, False
        agreement = ExchangeContext(models=self._models, loop=self._loop)
        values = self._flags(self._proposal, None if is_last else regroups_at)
        wanted = self.exchange_interval.record_exchange()
        values[_INTERVAL] = float(wanted if self.side_channel.rank == 0 else 0)
        models, self._models, self._proposal = self._models, (), None
        if may_copy and self.side_channel.rank == 0:
            values[_COPY] = float(self.checkpointer.is_enabled and self.monotonic() >= self._next_copy_s)
        for model in models:
            sums = model.sums
            values += sums.parts_sum
            values += sums.mean_sqr if self.side_channel.rank == 0 else [0.0] * len(sums.mean_sqr)
        flags = _Flags()
        self._apply(flags, self.side_channel.exchange(values, agreement))
        if wait:
            self._apply(flags, self.side_channel.drain())
        self._pending = agreement
        flags.request &= not is_last
        if is_last or regroups_at is None:
            flags.regroup = 0
        has_acted = self._act(flags)
        if flags.copy and not has_acted:
            self._start_responder()
        return flags.batch, has_acted

    def release(self) -> None:
        """Stop the background responder: requests are answered at boundaries again."""
        self.has_copy = False
        if self._responder is not None:
            self._responder.release()
            self._answered, self._confirmed = self._responder.answered, self._responder.confirmed
            self._responder = None

    def _start_responder(self) -> None:
        started = self.monotonic()
        write = self.seams.copy_states(self.checkpointer.copy_states)
        now = self.monotonic()
        self._next_copy_s = now + (now - started) / _MAX_COPY_SHARE
        self.has_copy = True
        if write is not None and self.reporter is not None and self.report_builder is not None:
            self._responder = BackgroundResponder(
                reporter=self.reporter,
                report_builder=self.report_builder,
                stop=self.stop,
                answered=self._answered,
                should_wait=self.epoch_end.should_wait,
                write=write,
            )

    def _flags(self, proposal: BatchChoice | None, regroups_at: RegroupPlace | None) -> list[float]:
        values = [0.0] * _NUM_FLAGS
        values[_STOP] = float(self.stop.is_set)
        if self.side_channel.rank == 0:
            self._record_write_result()
            self.epoch_end.note_boundary()
            request = None if self.reporter is None else self.reporter.checkpoint_request
            if request is not None and (request == self._answered or self.epoch_end.should_wait(request)):
                request = None
            can_write = self.checkpointer.is_enabled and self.monotonic() >= self._not_before_s
            values[_CONFIRMED] = float(self._confirmed is not None)
            values[_REQUEST] = float(can_write and request is not None)
            values[_SUPERSEDED] = float(
                self._superseded is not None or (self.reporter is not None and self.reporter.superseded)
            )
            values[_PERIODIC] = float(can_write and self._is_due())
            if self.regroups is not None and regroups_at is not None and not self.checkpointer.is_writing:
                values[_REGROUP] = float(self.regroups.wanted(regroups_at))
            if proposal is not None:
                values[_BATCH] = float(proposal.global_batch_size)
                values[_MICRO_BATCHES] = float(proposal.accumulation_steps + 1)
        return values

    def _is_due(self) -> bool:
        if self.checkpoint_interval is None or self.checkpointer.is_writing:
            return False
        return self.monotonic() - self.last_checkpoint_s >= self.checkpoint_interval.interval_s

    def _record_write_result(self) -> None:
        """On rank 0: record the result of a checkpoint that was written in the background."""
        written = self.checkpointer.take_write_result()
        if written is None:
            return
        self._superseded = written.superseded
        self._schedule_next(written)
        if written.error is None and written.superseded is None and self.report_builder is not None:
            self.report_builder.add_checkpoint(blocked_s=written.blocked_s, size_bytes=written.size_bytes)

    def _schedule_next(self, written: WriteResult) -> None:
        """Schedule the next periodic checkpoint by the time that this one took; soon, if it failed.

        Warns the owner of a full disk.
        """
        if written.is_disk_full and self.report_builder is not None:
            self.report_builder.warn(JobWarning.DISK_FULL)
        if written.error is not None:
            self._not_before_s = self.monotonic() + _RETRY_S
            self.last_checkpoint_s = -math.inf
        elif self.checkpoint_interval is not None:
            self.checkpoint_interval.add_write_time(written.took_s)

    def _apply(self, flags: _Flags, answer: tuple[list[float], ExchangeContext] | None) -> None:
        if answer is None:
            return
        sums, agreement = answer
        at = _NUM_FLAGS
        for model in agreement.models:
            size = len(model.sums.parts_sum)
            if model.sums.num_parts:
                parts, means = sums[at : at + size], sums[at + size : at + 2 * size]
                model.update_noise(replace(model.sums, parts_sum=tuple(parts), mean_sqr=tuple(means)))
            at += 2 * size
        self.exchange_interval.set_interval(self.seams.exchange_interval(int(sums[_INTERVAL])))
        if agreement.is_void:
            return
        flags.request |= sums[_REQUEST] > 0
        flags.confirmed |= sums[_CONFIRMED] > 0
        flags.periodic |= sums[_PERIODIC] > 0
        flags.stop |= sums[_STOP] > 0
        flags.superseded |= sums[_SUPERSEDED] > 0
        flags.copy |= sums[_COPY] > 0
        if agreement.loop != self._loop:
            return
        flags.regroup = flags.regroup or int(sums[_REGROUP])
        if sums[_BATCH] > 0:
            batch, micro_batches = int(sums[_BATCH]), int(sums[_MICRO_BATCHES])
            flags.batch = BatchChoice(
                global_batch_size=batch,
                atomic_batch_size=-(-batch // (self.side_channel.world_size * micro_batches)),
                accumulation_steps=micro_batches - 1,
            )

    def _act(self, flags: _Flags) -> bool:
        if flags.superseded:
            raise SupersededRunError(
                "a newer run of this job has reported to the store: this process is a leftover and stops"
            )
        if (
            flags.regroup
            and self.regroups is not None
            and not (flags.request or flags.confirmed or flags.stop)
        ):
            return self._regroup(flags.regroup)
        if not (flags.request or flags.confirmed or flags.periodic or flags.stop):
            return False
        # The exchange under way still has these flags on every rank, and must not act on them again. SIGTERM
        # and an unanswered request are set again at the next boundary.
        if self._pending is not None:
            self._pending.is_void = True
        if flags.confirmed and not flags.stop:
            # Nothing was trained since, so the confirmed checkpoint is the newest state.
            confirmation, self._confirmed = self._confirmed, None
            self._wait(confirmation, is_reported=True)
        elif flags.stop or flags.request:
            self.checkpoint(stop=flags.stop, request=flags.request)
        else:
            self.checkpoint_in_background()
        return True

    def _regroup(self, number: int) -> bool:
        """Go on as another generation, which knows nothing of the exchange under way."""
        assert self.regroups is not None
        if self._pending is not None:
            self._pending.is_void = True
        self._apply(_Flags(), self.side_channel.drain())
        return self.seams.regroup(partial(self.regroups.regroup, number))

    def begin_run(self, reporter: Reporter | None, report_builder: ReportBuilder | None) -> None:
        """Answer the requests of another run, whose ranks all count its boundaries anew."""
        self.reporter, self.report_builder = reporter, report_builder
        self._answered = self._confirmed = self._superseded = self._pending = self._proposal = None
        self._models = ()
        self.exchange_interval.begin_run()

    def checkpoint_in_background(self) -> None:
        """Begin a checkpoint on all ranks at this boundary; training goes on while it is written.

        Does nothing where the user has turned periodic checkpoints off.
        """
        self.release()
        if not self.checkpointer.is_enabled or self.checkpoint_interval is None:
            return
        self.last_checkpoint_s = started = self.monotonic()
        self.checkpointer.write_in_background()
        self.checkpoint_interval.add_blocked_time(self.monotonic() - started)

    def checkpoint(self, *, stop: bool = False, request: bool = False) -> None:
        """Write a checkpoint on all ranks at this boundary; then exit on `stop`, or wait on `request`."""
        self.release()
        # Read once: the request may change while the checkpoint is written.
        request_id = None if self.reporter is None else self.reporter.checkpoint_request
        confirmation, written, is_written = None, None, False
        if self.checkpointer.is_enabled:
            self.last_checkpoint_s = self.monotonic()
            written = self.seams.write(self.checkpointer.write)
            is_written = written.error is None
            self._schedule_next(written)
            if is_written:
                confirmation = CheckpointConfirmation(
                    request_id=request_id, blocked_s=written.blocked_s, size_bytes=written.size_bytes
                )
        if stop:
            if self.reporter is not None:
                if confirmation is not None:
                    self.reporter.confirm(confirmation)
                self.reporter.log_stopped(self.stop.signal_name, is_saved=confirmation is not None)
                self.reporter.close(timeout_s=_LAST_REPORT_TIMEOUT_S)
            if self.side_channel.rank == 0 and written is not None and written.error is not None:
                raise CheckpointError(
                    f"the last checkpoint of this run was not written: {written.error}; the next run goes on "
                    "from the one before"
                )
            self.stop.raise_stopped()
        # All ranks know whether the checkpoint was written; only rank 0 knows whether the request is open.
        if request and is_written:
            self._wait(confirmation)

    def _wait(self, confirmation: CheckpointConfirmation | None, *, is_reported: bool = False) -> None:
        """Wait on all ranks until stopped, or until the request is withdrawn, or for `max_wait_s`.

        `is_reported`: the confirmation was passed to the reporter already.
        """
        if self.reporter is not None and self.report_builder is not None and confirmation is not None:
            self.report_builder.set_phase(RunPhase.WAITING)
            if confirmation.request_id is not None and not is_reported:
                self.reporter.confirm(confirmation)
        deadline = self.monotonic() + self.max_wait_s
        while True:
            if self._is_withdrawn(confirmation):
                deadline = min(deadline, self.monotonic() + GRACE_S)
            verdict = self._wait_state(confirmation, deadline)
            try:
                verdict = int(self.side_channel.broadcast_number(verdict))
            except RuntimeError:
                # Another rank has been stopped while it waited: this one is being stopped, too.
                self.stop.raise_stopped()
            if self.stop.is_set:
                self.stop.raise_stopped()
            if verdict != 0:
                break
            self.pause(_POLL_INTERVAL_S)
        if self.reporter is not None and self.report_builder is not None:
            self._resume(confirmation)
        if verdict == 2:
            raise SupersededRunError("a newer run of this job has reported to the store: this one stops")

    def _wait_state(self, confirmation: CheckpointConfirmation | None, deadline: float) -> int:
        """Return 0 to wait on, 1 to go on, 2 when superseded; rank 0's counts."""
        if self.reporter is None or confirmation is None:
            return 0
        if self.reporter.superseded:
            return 2
        return int(confirmation.request_id is None or self.monotonic() >= deadline)

    def _is_withdrawn(self, confirmation: CheckpointConfirmation | None) -> bool:
        return (
            self.reporter is not None
            and confirmation is not None
            and self.reporter.checkpoint_request != confirmation.request_id
        )

    def _resume(self, confirmation: CheckpointConfirmation | None) -> None:
        assert self.reporter is not None
        assert self.report_builder is not None
        request_id = None if confirmation is None else confirmation.request_id
        if request_id is not None and self.reporter.is_confirmed(request_id):
            # The answer is final: the daemon uses this checkpoint or gives the request up.
            self._answered = request_id
        else:
            # The store is down, and its last request stays known: train for as long as the wait was.
            self._not_before_s = self.monotonic() + self.max_wait_s
        self.reporter.withdraw_confirmation()
        has_stepped = self.report_builder.first_step_s is not None
        self.report_builder.set_phase(RunPhase.TRAINING if has_stepped else RunPhase.STARTING)
        self.reporter.report_soon()
