"""Enact reallocations: journaled, step by step; a tick may take several. Safe to kill at any instant.

    planned → checkpoint_requested → checkpointed → requeued → reshaped → released → running → confirmed
    (`until_requeue`: the job trains on)            (`after_requeue`: the job must run again)

A pending job skips the checkpoint and the requeue: planned → reshaped → ...
A move in place is planned → regroup_requested → regrouped → confirmed (`in_place`).
A pause has no GPUs in its target and ends early: ... → requeued → reshaped → released → confirmed. A later
reallocation of the pending job gives it GPUs.

Two rules make a crash harmless:

- A step is journaled *before* its command. So the command of a journaled step may or may not have been given.
  It is repeated while Slurm does not show its effect, and depends on the state just read
  (`pollux_slurm.slurm.client`).
- Each step is journaled by a compare-and-set on the step that was read. So a second daemon, a late checkpoint
  report and this loop cannot overwrite each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime

from pollux_slurm.config import DaemonConfig, MovesConfig
from pollux_slurm.daemon.enact.after_requeue import StepsAfterRequeue
from pollux_slurm.daemon.enact.gpu_ledger import GpuLedger
from pollux_slurm.daemon.enact.in_place import StepsInPlace, is_in_queue
from pollux_slurm.daemon.enact.kept_places import KeptPlaces
from pollux_slurm.daemon.enact.move_actions import MoveActions
from pollux_slurm.daemon.enact.open_move import OpenMove, Step
from pollux_slurm.daemon.enact.until_requeue import StepsUntilRequeue
from pollux_slurm.daemon.observe.move_reads import MoveReads
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.errors import (
    JobStateError,
    LeaseLostError,
    SlurmCommandError,
    SlurmUnavailable,
    StoreError,
)
from pollux_slurm.model import ClusterSnapshot, ReallocationWay
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import Reallocation, Store

_log = logging.getLogger(__name__)


class Enactor:
    """Advances open reallocations through their steps. `guard` raises when this daemon may not act."""

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        config: DaemonConfig,
        clock: Callable[[], datetime],
        guard: Callable[[], None],
        metrics: DaemonMetrics | None = None,
        predecessor_may_live: Callable[[], bool] = lambda: False,
        moves: MovesConfig | None = None,
        may_prioritise: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._reads = MoveReads(slurm, clock=clock, monotonic=monotonic)
        self._after_round = False
        self._actions = MoveActions(
            slurm=slurm,
            store=store,
            config=config,
            clock=clock,
            guard=guard,
            metrics=metrics,
            predecessor_may_live=predecessor_may_live,
        )
        self.places = KeptPlaces(
            self._actions,
            may_prioritise=may_prioritise,
            is_on=(moves or MovesConfig()).keeps_places,
        )
        restarting = StepsAfterRequeue(self._actions, self.places)
        stopping = StepsUntilRequeue(self._actions, restarting, self.places)
        self._in_place = in_place = StepsInPlace(
            self._actions, moves=moves or MovesConfig(), may_prioritise=may_prioritise
        )
        self._steps: Mapping[Step, Callable[[OpenMove, GpuLedger], None]] = {
            Step.PLANNED: lambda move, ledger: (
                in_place.planned(move, ledger)
                if move.reallocation.way is ReallocationWay.IN_PLACE
                else stopping.planned(move, ledger)
            ),
            Step.REGROUP_REQUESTED: in_place.regroup_requested,
            Step.REGROUPED: in_place.regrouped,
            Step.CHECKPOINT_REQUESTED: stopping.checkpoint_requested,
            Step.CHECKPOINTED: stopping.checkpointed,
            Step.REQUEUED: restarting.requeued,
            Step.RESHAPED: restarting.reshaped,
            Step.RELEASED: restarting.released,
            Step.RUNNING: restarting.running,
        }

    def note_round(self) -> None:
        """Have the next tick check all wings that got priority, those that run, too."""
        self._after_round = True

    def tick(self) -> int:
        """Advance every open reallocation by the steps that it can take now; return how many are still open.

        Reads the moving jobs and the nodes once; nothing while nothing is open, and no wing and no job that
        got priority is to be checked.
        """
        after_round = self._after_round
        to_check = {*self._in_place.wings_to_check(after_round=after_round), *self.places.jobs_to_check()}
        reallocations = self._store.journal.open_reallocations()
        if not reallocations and not to_check and not self.places.has_to_check():
            self._after_round = False
            return 0
        snapshot = self._reads.read(reallocations, to_check, at_once=after_round)
        if snapshot is None:
            return len(reallocations)
        self._after_round = False
        # The journal is read after Slurm, so that no step is newer than the snapshot it is compared with.
        moves = self._moves(snapshot)
        if self.places.adopt(snapshot, moves):
            snapshot = self._reads.read_again()
            moves = self._moves(snapshot)
        self.places.check(snapshot, moves)
        self._in_place.check_prioritised(snapshot, moves)
        receivers = [
            move.reallocation
            for move in moves
            if move.reallocation.way is ReallocationWay.IN_PLACE
            and move.reallocation.step in (Step.PLANNED, Step.REGROUP_REQUESTED)
            and not is_in_queue(move)
        ]
        ledger = GpuLedger(snapshot, [move.reallocation for move in moves], not_in_queue=receivers)
        for move in moves:
            try:
                self._steps[move.reallocation.step](move, ledger)
            except JobStateError as error:
                # The job changed between the read and the command. The next tick reads its new state.
                _log.info("job %s: %s", move.job_id, error)
            except SlurmCommandError as error:
                _log.warning("job %s: %s", move.job_id, error)
            except (SlurmUnavailable, StoreError, LeaseLostError):
                raise
            except Exception:
                # An error of one job must not keep other jobs held.
                _log.exception("job %s: reallocation %d failed", move.job_id, move.reallocation.id)
        return len(self._store.journal.open_reallocations())

    def _moves(self, snapshot: ClusterSnapshot) -> list[OpenMove]:
        """Return the open moves whose jobs this snapshot shows as they are."""
        return [move for move in self._actions.moves(snapshot) if self._reads.has_read(move.job_id)]

    def configure(self, config: DaemonConfig, moves: MovesConfig) -> None:
        """Use other settings from now on."""
        self._actions.config = config
        self._in_place.moves = moves
        self.places.is_on = moves.keeps_places

    def journal_late_commands(self) -> None:
        """Journal, for the daemon with the lease, the jobs that late commands of this one hold."""
        self._actions.late.journal()

    def roll_back_what_has_not_begun(self, reason: str) -> None:
        """Roll back every reallocation whose job was not requeued yet, before the daemon stops.

        A regroup that was asked for goes on without a daemon, or is withdrawn by the next one.
        """
        for reallocation in self._store.journal.open_reallocations():
            if reallocation.step in (Step.PLANNED, Step.CHECKPOINT_REQUESTED, Step.CHECKPOINTED):
                self._actions.advance(reallocation, Step.ROLLED_BACK, reason)

    def give_up(self, reallocation: Reallocation, reason: str) -> bool:
        """End a move before it stops its job, or before the first step in its target, where the job stays.

        False where it is at another step by now.
        """
        step = Step.FAILED if reallocation.step is Step.RUNNING else Step.ROLLED_BACK
        return self._actions.advance(reallocation, step, reason)

    def stopped_jobs(self) -> tuple[str, ...]:
        """Return the jobs that a move has stopped, and that do not run again yet."""
        return tuple(
            one.slurm_job_id
            for one in self._store.journal.open_reallocations()
            if one.moves_running and one.step in (Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
        )

    def held_jobs(self) -> tuple[str, ...]:
        """Return the jobs that this daemon may hold; it must not stop before they are released."""
        return tuple(
            reallocation.slurm_job_id
            for reallocation in self._store.journal.open_reallocations()
            if reallocation.step in (Step.REQUEUED, Step.RESHAPED)
            or (reallocation.step is Step.RELEASED and not self._actions.has_released(reallocation))
        )
