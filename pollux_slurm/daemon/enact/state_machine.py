"""Enact reallocations: a journaled state machine, one step per tick and job, safe to kill at any instant.

    planned → checkpoint_requested → checkpointed → requeued → reshaped → released → running → confirmed
    (`until_requeue`: the job trains on)            (`after_requeue`: the job is brought to run again)

A job that still waits in the queue skips the checkpoint and the requeue: planned → reshaped → ...
One that is paused, with a target of no GPUs, does not run again yet: ... → requeued → reshaped → released →
confirmed, and a later reallocation from the queue gives it GPUs.

Two rules make a crash harmless (invariant 5):

- A step is journaled *before* its command, so finding a reallocation at a step means: its command may or
  may not have been given. Every command is therefore repeated when Slurm does not yet show its effect, and
  each is conditional on the state just read (`pollux_slurm.slurm.client`).
- Moving the journal is a compare-and-set on the step that was read, so a second daemon, a late report of a
  checkpoint and this loop cannot overwrite each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.enact.after_requeue import Restarting
from pollux_slurm.daemon.enact.awaited_gpus import GpuBook
from pollux_slurm.daemon.enact.open_reallocation import Case, Desk, Step
from pollux_slurm.daemon.enact.until_requeue import Stopping
from pollux_slurm.daemon.service.metrics import Telemetry
from pollux_slurm.errors import (
    JobStateError,
    LeaseLostError,
    SlurmCommandError,
    SlurmUnavailable,
    StoreError,
)
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import Store

_log = logging.getLogger(__name__)


class Enactor:
    """Drives open reallocations through their steps. `guard` raises when this daemon may not act."""

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        config: DaemonConfig,
        clock: Callable[[], datetime],
        guard: Callable[[], None],
        telemetry: Telemetry | None = None,
        predecessor_may_live: Callable[[], bool] = lambda: False,
    ) -> None:
        self._slurm = slurm
        self._store = store
        self._desk = Desk(
            slurm=slurm,
            store=store,
            config=config,
            clock=clock,
            guard=guard,
            telemetry=telemetry,
            predecessor_may_live=predecessor_may_live,
        )
        restarting = Restarting(self._desk)
        stopping = Stopping(self._desk, restarting)
        self._steps: Mapping[Step, Callable[[Case, GpuBook], None]] = {
            Step.PLANNED: stopping.planned,
            Step.CHECKPOINT_REQUESTED: stopping.checkpoint_requested,
            Step.CHECKPOINTED: stopping.checkpointed,
            Step.REQUEUED: restarting.requeued,
            Step.RESHAPED: restarting.reshaped,
            Step.RELEASED: restarting.released,
            Step.RUNNING: restarting.running,
        }

    def tick(self) -> int:
        """Advance every open reallocation by at most a few steps; return how many are still open.

        Reads Slurm once, and not at all while nothing is open.
        """
        if not self._store.open_reallocations():
            return 0
        snapshot = self._slurm.snapshot()
        # The journal is read after Slurm, so that a step is never judged by an older Slurm than its own.
        cases = self._desk.cases(snapshot)
        book = GpuBook.of(snapshot, [case.reallocation for case in cases])
        for case in cases:
            try:
                self._steps[case.reallocation.step](case, book)
            except JobStateError as error:
                # The job moved between the read and the command. The next tick sees where it is.
                _log.info("job %s: %s", case.id, error)
            except SlurmCommandError as error:
                _log.warning("job %s: %s", case.id, error)
            except (SlurmUnavailable, StoreError, LeaseLostError):
                raise
            except Exception:
                # One job's trouble must not keep the others held.
                _log.exception("job %s: reallocation %d failed", case.id, case.reallocation.id)
        return len(self._store.open_reallocations())

    def configure(self, config: DaemonConfig) -> None:
        """Take over other time-outs."""
        self._desk.config = config

    def journal_late_commands(self) -> None:
        """Tell the daemon that may act of jobs that a command of ours held too late."""
        self._desk.late.journal()

    def roll_back_what_has_not_begun(self, reason: str) -> None:
        """End every reallocation whose job has not been touched yet: before a stop of the daemon."""
        for reallocation in self._store.open_reallocations():
            if reallocation.step in (Step.PLANNED, Step.CHECKPOINT_REQUESTED, Step.CHECKPOINTED):
                self._desk.move(reallocation, Step.ROLLED_BACK, reason)

    def held_jobs(self) -> tuple[str, ...]:
        """Return the jobs that may be held by us: the daemon must not stop now."""
        return tuple(
            reallocation.slurm_job_id
            for reallocation in self._store.open_reallocations()
            if reallocation.step in (Step.REQUEUED, Step.RESHAPED)
            or (reallocation.step is Step.RELEASED and not self._desk.has_released(reallocation))
        )
