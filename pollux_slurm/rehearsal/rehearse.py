"""A whole rehearsal: a first run without moves, then moves by restarts, then moves in place."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.agent.node.node_program import visible_gpus
from pollux_slurm.agent.rehearsal_protocol import Stop, StopMoment
from pollux_slurm.errors import UsageError
from pollux_slurm.rehearsal.script_run import Event, RunOutcome, ScriptRun, run_script
from pollux_slurm.rehearsal.stop_plan import (
    FIRST_RUN_STOP,
    plan_regroups,
    plan_stops,
    sizes_of_regroups,
)

# The first run gets at most this share of the time.
_FIRST_RUN_SHARE = 0.3
_MIN_RUN_S = 10.0
_CPU_PROCESSES = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalRuns:
    """All runs of a rehearsal.

    `fixed_batch_runs` begin with the first run, which is not moved. A script that does not call
    `autoscale_batch_size` has no `varying_batch_runs`, one that does not ask for it no `in_place_runs`: a
    training that was regrouped, a run for each generation of its processes. `skipped` counts planned stops
    that there was no time for.
    """

    command: tuple[str, ...]
    folder: Path
    processes: tuple[int, ...]
    num_gpus: int
    fixed_batch_runs: tuple[ScriptRun, ...]
    varying_batch_runs: tuple[ScriptRun, ...]
    in_place_runs: tuple[ScriptRun, ...]
    skipped: int
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
    started = time.monotonic()
    deadline = started + time_s

    def run_once(
        run: UpcomingRun, *, chain: str, number: int, limit_s: float, scouting: Stop | None = None
    ) -> tuple[ScriptRun, ...]:
        progress.begins(run)
        ended_runs = run_script(
            command,
            number=number,
            num_processes=run.num_processes,
            stop=scouting or run.stop,
            varies_batch=run.varies_batch,
            chain=folder / chain,
            environ=environ,
            limit_s=limit_s,
            progress=progress.event,
            raise_if_interrupted=raise_if_interrupted,
            regroups=run.regroups,
        )
        progress.ended(ended_runs[-1])
        return ended_runs

    (first_run,) = run_once(
        UpcomingRun(num_processes=counts[0], varies_batch=False, before=None, stop=None),
        chain="unmoved",
        number=0,
        limit_s=max(_FIRST_RUN_SHARE * time_s, _MIN_RUN_S),
        scouting=FIRST_RUN_STOP,
    )
    skipped = 0

    def run_chain(chain: str, *, varies_batch: bool) -> list[ScriptRun]:
        nonlocal skipped
        stops = plan_stops(first_run, is_short=varies_batch)
        runs: list[ScriptRun] = []
        for number, (stop, count) in enumerate(zip(stops, process_counts(counts, stops), strict=False)):
            left_s = deadline - time.monotonic()
            if left_s < _MIN_RUN_S:
                skipped += len(stops) - number
                break
            upcoming = UpcomingRun(
                num_processes=count,
                varies_batch=varies_batch,
                before=runs[-1] if runs else None,
                stop=stop,
            )
            runs += run_once(upcoming, chain=chain, number=number, limit_s=left_s)
            if runs[-1].outcome is RunOutcome.OUT_OF_TIME:
                skipped += len(stops) - number
            if runs[-1].outcome is not RunOutcome.STOPPED:
                break
        return runs

    def run_regroups() -> tuple[ScriptRun, ...]:
        nonlocal skipped
        sizes, stops = sizes_of_regroups(counts), plan_stops(first_run)
        if sizes is None or not stops:
            return ()
        fewer, more = sizes
        regroups = plan_regroups(first_run, fewer=fewer, more=more)
        left_s = deadline - time.monotonic()
        if left_s < _MIN_RUN_S:
            skipped += len(regroups)
            return ()
        upcoming = UpcomingRun(
            num_processes=fewer, varies_batch=False, before=None, stop=stops[-1], regroups=tuple(regroups)
        )
        runs = run_once(upcoming, chain="in-place", number=0, limit_s=left_s)
        if runs[-1].outcome is RunOutcome.OUT_OF_TIME:
            skipped += len(regroups) - len(runs) + 1
        return runs

    fixed_batch_runs, varying_batch_runs = [first_run], []
    in_place_runs: tuple[ScriptRun, ...] = ()
    if first_run.outcome in (RunOutcome.STOPPED, RunOutcome.FINISHED, RunOutcome.OUT_OF_TIME):
        fixed_batch_runs += run_chain("fixed-batch", varies_batch=False)
        if any(event["max_batch_size"] is not None for event in first_run.of("autoscale")):
            varying_batch_runs += run_chain("varying-batch", varies_batch=True)
        if asks_for_regroups(first_run) and not has_failed(fixed_batch_runs):
            in_place_runs = run_regroups()
    return RehearsalRuns(
        command=tuple(command),
        folder=folder,
        processes=counts,
        num_gpus=num_gpus,
        fixed_batch_runs=tuple(fixed_batch_runs),
        varying_batch_runs=tuple(varying_batch_runs),
        in_place_runs=in_place_runs,
        skipped=skipped,
        wall_s=time.monotonic() - started,
    )


def asks_for_regroups(first_run: ScriptRun) -> bool:
    """Return whether the script asks to be moved in place, and nothing that it uses forbids that."""
    started = first_run.first("start")
    return bool(started and started["in_place"]) and first_run.first("cannot_regroup") is None


def has_failed(runs: Sequence[ScriptRun]) -> bool:
    """Return whether one of the runs failed or hung."""
    return any(run.outcome in (RunOutcome.FAILED, RunOutcome.HUNG) for run in runs)


def process_counts(counts: Sequence[int], stops: Sequence[Stop]) -> Iterator[int]:
    """Yield the number of processes of each run, those in `counts` in turn.

    The run that executes the first code between two loops, where a validation is, has the most processes.
    """
    killed = [number for number, stop in enumerate(stops) if stop.moment is StopMoment.AFTER_LOOP]
    ended = [number for number, stop in enumerate(stops) if stop.moment is StopMoment.EPOCH_END]
    # After a kill at the end of a loop, the next run executes that code.
    first = killed[0] + 1 if killed else ended[0] if ended else 0
    begin = (counts.index(max(counts)) - first) % len(counts)
    return itertools.islice(itertools.cycle(counts), begin, None)
