"""What happens between two optimizer steps: the ranks agree, and act on what they agreed.

At each boundary (where steps are short: at each so many, see `exchange_interval`) every rank adds its flags
and norms to one exchange, and acts on the sums of the exchange before it, which had a step's time to finish
(with one replica: on its own). So all ranks checkpoint, wait, stop and change the batch size at the same
boundary, and no step waits for a rank. A request waits for the end of the epoch where that is near
(`EpochEnd`): rank 0 tells the others of it then.

Nothing here happens at any other moment: a script's validation over an ordinary loader is not interrupted. A
request that is not to wait, or SIGTERM, that comes meanwhile is answered with a copy of the states as they
were before (`Standby`), and the ranks see it at the end of the epoch or at the next adaptive batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pollux_slurm.agent.checkpoints.checkpoint_interval import CheckpointInterval
from pollux_slurm.agent.measure.report_builder import ReportBuilder
from pollux_slurm.agent.measure.reporter import Reporter
from pollux_slurm.errors import SupersededRunError
from pollux_slurm.model import BatchChoice
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase
from pollux_slurm.torch.boundary.background_responder import GRACE_S, Standby
from pollux_slurm.torch.boundary.epoch_end_wait import EpochEnd
from pollux_slurm.torch.boundary.exchange_interval import Spacing
from pollux_slurm.torch.boundary.sigterm import StopFlag
from pollux_slurm.torch.checkpoint.checkpoint_file import Checkpointer, Written
from pollux_slurm.torch.coordination.side_channel import Control
from pollux_slurm.torch.gradients.step_norms import NormSums

_TICK_S = 0.1
_LAST_REPORT_TIMEOUT_S = 2.0
# After a checkpoint that the disk did not take.
_RETRY_S = 10.0
# The places of the flags in an exchange; norms follow.
_REQUEST, _CONFIRMED, _PERIODIC, _STOP, _SUPERSEDED, _HOLD, _BATCH, _PASSES, _SPACING, _NUM_FLAGS = range(10)
# A copy of the states is held between loops where making it takes at most this share of the time.
_MOST_COPYING = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """One model's part in a step: its norms on this replica, and who takes in their sums over all."""

    sums: NormSums
    absorb: Callable[[NormSums], None]


