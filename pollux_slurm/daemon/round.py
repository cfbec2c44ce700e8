"""One round: observe, decide, record, enact. One that cannot is skipped: logged, and counted by its reason.

`Rounds.run` is the only place that catches a round's errors.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.daemon.decide.planned_moves import PlannedMove
from pollux_slurm.daemon.deciding import DecidedRound, Decider, way_to
from pollux_slurm.daemon.enact import upkeep
from pollux_slurm.daemon.observe import accounted_runs, association_limits
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.daemon.observe.events import WatchedState
from pollux_slurm.daemon.observing import Observer, Round, Settings
from pollux_slurm.daemon.recording import Recorder
from pollux_slurm.daemon.service import privileges
from pollux_slurm.daemon.service.lease import Lease
from pollux_slurm.daemon.service.metrics import DaemonMetrics, totals
from pollux_slurm.daemon.service.systemd_notify import Notifier
from pollux_slurm.errors import (
    DaemonStoppedError,
    LeaseLostError,
    PolluxError,
    SlurmError,
    StoreError,
)
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.store.contract.interface import Reallocation, Store

__all__ = ["RoundResult", "Rounds", "Settings"]

_log = logging.getLogger(__name__)

_GIVES_WAY = "it gives way to jobs that wait"


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Search for garbage after a round: nearly all that thousands of jobs make in it is in use to its end."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What one round did. `skipped` is the reason of a round that did nothing, else None."""

    round_id: int | None = None
    num_jobs: int = 0
    num_moves: int = 0
    skipped: str | None = None


