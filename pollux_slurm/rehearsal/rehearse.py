"""A whole rehearsal: a first run without moves, then moves in place, then moves by restarts."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMoment
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.node.node_program import visible_gpus
from pollux_slurm.rehearsal.runs.script_run import Event, RunOutcome, ScriptRun, run_script
from pollux_slurm.rehearsal.runs.stop_plan import (
    FIRST_RUN_STOP,
    plan_lack_of_memory,
    plan_regroups,
    plan_stops,
    sizes_of_regroups,
)
from pollux_slurm.rehearsal.weight_differences import needs_rounding

FIRST_RUN_SHARE = 0.3
"""The first run gets at most this share of the time."""
_MIN_RUN_S = 10.0
_CPU_PROCESSES = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalRuns:
    """All runs of a rehearsal.

    `fixed_batch_runs` begin with the first run, which is not moved. A script that does not call
    `autoscale_batch_size` has no `varying_batch_runs`, one that does not ask for it no `in_place_runs`: a
    training that was regrouped, a run for each generation of its processes. `rounding_run` is the first run
    again with the examples of each micro-batch in the reverse order, where its rounding matters. `skipped`
    counts planned stops that there was no time for in `time_s`.
    """

    command: tuple[str, ...]
    folder: Path
    processes: tuple[int, ...]
    num_gpus: int
    fixed_batch_runs: tuple[ScriptRun, ...]
    varying_batch_runs: tuple[ScriptRun, ...]
    in_place_runs: tuple[ScriptRun, ...]
    rounding_run: ScriptRun | None
    skipped: int
    time_s: float
    wall_s: float

    @property
    def all_runs(self) -> tuple[ScriptRun, ...]:
        return self.fixed_batch_runs + self.varying_batch_runs + self.in_place_runs

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time was up before all that was planned."""
        return self.skipped > 0 or any(run.outcome is RunOutcome.OUT_OF_TIME for run in self.all_runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingRun:
    """A run that begins. It resumes from `before`; `stop` is None for the first run."""

    num_processes: int
    varies_batch: bool
    before: ScriptRun | None
    stop: Stop | None
    regroups: tuple[Stop, ...] = ()
    reverses: bool = False


class RunObserver:
    """Callbacks about the runs of a rehearsal; these do nothing."""

    def begins(self, run: UpcomingRun) -> None:
        """A run begins."""

    def event(self, event: Event) -> None:
        """A run's rank 0 has written an event."""

    def ended(self, ended_run: ScriptRun) -> None:
        """A run has ended."""


def require_command(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise `UsageError` for a missing command, or for `pollux` itself."""
    if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
        what = "no command to rehearse" if not command else f"{command[0]}: command not found"
        raise UsageError(f"{what}; example: pollux rehearse -- python train.py")
    if Path(command[0]).name == "pollux":
        raise UsageError(
            "give the command that follows `pollux run --`: the rehearsal starts the processes itself"
        )


def rehearse(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    folder: Path,
    time_s: float,
    processes: Sequence[int] | None,
    progress: RunObserver,
    raise_if_interrupted: Callable[[], None] = lambda: None,
) -> RehearsalRuns:
    """Run and move `command` for about `time_s`.

    The runs have `processes` processes in turn; None chooses by the number of GPUs. `raise_if_interrupted` is
    called repeatedly; when it raises, the processes are ended.
    """
    num_gpus = visible_gpus(environ)
    counts = tuple(processes or [n for n in _CPU_PROCESSES if n <= (num_gpus or _CPU_PROCESSES[-1])])
    runs = _Runs(
        command,
        counts,
        environ=environ,
        folder=folder,
        time_s=time_s,
        progress=progress,
        raise_if_interrupted=raise_if_interrupted,
    )
    first_run = runs.first()
    fixed_batch_runs, varying_batch_runs = [first_run], list[ScriptRun]()
    in_place_runs: tuple[ScriptRun, ...] = ()
    rounding_run: ScriptRun | None = None
    if first_run.outcome in (RunOutcome.STOPPED, RunOutcome.FINISHED, RunOutcome.OUT_OF_TIME):
        if asks_for_regroups(first_run):
            in_place_runs = runs.regroups(first_run)
        fixed_batch_runs += runs.chain("fixed-batch", first_run, varies_batch=False)
        if autoscales(first_run):
            varying_batch_runs = runs.chain("varying-batch", first_run, varies_batch=True)
        if needs_rounding(first_run, fixed_batch_runs[1:], in_place_runs):
            rounding_run = runs.reversed(first_run)
    return RehearsalRuns(
        command=tuple(command),
        folder=folder,
        processes=counts,
        num_gpus=num_gpus,
        fixed_batch_runs=tuple(fixed_batch_runs),
        varying_batch_runs=tuple(varying_batch_runs),
        in_place_runs=in_place_runs,
        rounding_run=rounding_run,
        skipped=runs.skipped,
        time_s=time_s,
        wall_s=time.monotonic() - runs.started_s,
    )


class _Runs:
    """Makes the runs of one rehearsal, as long as there is time. `skipped` counts the stops without."""

    def __init__(
        self,
        command: Sequence[str],
        counts: Sequence[int],
        *,
        environ: Mapping[str, str],
        folder: Path,
        time_s: float,
        progress: RunObserver,
        raise_if_interrupted: Callable[[], None],
    ) -> None:
        self._command, self._counts, self._environ, self._folder = command, counts, environ, folder
        self._time_s, self._progress = time_s, progress
        self._raise_if_interrupted = raise_if_interrupted
        self.started_s = time.monotonic()
        self.skipped = 0

    @property
    def _left_s(self) -> float:
        return self.started_s + self._time_s - time.monotonic()

    def _run(
        self, run: UpcomingRun, chain: str, *, number: int = 0, limit_s: float, **options: Any
    ) -> tuple[ScriptRun, ...]:
        self._progress.begins(run)
        ended_runs = run_script(
            self._command,
            number=number,
            num_processes=run.num_processes,
            varies_batch=run.varies_batch,
            chain=self._folder / chain,
            environ=self._environ,
            limit_s=limit_s,
            progress=self._progress.event,
            raise_if_interrupted=self._raise_if_interrupted,
            regroups=run.regroups,
            **{"stop": run.stop, **options},
        )
        self._progress.ended(ended_runs[-1])
        return ended_runs

    def first(self) -> ScriptRun:
        """Run the script for the epochs that are observed."""
        upcoming = UpcomingRun(num_processes=self._counts[0], varies_batch=False, before=None, stop=None)
        limit_s = max(FIRST_RUN_SHARE * self._time_s, _MIN_RUN_S)
        return self._run(upcoming, "unmoved", limit_s=limit_s, stop=FIRST_RUN_STOP)[-1]

    def reversed(self, first_run: ScriptRun) -> ScriptRun | None:
        """Repeat the first run with sums that are rounded otherwise; None if there is no time."""
        if self._left_s < _MIN_RUN_S:
            self.skipped += 1
            return None
        upcoming = UpcomingRun(
            num_processes=first_run.num_processes, varies_batch=False, before=None, stop=None, reverses=True
        )
        # One that was not observed to its end is repeated as far as it came.
        is_whole = first_run.outcome is not RunOutcome.OUT_OF_TIME
        limit_s = self._left_s if is_whole else min(self._left_s, first_run.wall_s)
        (*_, run) = self._run(upcoming, "rounding", limit_s=limit_s, stop=FIRST_RUN_STOP, reverses=True)
        self.skipped += is_whole and run.outcome is RunOutcome.OUT_OF_TIME
        return run

    def chain(self, name: str, first_run: ScriptRun, *, varies_batch: bool) -> list[ScriptRun]:
        """Stop and resume the script as `first_run` allows."""
        stops = plan_stops(first_run, is_short=varies_batch)
        lack_of_memory = None if varies_batch else plan_lack_of_memory(first_run)
        counts = process_counts(self._counts, stops, repeats_first=not varies_batch)
        runs: list[ScriptRun] = []
        for number, (stop, count) in enumerate(zip(stops, counts, strict=False)):
            if self._left_s < _MIN_RUN_S:
                self.skipped += len(stops) - number
                break
            before = runs[-1] if runs else None
            upcoming = UpcomingRun(num_processes=count, varies_batch=varies_batch, before=before, stop=stop)
            runs += self._run(
                upcoming,
                name,
                number=number,
                limit_s=self._left_s,
                out_of_memory=lack_of_memory[1] if lack_of_memory and lack_of_memory[0] == number else None,
                repeats=not varies_batch and before is not None and before.num_processes == count,
            )
            if runs[-1].outcome is RunOutcome.OUT_OF_TIME:
                self.skipped += len(stops) - number
            if runs[-1].outcome is not RunOutcome.STOPPED:
                break
        return runs

    def regroups(self, first_run: ScriptRun) -> tuple[ScriptRun, ...]:
        """Let processes join and leave while the script trains, for half of the time that is left."""
        sizes, stops = sizes_of_regroups(self._counts), plan_stops(first_run)
        if sizes is None or not stops:
            return ()
        fewer, more = sizes
        regroups = plan_regroups(first_run, fewer=fewer, more=more)
        if self._left_s / 2 < _MIN_RUN_S:
            self.skipped += len(regroups)
            return ()
        upcoming = UpcomingRun(
            num_processes=fewer, varies_batch=False, before=None, stop=stops[-1], regroups=tuple(regroups)
        )
        runs = self._run(upcoming, "in-place", limit_s=self._left_s / 2)
        if runs[-1].outcome is RunOutcome.OUT_OF_TIME:
            self.skipped += len(regroups) - len(runs) + 1
        return runs


def autoscales(first_run: ScriptRun) -> bool:
    """Return whether the script's batch size may vary."""
    return any(event["max_batch_size"] is not None for event in first_run.of("autoscale"))


def asks_for_regroups(first_run: ScriptRun) -> bool:
    """Return whether the script asks to be moved in place, and nothing that it uses forbids that."""
    started = first_run.first("start")
    return bool(started and started["in_place"]) and first_run.first("cannot_regroup") is None


def has_failed(runs: Sequence[ScriptRun]) -> bool:
    """Return whether one of the runs failed or hung."""
    return any(run.outcome in (RunOutcome.FAILED, RunOutcome.HUNG) for run in runs)


def process_counts(
    counts: Sequence[int], stops: Sequence[Stop], *, repeats_first: bool = False
) -> Iterator[int]:
    """Yield the number of processes of each run, those in `counts` in turn.

    The run that executes the first code between two loops, where a validation is, has the most processes.
    With `repeats_first` the first two runs have the number of the run without moves: what differs then is
    due to the stop alone.
    """
    if repeats_first:
        begin = counts.index(max(counts))
        yield from (counts[0], counts[0])
        yield from itertools.islice(itertools.cycle(counts), begin, None)
    first = next((at for at, stop in enumerate(stops) if stop.moment is StopMoment.EPOCH_END), 0)
    begin = (counts.index(max(counts)) - first) % len(counts)
    yield from itertools.islice(itertools.cycle(counts), begin, None)
