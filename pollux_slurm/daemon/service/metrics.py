"""A daemon's metrics for `/metrics`, and its state for `/health`. `sql/prometheus/` has alerts on them."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import Counter as Count
from collections.abc import Callable, Container, Iterator, Sized
from contextlib import contextmanager
from datetime import datetime, timezone

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, Summary
from prometheus_client.metrics import MetricWrapperBase

from pollux_slurm import __version__
from pollux_slurm.daemon.observe.cluster_picture import Picture
from pollux_slurm.daemon.service.gpu_metrics import gpus_by_state, idle_while_waiting
from pollux_slurm.model import Decision, JobState, ReallocationStep, ReallocationWay
from pollux_slurm.now.daemon_text import daemon_absence_text, is_silent
from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord, Reallocation

# A leader is unhealthy after this many intervals without a finished round, or without progress from phase to
# phase in the current one.
_MAX_INTERVALS = 3
_STATES = ("paused", *(state.value for state in JobState if not state.is_over))
_SKIP_REASONS = ("bug", "lease", "policy", "slurm", "stopped", "store")
_KINDS = ("move", "pause", "start")


class DaemonMetrics:
    """Counters since the start of this process, in their own registry, and the last known state.

    `lease` is the lease's owner as last read, while this daemon waits for it. `held_jobs` are jobs held in
    the middle of a move, by any daemon.
    """

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self.is_leader = self.is_shadow = False
        self.lease = DaemonStatus()
        self.held_jobs: tuple[str, ...] = ()
        self.open_moves = 0
        self.monotonic = monotonic
        self._interval_s = 60.0
        self._round_id: int | None = None
        self._first_round_began_s: float | None = None
        self._last_round_s: float | None = None
        # None between rounds.
        self._round_began_s: float | None = None
        self._last_phase_s = self._decision_limit_s = 0.0
        self._commands_in_round = 0
        self._gpu_labels: set[tuple[str, str]] = set()

        self.registry = CollectorRegistry()
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        # Labels are exported as 0 from the start: an increase from nothing is none to Prometheus.
        self._build = Info("pollux_build", "Versions, and the kind of store.", registry=self.registry)
        self.describe_build(slurm="", store="")
        self._rounds = counter("pollux_rounds", "Rounds that were completed.")
        self.skipped = counter("pollux_rounds_skipped", "Rounds that were skipped, by reason.", ["reason"])
        for reason in _SKIP_REASONS:
            self.skipped.labels(reason)
        self.phases = Summary(
            "pollux_round_seconds", "Time of rounds, by phase.", ["phase"], registry=self.registry
        )
        age = gauge(
            "pollux_last_round_age_seconds",
            "Time since the last completed round; before one, since the first attempt.",
        )
        age.set_function(self._age_s)
        interval = gauge("pollux_round_interval_seconds", "The setting daemon.interval_s.")
        interval.set_function(lambda: self._interval_s)
        self._jobs = gauge("pollux_jobs", "Adaptive jobs in the last round, by state.", ["state"])
        self._gpus = gauge(
            "pollux_gpus",
            "GPUs in the last round: of adaptive or other jobs, free, or on unavailable nodes.",
            ["state", "gpu_type"],
        )
        self._idle = gauge(
            "pollux_gpus_idle_while_waiting",
            "Free GPUs in the last round on which a waiting adaptive job could run.",
        )
        self._without_place = gauge(
            "pollux_jobs_without_their_place",
            "Adaptive jobs that a move stopped, and that are without GPUs for longer than it may take.",
        )
        self._error = gauge(
            "pollux_prediction_error_ratio",
            "Median over running jobs of |measured/predicted throughput - 1|.",
        )
        self._error.set(math.nan)
        self.outcomes = counter(
            "pollux_reallocations",
            "Reallocations that ended, by kind, way and outcome.",
            ["kind", "way", "outcome"],
        )
        ends = [step.value for step in ReallocationStep if step.is_end]
        for kind, way, outcome in itertools.product(_KINDS, ReallocationWay, ends):
            self.outcomes.labels(kind, way.value, outcome)
        open_moves_gauge = gauge("pollux_reallocations_open", "Open reallocations.")
        open_moves_gauge.set_function(lambda: self.open_moves)
        self.lost_s = counter(
            "pollux_reallocation_lost_seconds",
            "Time in which jobs did not train because of moves, by the way of these.",
            ["way"],
        )
        for way in ReallocationWay:
            self.lost_s.labels(way.value)
        self._gap = gauge("pollux_decision_gap", "How far the last decision may be from the best.")
        self._gap.set(math.nan)
        self._fitness = gauge("pollux_decision_fitness", "Value of the last decision's objective.")
        self._fitness.set(math.nan)
        self.errors = counter("pollux_errors", "Errors of the store and of Slurm.", ["source"])
        for source in ("slurm", "store"):
            self.errors.labels(source)
        self.commands = counter("pollux_slurm_commands", "Slurm commands run, by command.", ["command"])
        self._last_commands = gauge("pollux_slurm_commands_last_round", "Slurm commands of the last round.")
        leader = gauge("pollux_leader", "1 where this daemon has the lease.")
        leader.set_function(lambda: self.is_leader)
        shadow = gauge("pollux_shadow", "1 where this daemon decides and moves nothing: daemon.shadow.")
        shadow.set_function(lambda: self.is_shadow)

    def describe_build(self, *, slurm: str, store: str) -> None:
        """Set Slurm's release and the kind of store, beside this package's version."""
        self._build.info({"version": __version__, "slurm": slurm, "store": store})

    def _age_s(self) -> float:
        since_s = self._since_s
        return math.nan if since_s is None else self.monotonic() - since_s

    @property
    def _since_s(self) -> float | None:
        # Without a completed round, since the first attempt: Slurm or the store may not be reachable.
        return self._first_round_began_s if self._last_round_s is None else self._last_round_s

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure one part of a round."""
        began_s = self._last_phase_s = self.monotonic()
        try:
            yield
        finally:
            self._last_phase_s = self.monotonic()
            self.phases.labels(name).observe(self._last_phase_s - began_s)

    @contextmanager
    def measured_round(self, *, interval_s: float, decision_limit_s: float = 0.0) -> Iterator[None]:
        """Measure a round, of which there is one every `interval_s`.

        The solver may take `decision_limit_s` of it.
        """
        self._interval_s, self._decision_limit_s = interval_s, decision_limit_s
        self._round_began_s = self.monotonic()
        if self._first_round_began_s is None:
            self._first_round_began_s = self._round_began_s
        self._commands_in_round = 0
        try:
            with self.phase("total"):
                yield
        finally:
            self._round_began_s = None

    def count_command(self, command: str) -> None:
        """Count a Slurm command."""
        self.commands.labels(command).inc()
        self._commands_in_round += 1

    def end_round(self, round_id: int, decision: Decision, records: tuple[JobRecord, ...]) -> None:
        """Record the results of a completed round."""
        self._rounds.inc()
        self._round_id = round_id
        self._last_round_s = self.monotonic()
        self._gap.set(math.nan if decision.gap is None else decision.gap)
        self._fitness.set(decision.fitness)
        self._last_commands.set(self._commands_in_round)
        states = Count("paused" if one.paused_at is not None else one.state.value for one in records)
        for state in _STATES:
            self._jobs.labels(state).set(states[state])
        # 0 is a run that has reported nothing to compare.
        errors = [one.prediction_error for one in records if one.allocation and one.prediction_error > 0]
        self._error.set(statistics.median(errors) if errors else math.nan)

    def count_gpus(self, picture: Picture, moved: Container[str]) -> None:
        """Record who has the GPUs in a round that moves the jobs `moved`."""
        counts = gpus_by_state(picture)
        for key in self._gpu_labels - counts.keys():
            self._gpus.labels(*key).set(0)
        for key, num_gpus in counts.items():
            self._gpus.labels(*key).set(num_gpus)
        self._gpu_labels |= counts.keys()
        self._idle.set(idle_while_waiting(picture, moved))

    def count_lost_places(self, jobs: Sized) -> None:
        """Record which jobs have lost their place."""
        self._without_place.set(len(jobs))

    def end_move(self, reallocation: Reallocation, step: ReallocationStep, at: datetime) -> None:
        """Count a reallocation that ended."""
        kind = "pause" if reallocation.is_pause else "move" if reallocation.moves_running else "start"
        way = reallocation.way
        self.outcomes.labels(kind, way.value, step.value).inc()
        lost_s = reallocation.standstill_s
        stopped_at = reallocation.entered_at(ReallocationStep.CHECKPOINTED)
        if way is ReallocationWay.REQUEUE and stopped_at is not None:
            lost_s = max((at - stopped_at).total_seconds(), 0.0)
        if kind == "move" and step is ReallocationStep.CONFIRMED and lost_s is not None:
            self.lost_s.labels(way.value).inc(lost_s)

    def health(self, now_utc: datetime | None = None) -> tuple[bool, dict[str, object]]:
        """Return whether the daemon is healthy, and its state as JSON values.

        A daemon that waits for the lease is healthy unless the owner of the lease is silent.
        """
        at = now_utc or datetime.now(timezone.utc)
        missing = None if self.is_leader else daemon_absence_text(self.lease, at)
        silent = missing is not None and is_silent(self.lease, at)
        since_s = self._since_s
        limit_s = _MAX_INTERVALS * self._interval_s + 60.0
        now = self.monotonic()
        until_s = now if self._round_began_s is None else self._round_began_s
        hangs = (
            self._round_began_s is not None and now - self._last_phase_s > limit_s + self._decision_limit_s
        )
        late = self.is_leader and (hangs or (since_s is not None and until_s - since_s > limit_s))
        renewed_at = self.lease.renewed_at
        return not (late or silent), {
            "status": "no round for too long" if late else missing if silent else "ok",
            "leader": self.is_leader,
            "waits_for": None if self.is_leader else self.lease.owner,
            "waits_for_heard_age_s": None
            if self.is_leader or renewed_at is None
            else round((at - renewed_at).total_seconds(), 1),
            "held_jobs": list(self.held_jobs),
            "round": self._round_id,
            "last_round_age_s": None if self._last_round_s is None else round(self._age_s(), 1),
            "skipped_rounds": {
                reason: int(times) for (reason,), times in totals(self.skipped).items() if times
            },
            "reallocations_open": self.open_moves,
        }


def totals(metric: MetricWrapperBase) -> dict[tuple[str, ...], float]:
    """Return a counter's totals, or a summary's sums, by label values."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in metric.collect()
        for sample in family.samples
        if sample.name.endswith(("_total", "_sum"))
    }