class Rounds:
    """The rounds of one daemon. `watched_state` is what `events` compares with.

    `while_deciding` is called repeatedly while the solver runs, until `stop` is set. `scope` returns the id
    of the only user whose jobs are served, or None for all users. `site_limits` returns Slurm's own limits,
    and `past_runs` asks Slurm's accounting database. `give_up` ends an open move, for a reason.
    """

    def __init__(
        self,
        *,
        slurm: SlurmClient,
        store: Store,
        settings: Settings,
        clock: Callable[[], datetime],
        lease: Lease,
        metrics: DaemonMetrics,
        notifier: Notifier,
        stop: threading.Event,
        while_deciding: Callable[[], object],
        scope: Callable[[], int | None] = privileges.all_users,
        site_limits: Callable[[], SiteLimits] = association_limits.no_limits,
        past_runs: accounted_runs.PastRuns = accounted_runs.no_past_runs,
        keeps_places: Callable[[], bool] = lambda: True,
        give_up: Callable[[Reallocation, str], bool] = lambda _move, _reason: False,
    ) -> None:
        self.watched_state, self.metrics = WatchedState(), metrics
        self._slurm, self._store, self._clock, self._lease = slurm, store, clock, lease
        self._notifier, self._give_up, self._settings = notifier, give_up, settings
        self._observer = Observer(
            slurm=slurm,
            store=store,
            clock=clock,
            lease=lease,
            metrics=metrics,
            scope=scope,
            past_runs=past_runs,
        )
        self._decider = Decider(
            slurm=slurm,
            store=store,
            metrics=metrics,
            stop=stop,
            while_deciding=while_deciding,
            site_limits=site_limits,
            keeps_places=keeps_places,
        )
        self._recorder = Recorder(store=store, lease=lease, metrics=metrics)

    @property
    def read_s(self) -> float:
        """What the last read of Slurm took."""
        return self._observer.read_s

    def configure(self, settings: Settings) -> None:
        """Use other settings from the next round on."""
        self._settings = settings

    def read_watched_state(self) -> WatchedState:
        """Read Slurm and the store for `events`; raises `SlurmError` and `StoreError`."""
        return self._observer.read_watched_state(self._settings)

    def run(self) -> RoundResult:
        """Observe, decide, record and enact.

        After an incomplete read, or any error, nothing is done: the failure is counted and logged.
        """
        try:
            with (
                _no_garbage_collection(),
                self.metrics.measured_round(
                    interval_s=self._settings.config.interval_s,
                    decision_limit_s=self._settings.policy.time_limit_s,
                ),
            ):
                return self._run()
        except SlurmError as error:
            self.metrics.errors.labels("slurm").inc()
            return self.skip("slurm", error)
        except StoreError as error:
            self.metrics.errors.labels("store").inc()
            return self.skip("store", error)
        except LeaseLostError as error:
            return self.skip("lease", error)
        except DaemonStoppedError as error:
            return self.skip("stopped", error)
        except PolluxError as error:
            return self.skip("policy", error)
        except Exception as error:
            _log.exception("round failed")
            return self.skip("bug", error)

    def _run(self) -> RoundResult:
        seen = self._observer.observe(self._settings)
        # Set already here, so that after a failed decision only a change triggers the next round.
        self.watched_state = seen.watched_state(seen.open_moves)
        decided = self._decider.decide(seen)
        round_id = self._recorder.record(seen, decided)
        moves = self._enact(seen, decided, round_id)
        num_jobs = len(decided.problem.jobs)
        _log.info(
            "round %d: %d jobs, fitness %.4g, %d to move",
            round_id,
            num_jobs,
            decided.decision.fitness,
            len(moves),
        )
        self.metrics.count_gpus(seen.picture, set() if seen.is_shadow else _ids(moves))
        self.metrics.end_round(round_id, decided.decision, tuple(job.record for job in seen.picture.managed))
        self._notifier.status(f"round {round_id}: {num_jobs} jobs, {len(moves)} to move")
        return RoundResult(round_id=round_id, num_jobs=num_jobs, num_moves=len(moves))

    def _enact(self, seen: Round, decided: DecidedRound, round_id: int) -> Sequence[PlannedMove]:
        """Journal the moves, which ticks then make, and keep what waits in order; return the moves.

        In shadow mode, they are logged only.
        """
        if seen.is_shadow:
            for move in decided.moves:
                _log_move(round_id, "would move", move)
            return decided.moves
        stay = {move.slurm_job_id for move in decided.given_up if not self._give_up(move, _GIVES_WAY)}
        moves = [move for move in decided.moves if move.job.slurm.job_id not in stay]
        still_open = [
            move for move in seen.open_moves if move not in decided.given_up or move.slurm_job_id in stay
        ]
        planned = [self._plan(seen, decided, move, round_id) for move in moves]
        # Set again, with the targets of the moves that this round planned.
        self.watched_state = seen.watched_state([*still_open, *planned])
        self._keep(seen, _ids(moves))
        return moves

    def _plan(self, seen: Round, decided: DecidedRound, move: PlannedMove, round_id: int) -> Reallocation:
        """Journal one move."""
        _log_move(round_id, "moves", move)
        way, because = way_to(seen, decided.problem, move.job, move.target)
        return self._store.journal.plan(
            move.job.slurm.job_id,
            source=move.source,
            target=move.target,
            moves_running=move.moves_running,
            from_restart_count=move.job.slurm.restart_count,
            round_id=round_id,
            at=self._clock(),
            way=way,
            reason=because,
        )

    def _keep(self, seen: Round, moved: Container[str]) -> None:
        """Keep anchors in order, and jobs waiting that must wait."""
        slurm, picture, now = self._slurm.guarded(self._lease.check), seen.picture, seen.now
        upkeep.cancel_orphans(seen.snapshot, slurm, now, only_user_id=seen.only_user_id)
        upkeep.requeue_waiting_anchors(picture.managed, slurm)
        pause_ttl_s = seen.settings.config.pause_ttl_s
        upkeep.prolong_pauses(picture, slurm, moved, now, pause_ttl_s=pause_ttl_s)
        upkeep.delay_jobs_with_leftovers(picture, slurm, self._store, moved, now)

    def skip(self, reason: str, error: Exception) -> RoundResult:
        """Count and log a round that does nothing."""
        self.metrics.skipped.labels(reason).inc()
        times = totals(self.metrics.skipped)[(reason,)]
        _log.warning("round skipped (%s, %d so far): %s", reason, times, error)
        return RoundResult(skipped=f"{reason}: {error}")


def _ids(moves: Sequence[PlannedMove]) -> set[str]:
    return {move.job.slurm.job_id for move in moves}


def _log_move(round_id: int, verb: str, move: PlannedMove) -> None:
    _log.info("round %d: %s job %s %s → %s", round_id, verb, move.job.slurm.job_id, move.source, move.target)
