"""What a daemon counts of itself, for `/metrics`, and what `/health` says of it."""

from __future__ import annotations

import functools
import math
from collections import Counter as Count
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary
from prometheus_client.metrics import MetricWrapperBase

from pollux_slurm.daemon.observe.daemon_presence import absence, is_silent
from pollux_slurm.model import Decision, JobState, ReallocationStep
from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord, Reallocation

# A leader that has not finished a round for so many intervals is not well, nor is one whose round under way
# has come no further for as long: a round that is long, of many jobs, comes from phase to phase.
_SILENT_INTERVALS = 3
_STATES = ("paused", *(state.value for state in JobState if not state.is_over))


class Telemetry:
    """Counters since the start of this process, in a registry of their own, and what was last seen.

    `lease` is what the store last said of who acts, read while this daemon waits for it; `held_jobs` are held
    in the midst of a move, by whichever daemon.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self.is_leader = False
        self.lease = DaemonStatus()
        self.held_jobs: tuple[str, ...] = ()
        self.open_moves = 0
        self.monotonic = monotonic
        self._interval_s = 60.0
        self._round_id: int | None = None
        self._first_tried_s: float | None = None
        self._last_round_s: float | None = None
        # None between rounds.
        self._round_began_s: float | None = None
        self._moved_on_s = self._decision_limit_s = 0.0
        self._commands_of_round = 0

        self.registry = CollectorRegistry()
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        self._rounds = counter("pollux_rounds", "Rounds held to their end.")
        self.skipped = counter("pollux_rounds_skipped", "Rounds given up, by reason.", ["reason"])
        self.phases = Summary(
            "pollux_round_seconds", "Time of rounds, by phase.", ["phase"], registry=self.registry
        )
        age = gauge("pollux_last_round_age_seconds", "Time since the last round that was held to its end.")
        age.set_function(self._age_s)
        self._jobs = gauge("pollux_jobs", "Adaptive jobs in the last round, by state.", ["state"])
        self.outcomes = counter(
            "pollux_reallocations", "Reallocations that ended, by kind and outcome.", ["kind", "outcome"]
        )
        under_way = gauge("pollux_reallocations_open", "Reallocations under way.")
        under_way.set_function(lambda: self.open_moves)
        self.lost_s = counter("pollux_reallocation_lost_seconds", "Time that jobs stood still for moves.")
        self._gap = gauge("pollux_decision_gap", "How far the last decision may be from the best.")
        self._gap.set(math.nan)
        self._fitness = gauge("pollux_decision_fitness", "Value of the last decision's objective.")
        self._fitness.set(math.nan)
        self.errors = counter("pollux_errors", "Errors of the store and of Slurm.", ["source"])
        for source in ("slurm", "store"):
            self.errors.labels(source)  # 0 until there is one
        self.commands = counter("pollux_slurm_commands", "Slurm commands run, by command.", ["command"])
        self._last_commands = gauge("pollux_slurm_commands_last_round", "Slurm commands of the last round.")
        leader = gauge("pollux_leader", "1 where this daemon holds the lease.")
        leader.set_function(lambda: self.is_leader)

    def _age_s(self) -> float:
        return math.nan if self._last_round_s is None else self.monotonic() - self._last_round_s

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure one part of a round."""
        began_s = self._moved_on_s = self.monotonic()
        try:
            yield
        finally:
            self._moved_on_s = self.monotonic()
            self.phases.labels(name).observe(self._moved_on_s - began_s)

    @contextmanager
    def round_under_way(self, *, interval_s: float, decision_limit_s: float = 0.0) -> Iterator[None]:
        """Note that a round is tried, as every `interval_s` from now on, and measure it.

        The search in it may take `decision_limit_s`.
        """
        self._interval_s, self._decision_limit_s = interval_s, decision_limit_s
        self._round_began_s = self.monotonic()
        if self._first_tried_s is None:
            self._first_tried_s = self._round_began_s
        self._commands_of_round = 0
        try:
            with self.phase("total"):
                yield
        finally:
            self._round_began_s = None

    def count_command(self, command: str) -> None:
        """Count a Slurm command."""
        self.commands.labels(command).inc()
        self._commands_of_round += 1

    def end_round(self, round_id: int, decision: Decision, records: tuple[JobRecord, ...]) -> None:
        """Take over what a whole round has found."""
        self._rounds.inc()
        self._round_id = round_id
        self._last_round_s = self.monotonic()
        self._gap.set(math.nan if decision.gap is None else decision.gap)
        self._fitness.set(decision.fitness)
        self._last_commands.set(self._commands_of_round)
        found = Count("paused" if one.paused_at is not None else one.state.value for one in records)
        for state in _STATES:
            self._jobs.labels(state).set(found[state])

    def end_move(self, reallocation: Reallocation, step: ReallocationStep, at: datetime) -> None:
        """Count a reallocation that has come to an end."""
        kind = "pause" if reallocation.is_pause else "move" if reallocation.moves_running else "start"
        self.outcomes.labels(kind, step.value).inc()
        stopped_at = reallocation.entered_at(ReallocationStep.CHECKPOINTED)
        if kind == "move" and step is ReallocationStep.CONFIRMED and stopped_at is not None:
            self.lost_s.inc(max((at - stopped_at).total_seconds(), 0.0))

    def health(self, now_utc: datetime | None = None) -> tuple[bool, dict[str, object]]:
        """Return whether the daemon is well, and what it says of itself.

        One that waits for the lease is, unless the one that has it is silent: then nobody acts.
        """
        at = now_utc or datetime.now(timezone.utc)
        missing = None if self.is_leader else absence(self.lease, at)
        silent = missing is not None and is_silent(self.lease, at)
        # Of one that has never finished a round: Slurm or the store may have been away from the start.
        since_s = self._first_tried_s if self._last_round_s is None else self._last_round_s
        patience_s = _SILENT_INTERVALS * self._interval_s + 60.0
        now = self.monotonic()
        until_s = now if self._round_began_s is None else self._round_began_s
        hangs = (
            self._round_began_s is not None and now - self._moved_on_s > patience_s + self._decision_limit_s
        )
        late = self.is_leader and (hangs or (since_s is not None and until_s - since_s > patience_s))
        heard = self.lease.renewed_at
        return not (late or silent), {
            "status": "no round for too long" if late else missing if silent else "ok",
            "leader": self.is_leader,
            "waits_for": None if self.is_leader else self.lease.owner,
            "waits_for_heard_age_s": None
            if self.is_leader or heard is None
            else round((at - heard).total_seconds(), 1),
            "held_jobs": list(self.held_jobs),
            "round": self._round_id,
            "last_round_age_s": None if self._last_round_s is None else round(self._age_s(), 1),
            "skipped_rounds": {reason: int(times) for (reason,), times in totals(self.skipped).items()},
            "reallocations_open": self.open_moves,
        }


def totals(metric: MetricWrapperBase) -> dict[tuple[str, ...], float]:
    """Return what a counter has counted, or the sums of a summary, by the values of its labels."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(("_total", "_sum"))
    }