@dataclass(slots=True)
class Agreement:
    """What comes back with an exchange's sums. `is_void`: it was acted on when its flags were still set.

    `loop` numbers the loop over a loader in which it was begun: a batch proposed there is for that loader.
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
    hold: bool = False
    batch: BatchChoice | None = None


@dataclass(slots=True)
class Boundary:
    """The boundary of one run. `reporter` and `report_builder` are there on rank 0 only.

    `max_wait_s` bounds how long the ranks stand still after a confirmed checkpoint when nobody stops them
    (the daemon is gone, the store is away). Going on is safe: whatever is done after it is not in the lineage
    unless a later checkpoint is.
    """

    control: Control[Agreement]
    checkpointer: Checkpointer
    stop: StopFlag
    reporter: Reporter | None
    report_builder: ReportBuilder | None
    pace: CheckpointInterval | None
    epoch_end: EpochEnd
    max_wait_s: float
    pause: Callable[[float], None] = time.sleep
    monotonic: Callable[[], float] = time.monotonic
    _answered: int | None = field(default=None, init=False)
    _last_checkpoint_s: float = field(default=0.0, init=False)
    _not_before_s: float = field(default=-math.inf, init=False)
    _superseded: str | None = field(default=None, init=False)
    _standby: Standby | None = field(default=None, init=False)
    _confirmed: CheckpointConfirmation | None = field(default=None, init=False)
    _next_hold_s: float = field(default=-math.inf, init=False)
    is_holding: bool = field(default=False, init=False)
    _loop: int = field(default=0, init=False)
    # Since the last exchange.
    _models: tuple[ModelStep, ...] = field(default=(), init=False)
    _proposal: BatchChoice | None = field(default=None, init=False)
    _spacing: Spacing = field(init=False)
    _pending: Agreement | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._last_checkpoint_s = self.monotonic()
        self._spacing = Spacing(lambda: self.monotonic())

    def begin_loop(self) -> None:
        """Tell that a loop over a loader begins: a batch that was proposed before it is not for this one."""
        self._loop += 1
        self._proposal = None

    def cross(
        self,
        models: tuple[ModelStep, ...],
        *,
        proposal: BatchChoice | None,
        wait: bool,
        may_hold: bool = False,
        passes_by: bool = False,
        is_last: bool = False,
    ) -> tuple[BatchChoice | None, bool]:
        """Exchange, then act. Returns the batch all ranks agreed to use from now on (None: as before), and
        whether training stood still.

        `wait` also finishes this boundary's own exchange (at the end of a loop). Code that takes long may
        follow where `may_hold` is said: a copy of the states may then answer a request meanwhile. Nothing
        happens where `passes_by` is said, on all ranks: gradients that no checkpoint holds wait for a step.
        No request is answered where `is_last` is said, on all ranks: nothing is left to train elsewhere.
        """
        self.release()
        self._models += models
        self._proposal = proposal or self._proposal
        # Alone there is nobody to wait for.
        if passes_by or not (self._spacing.is_due() or wait or self.control.world_size == 1):
            return None, False
        agreement = Agreement(models=self._models, loop=self._loop)
        values = self._flags(self._proposal)
        wanted = self._spacing.exchanged()
        values[_SPACING] = float(wanted if self.control.rank == 0 else 0)
        models, self._models, self._proposal = self._models, (), None
        if may_hold and self.control.rank == 0:
            values[_HOLD] = float(self.checkpointer.is_kept and self.monotonic() >= self._next_hold_s)
        for model in models:
            sums = model.sums
            values += sums.parts_sum
            values += sums.mean_sqr if self.control.rank == 0 else [0.0] * len(sums.mean_sqr)
        flags = _Flags()
        self._absorb(flags, self.control.exchange(values, agreement))
        if wait:
            self._absorb(flags, self.control.drain())
        self._pending = agreement
        flags.request &= not is_last
        has_acted = self._act(flags)
        if flags.hold and not has_acted:
            self._hold()
        return flags.batch, has_acted

    def release(self) -> None:
        """End what `may_hold` began: training goes on, and requests are seen at boundaries again."""
        self.is_holding = False
        if self._standby is not None:
            self._standby.release()
            self._answered, self._confirmed = self._standby.answered, self._standby.confirmed
            self._standby = None

    def _hold(self) -> None:
        started = self.monotonic()
        write = self.checkpointer.hold()
        now = self.monotonic()
        self._next_hold_s = now + (now - started) / _MOST_COPYING
        self.is_holding = True
        if write is not None and self.reporter is not None and self.report_builder is not None:
            self._standby = Standby(
                reporter=self.reporter,
                report_builder=self.report_builder,
                stop=self.stop,
                answered=self._answered,
                is_awaited=self.epoch_end.is_awaited,
                write=write,
            )

    def _flags(self, proposal: BatchChoice | None) -> list[float]:
        values = [0.0] * _NUM_FLAGS
        values[_STOP] = float(self.stop.is_set)
        if self.control.rank == 0:
            self._take_written()
            self.epoch_end.passed()
            request = None if self.reporter is None else self.reporter.checkpoint_request
            if request is not None and (request == self._answered or self.epoch_end.is_awaited(request)):
                request = None
            can_write = self.checkpointer.is_kept and self.monotonic() >= self._not_before_s
            values[_CONFIRMED] = float(self._confirmed is not None)
            values[_REQUEST] = float(can_write and request is not None)
            values[_SUPERSEDED] = float(
                self._superseded is not None or (self.reporter is not None and self.reporter.superseded)
            )
            values[_PERIODIC] = float(can_write and self._is_due())
            if proposal is not None:
                values[_BATCH] = float(proposal.global_batch_size)
                values[_PASSES] = float(proposal.accumulation_steps + 1)
        return values

    def _is_due(self) -> bool:
        if self.pace is None or self.checkpointer.is_writing:
            return False
        return self.monotonic() - self._last_checkpoint_s >= self.pace.interval_s

    def _take_written(self) -> None:
        """On rank 0: learn what came of a checkpoint that was written beside training."""
        written = self.checkpointer.take_written()
        if written is None:
            return
        self._superseded = written.superseded
        self._learn(written)
        if written.error is None and written.superseded is None and self.report_builder is not None:
            self.report_builder.add_checkpoint(blocked_s=written.blocked_s, size_bytes=written.size_bytes)

    def _learn(self, written: Written) -> None:
        """Pace the next checkpoint by this one; soon, if it has failed."""
        if written.error is not None:
            self._not_before_s = self.monotonic() + _RETRY_S
            self._last_checkpoint_s = -math.inf
        elif self.pace is not None:
            self.pace.add_write_time(written.took_s)

    def _absorb(self, flags: _Flags, answer: tuple[list[float], Agreement] | None) -> None:
        if answer is None:
            return
        sums, agreement = answer
        at = _NUM_FLAGS
        for model in agreement.models:
            size = len(model.sums.parts_sum)
            parts, means = sums[at : at + size], sums[at + size : at + 2 * size]
            model.absorb(replace(model.sums, parts_sum=tuple(parts), mean_sqr=tuple(means)))
            at += 2 * size
        self._spacing.agree(int(sums[_SPACING]))
        if agreement.is_void:
            return
        flags.request |= sums[_REQUEST] > 0
        flags.confirmed |= sums[_CONFIRMED] > 0
        flags.periodic |= sums[_PERIODIC] > 0
        flags.stop |= sums[_STOP] > 0
        flags.superseded |= sums[_SUPERSEDED] > 0
        flags.hold |= sums[_HOLD] > 0
        if sums[_BATCH] > 0 and agreement.loop == self._loop:
            batch, passes = int(sums[_BATCH]), int(sums[_PASSES])
            flags.batch = BatchChoice(
                global_batch_size=batch,
                atomic_batch_size=-(-batch // (self.control.world_size * passes)),
                accumulation_steps=passes - 1,
            )

    def _act(self, flags: _Flags) -> bool:
        if flags.superseded:
            raise SupersededRunError(
                "a newer run of this job has reported to the store: this process is a leftover and stops"
            )
        if not (flags.request or flags.confirmed or flags.periodic or flags.stop):
            return False
        # The exchange under way still carries these flags on every rank: they have had their effect. SIGTERM
        # and a request not yet answered are sent again at the next boundary.
        if self._pending is not None:
            self._pending.is_void = True
        if flags.confirmed and not flags.stop:
            # Nothing was trained since: what the daemon goes by is the newest there is.
            confirmation, self._confirmed = self._confirmed, None
            self._wait(confirmation, is_told=True)
        elif flags.stop or flags.request:
            self.checkpoint(stop=flags.stop, request=flags.request)
        else:
            self.checkpoint_unasked()
        return True

    def checkpoint_unasked(self) -> None:
        """Begin a checkpoint on all ranks at this boundary; training goes on while it is written.

        Nothing happens where the user wants none but those that are asked for.
        """
        self.release()
        if not self.checkpointer.is_kept or self.pace is None:
            return
        self._last_checkpoint_s = started = self.monotonic()
        self.checkpointer.write_behind()
        self.pace.add_blocked_time(self.monotonic() - started)

    def checkpoint(self, *, stop: bool = False, request: bool = False) -> None:
        """Write a checkpoint on all ranks at this boundary; then exit on `stop`, or wait on `request`."""
        self.release()
        # Read once: the answer may change while the checkpoint is written.
        request_id = None if self.reporter is None else self.reporter.checkpoint_request
        confirmation, is_written = None, False
        if self.checkpointer.is_kept:
            self._last_checkpoint_s = self.monotonic()
            try:
                written = self.checkpointer.write()
            except SupersededRunError:
                if stop:
                    self.stop.take()
                raise
            is_written = written.error is None
            self._learn(written)
            if is_written:
                confirmation = CheckpointConfirmation(
                    request_id=request_id, blocked_s=written.blocked_s, size_bytes=written.size_bytes
                )
        if stop:
            if self.reporter is not None:
                if confirmation is not None:
                    self.reporter.confirm(confirmation)
                self.reporter.log_stopped(is_saved=confirmation is not None)
                self.reporter.close(timeout_s=_LAST_REPORT_TIMEOUT_S)
            self.stop.heed()
        # Whether anything was written is known to all ranks, whether a request still stands to rank 0 only.
        if request and is_written:
            self._wait(confirmation)

    def _wait(self, confirmation: CheckpointConfirmation | None, *, is_told: bool = False) -> None:
        """Stand still on all ranks until stopped, or until the request is gone, or for `max_wait_s`.

        `is_told` says that the store has been told, or is being told.
        """
        if self.reporter is not None and self.report_builder is not None and confirmation is not None:
            self.report_builder.set_phase(RunPhase.WAITING)
            if confirmation.request_id is not None and not is_told:
                self.reporter.confirm(confirmation)
        deadline = self.monotonic() + self.max_wait_s
        while True:
            if self._is_gone(confirmation):
                deadline = min(deadline, self.monotonic() + GRACE_S)
            verdict = self._verdict(confirmation, deadline)
            try:
                verdict = int(self.control.broadcast_number(verdict))
            except RuntimeError:
                # A rank that waits for its end has met it: the others are being stopped, too.
                self.stop.heed()
            if self.stop.is_set:
                self.stop.heed()
            if verdict != 0:
                break
            self.pause(_TICK_S)
        if self.reporter is not None and self.report_builder is not None:
            self._go_on(confirmation)
        if verdict == 2:
            raise SupersededRunError("a newer run of this job has reported to the store: this one stops")

    def _verdict(self, confirmation: CheckpointConfirmation | None, deadline: float) -> int:
        """Return 0 to wait on, 1 to go on, 2 when superseded; rank 0's counts."""
        if self.reporter is None or confirmation is None:
            return 0
        if self.reporter.superseded:
            return 2
        return int(confirmation.request_id is None or self.monotonic() >= deadline)

    def _is_gone(self, confirmation: CheckpointConfirmation | None) -> bool:
        return (
            self.reporter is not None
            and confirmation is not None
            and self.reporter.checkpoint_request != confirmation.request_id
        )

    def _go_on(self, confirmation: CheckpointConfirmation | None) -> None:
        assert self.reporter is not None
        assert self.report_builder is not None
        request_id = None if confirmation is None else confirmation.request_id
        if request_id is not None and self.reporter.is_confirmed(request_id):
            # Answered once and for all; the daemon either uses this checkpoint or gives the request up.
            self._answered = request_id
        else:
            # The store is away, and what it last asked for stays known: train as long as was waited.
            self._not_before_s = self.monotonic() + self.max_wait_s
        self.reporter.withdraw_confirmation()
        has_stepped = self.report_builder.first_step_s is not None
        self.report_builder.set_phase(RunPhase.TRAINING if has_stepped else RunPhase.STARTING)
        self.reporter.report_soon()
