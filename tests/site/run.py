"""One run on a hostile site: events by the schedule, looks from outside, and the verdict."""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pollux_slurm.errors import SlurmError, StoreError
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.store.contract.interface import Reallocation
from tests.books.totals import totals_compared
from tests.chaos.verdict import by_outcome
from tests.chaos.watch import oversold
from tests.site.hostile import LONGEST_STOP_S, NUM_NODES, HostileSite
from tests.site.places import Places, Stop, tried_again
from tests.site.schedule import Kind, Planned, make_schedule
from tests.waiting import wait_until

_LOOK_S = 1.0
_METRIC_S = 5.0
_END_S = 300.0


@dataclass(slots=True, kw_only=True)
class Finding:
    """One line of the verdict: what must hold, and each case in which it does not."""

    what: str
    wrong: Sequence[str] = ()


@dataclass(slots=True)
class Run:
    """Runs a site for some minutes. `log` tells what happens."""

    site: HostileSite
    minutes: float
    seed: int
    log: Callable[[str], None] = print
    places: Places = field(default_factory=Places)
    oversold: set[str] = field(default_factory=set)
    longest_gap_s: float = 0.0
    _due: list[tuple[float, str, Callable[[], None]]] = field(default_factory=list)
    _begun: float = 0.0

    def go(self) -> None:
        """Let everything happen, and end all jobs."""
        self._begun = time.monotonic()
        for planned in make_schedule(self.minutes, NUM_NODES, random.Random(self.seed)):
            self._plan(planned)
        pause, next_metric_s, last_look_s = threading.Event(), 0.0, 0.0
        while (now_s := self._now_s()) < 60 * self.minutes:
            for due in [due for due in self._due if due[0] <= now_s]:
                self._due.remove(due)
                self.log(f"{now_s:6.0f} s  {due[1]}")
                due[2]()
            with contextlib.suppress(SlurmError, StoreError):
                self._look()
                self.longest_gap_s = max(self.longest_gap_s, self._now_s() - last_look_s)
                last_look_s = self._now_s()
            if now_s >= next_metric_s:
                self.site.read_metric()
                next_metric_s = now_s + _METRIC_S
            pause.wait(max(_LOOK_S - (self._now_s() - now_s), 0.1))
        self.places.end()
        self._end()

    def _now_s(self) -> float:
        return time.monotonic() - self._begun

    def _plan(self, planned: Planned) -> None:
        at_s, node, site = planned.at_s, planned.node, self.site
        if planned.kind is Kind.SWEEP:
            self._due.append((at_s, "forty jobs of one GPU", site.sweep))
        elif planned.kind is Kind.DRAIN:
            self._due.append((at_s, f"n{node} is drained", lambda: site.drain(node)))
            self._due.append((at_s + planned.lasts_s, f"n{node} is back", lambda: site.resume(node)))
        else:
            told = f"maintenance of n{node} in {planned.ahead_s:.0f} s"
            self._due.append((at_s, told, lambda: site.reserve(node, ahead_s=planned.ahead_s)))

    def _look(self) -> None:
        # The journal is read on both sides: a move that begins or ends in between explains a hold.
        moving = {move.slurm_job_id for move in self.site.store.journal.open_reallocations()}
        snapshot = self.site.client.snapshot()
        now_s = self._now_s()
        moving |= {move.slurm_job_id for move in self.site.store.journal.open_reallocations()}
        self.places.look(now_s, snapshot.jobs, self.site.adaptive, moving)
        self.oversold.update(oversold(snapshot))
        self.site.act(snapshot, now_s)

    def _end(self) -> None:
        """Undo what is left, cancel all jobs, and wait until Slurm and the store agree that all is over."""
        for _, _, act in [due for due in self._due if due[1].endswith("is back")]:
            act()
        self.site.stop_submitting()
        self.site.read_metric()
        self.site.cancel_everything()

        def is_over() -> bool:
            with contextlib.suppress(SlurmError, StoreError):
                jobs = self.site.client.snapshot().jobs
                recorded = all(record.state.is_over for record in self.site.store.jobs.all())
                is_open = bool(self.site.store.journal.open_reallocations())
                return recorded and not is_open and all(job.state.is_over for job in jobs)
            return False

        with contextlib.suppress(AssertionError):
            wait_until(is_over, timeout_s=_END_S, what="all jobs to end", every_s=2.0)

    # ------------------------------------------------------------------------------------------ the verdict

    def verdict(self, sacct: CommandRunner | None) -> list[Finding]:
        """Return what holds and what does not."""
        moves = self.site.store.journal.reallocations()
        left = [f"job {job.job_id} is left held" for job in self.site.client.snapshot().jobs if job.held]
        left += [
            f"move {move.id} of job {move.slurm_job_id} is still {move.step.value}"
            for move in self.site.store.journal.open_reallocations()
        ]
        names = {number: one.name for number, one in self.site.adaptive.items()}
        wrong, note = (
            totals_compared(self.site.store, names, sacct) if sacct is not None else ([], "no sacct")
        )
        metric = self.site.largest_metric
        seen = [] if metric == 0 else [f"it was {metric:g}" if metric is not None else "it was never read"]
        return [
            Finding(
                what=f"(a) no adaptive job is without GPUs that it had for more than {LONGEST_STOP_S:g} s",
                wrong=[
                    self._told(stop, moves) for stop in self.places.stops if stop.lasted_s > LONGEST_STOP_S
                ],
            ),
            Finding(
                what="(b) nothing never runnable is tried again in ten minutes", wrong=tried_again(moves)
            ),
            Finding(
                what="(c) no job is held that no person held",
                wrong=[*(f"job {job_id}, without a move" for job_id in sorted(self.places.held)), *left],
            ),
            Finding(what=f"(d) the books equal Slurm's: {note}", wrong=[*wrong, *sorted(self.oversold)]),
            Finding(what="(e) the metric of lost places is 0", wrong=seen),
        ]

    def _told(self, stop: Stop, moves: Sequence[Reallocation]) -> str:
        name = self.site.adaptive[stop.job_id].name
        own = [move for move in moves if move.slurm_job_id == stop.job_id]
        began_at = self.site.clock().timestamp() - self._now_s()
        within = [
            f"move {move.id} {move.source} → {move.target} {move.step.value} ({move.reason})"
            for move in own
            if move.times[0][1].timestamp() - began_at < stop.until_s
            and move.times[-1][1].timestamp() - began_at > stop.since_s - 60
        ]
        return (
            f"job {stop.job_id} ({name}): {stop.before} → {stop.after or 'nothing'}, from {stop.since_s:.0f} "
            f"to {stop.until_s:.0f} s; Slurm: {', '.join(stop.reasons)}; {'; '.join(within) or 'no move'}"
        )

    def notes(self) -> list[str]:
        """Return the counts as text."""
        lasted = sorted(stop.lasted_s for stop in self.places.stops) or [0.0]
        moves = self.site.store.journal.reallocations()
        return [
            f"{len(self.site.adaptive)} adaptive jobs, {len(self.site.user.submitted)} submissions of others",
            f"{len(self.places.stops)} times without GPUs: median {statistics.median(lasted):.0f} s, "
            f"95th percentile {lasted[int(0.95 * (len(lasted) - 1))]:.0f} s, longest {lasted[-1]:.0f} s",
            f"longest time between two looks: {self.longest_gap_s:.1f} s",
            f"{len(moves)} reallocations",
            *(f"  {count:4d}  {outcome}" for outcome, count in sorted(by_outcome(moves).items())),
            *(f"not done: {failure}" for failure in self.site.failures),
        ]
