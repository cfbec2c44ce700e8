"""What the daemon counts of itself, for metrics and the health endpoint. No library, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from pollux_slurm.model import Decision, JobState, ReallocationStep
from pollux_slurm.store.contract import DaemonSeen, JobRecord, Reallocation


@dataclass(slots=True, kw_only=True)
class Telemetry:
    """Counts since the start of this process, and what was last seen. `phases` holds (times, seconds in all).

    `round_began_s` is when the round under way began, None between rounds, and `moved_on_s` when it last came
    to another phase: by these a long round is told from one that hangs. `decision_limit_s` is how long the
    search in it may take.

    `lost_s` is the time that jobs stood still for confirmed moves, from checkpoint to the first step after.
    `lease` is what the store last said of who acts, read while this daemon waits for it; `held_jobs` are held
    in the midst of a move, by whichever daemon.
    """

    monotonic: Callable[[], float]
    rounds: int = 0
    round_id: int | None = None
    last_round_s: float | None = None
    first_tried_s: float | None = None
    round_began_s: float | None = None
    moved_on_s: float = 0.0
    decision_limit_s: float = 0.0
    interval_s: float = 60.0
    skipped: Counter[str] = field(default_factory=Counter)
    phases: dict[str, tuple[int, float]] = field(default_factory=dict)
    jobs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    open_moves: int = 0
    lost_s: float = 0.0
    gap: float | None = None
    fitness: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    commands_of_round: int = 0
    is_leader: bool = False
    lease: DaemonSeen = field(default_factory=DaemonSeen)
    held_jobs: tuple[str, ...] = ()
    _commands_before: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure one part of a round."""
        began = self.moved_on_s = self.monotonic()
        try:
            yield
        finally:
            times, seconds = self.phases.get(name, (0, 0.0))
            self.moved_on_s = self.monotonic()
            self.phases[name] = times + 1, seconds + self.moved_on_s - began

    @contextmanager
    def round_under_way(self, *, interval_s: float, decision_limit_s: float = 0.0) -> Iterator[None]:
        """Note that a round is tried, as every `interval_s` from now on, and measure it."""
        self.interval_s, self.decision_limit_s = interval_s, decision_limit_s
        self.round_began_s = self.monotonic()
        if self.first_tried_s is None:
            self.first_tried_s = self.round_began_s
        self._commands_before = self.commands.total()
        try:
            with self.phase("total"):
                yield
        finally:
            self.round_began_s = None

    def end_round(self, round_id: int, decision: Decision, records: tuple[JobRecord, ...]) -> None:
        """Take over what a whole round has found."""
        self.rounds += 1
        self.round_id = round_id
        self.last_round_s = self.monotonic()
        self.gap, self.fitness = decision.gap, decision.fitness
        self.commands_of_round = self.commands.total() - self._commands_before
        self.jobs = Counter({state.value: 0 for state in JobState if not state.is_over} | {"paused": 0})
        for record in records:
            self.jobs["paused" if record.paused_at is not None else record.state.value] += 1

    def end_move(self, reallocation: Reallocation, step: ReallocationStep, at: datetime) -> None:
        """Count a reallocation that has come to an end."""
        kind = "pause" if reallocation.is_pause else "move" if reallocation.moves_running else "start"
        self.outcomes[f"{kind}/{step.value}"] += 1
        stopped_at = reallocation.entered_at(ReallocationStep.CHECKPOINTED)
        if kind == "move" and step is ReallocationStep.CONFIRMED and stopped_at is not None:
            self.lost_s += max((at - stopped_at).total_seconds(), 0.0)
