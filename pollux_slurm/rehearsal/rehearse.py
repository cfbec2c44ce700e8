"""A whole rehearsal: a first look at the script's epochs, moves with its batch held, moves with it varied."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.agent.launch.step import visible_gpus
from pollux_slurm.agent.rehearsal_protocol import Moment, Stop
from pollux_slurm.errors import UsageError
from pollux_slurm.rehearsal.plan import SCOUTING, plan_stops
from pollux_slurm.rehearsal.playing import Event, Outcome, Played, play

# Of the time for all: a first run that takes longer has shown all that it shall.
_SCOUTING_SHARE = 0.3
_LEAST_S = 10.0
_CPU_PROCESSES = (1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """All runs of a rehearsal. `held` begins with the run without a move; a fixed batch has no `varied`.

    `skipped` counts planned stops that there was no time for.
    """

    command: tuple[str, ...]
    folder: Path
    processes: tuple[int, ...]
    num_gpus: int
    held: tuple[Played, ...]
    varied: tuple[Played, ...]
    skipped: int
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A run that begins. `before` is what it goes on from; `stop` is None where it is only watched."""

    num_processes: int
    varies_batch: bool
    before: Played | None
    stop: Stop | None


class Progress:
    """Is told of what happens. This one is not interested."""

    def begins(self, run: Coming) -> None:
        """A run begins."""

    def event(self, event: Event) -> None:
        """A run's rank 0 has told of something."""

    def ended(self, played: Played) -> None:
        """A run has ended."""


def require_command(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Raise `UsageError` where there is nothing that could be run."""
    if not command or shutil.which(command[0], path=environ.get("PATH")) is None:
        what = "no command to rehearse" if not command else f"{command[0]}: command not found"
        raise UsageError(f"{what}; example: pollux rehearse -- python train.py")
    if Path(command[0]).name == "pollux":
        raise UsageError(
            "give what stands behind `pollux run --`: the processes are started by the rehearsal"
        )


def rehearse(
    command: Sequence[str],
    *,
    environ: Mapping[str, str],
    folder: Path,
    time_s: float,
    processes: Sequence[int] | None,
    progress: Progress,
    heed: Callable[[], None] = lambda: None,
) -> Rehearsed:
    """Run and move `command` for about `time_s`; `processes` are the runs' in turn, None for what suits.

    `heed` is called now and then; where it raises, the processes are ended.
    """
    num_gpus = visible_gpus(environ)
    counts = tuple(processes or [n for n in _CPU_PROCESSES if n <= (num_gpus or _CPU_PROCESSES[-1])])
    started = time.monotonic()
    deadline = started + time_s

    def play_one(
        run: Coming, *, chain: str, number: int, limit_s: float, scouting: Stop | None = None
    ) -> Played:
        progress.begins(run)
        played = play(
            command,
            number=number,
            num_processes=run.num_processes,
            stop=scouting or run.stop,
            varies_batch=run.varies_batch,
            chain=folder / chain,
            environ=environ,
            limit_s=limit_s,
            progress=progress.event,
            heed=heed,
        )
        progress.ended(played)
        return played

    scouted = play_one(
        Coming(num_processes=counts[0], varies_batch=False, before=None, stop=None),
        chain="unmoved",
        number=0,
        limit_s=max(_SCOUTING_SHARE * time_s, _LEAST_S),
        scouting=SCOUTING,
    )
    skipped = 0

    def play_chain(chain: str, *, varies_batch: bool) -> list[Played]:
        nonlocal skipped
        stops = plan_stops(scouted, is_short=varies_batch)
        runs: list[Played] = []
        for number, (stop, count) in enumerate(zip(stops, in_turn(counts, stops), strict=False)):
            left_s = deadline - time.monotonic()
            if left_s < _LEAST_S:
                skipped += len(stops) - number
                break
            coming = Coming(
                num_processes=count,
                varies_batch=varies_batch,
                before=runs[-1] if runs else None,
                stop=stop,
            )
            runs.append(play_one(coming, chain=chain, number=number, limit_s=left_s))
            if runs[-1].outcome is Outcome.OUT_OF_TIME:
                skipped += len(stops) - number
            if runs[-1].outcome is not Outcome.STOPPED:
                break
        return runs

    held, varied = [scouted], []
    if scouted.outcome in (Outcome.STOPPED, Outcome.FINISHED, Outcome.OUT_OF_TIME):
        held += play_chain("held", varies_batch=False)
        if any(event["max_batch_size"] is not None for event in scouted.of("autoscale")):
            varied += play_chain("varied", varies_batch=True)
    return Rehearsed(
        command=tuple(command),
        folder=folder,
        processes=counts,
        num_gpus=num_gpus,
        held=tuple(held),
        varied=tuple(varied),
        skipped=skipped,
        wall_s=time.monotonic() - started,
    )


def in_turn(counts: Sequence[int], stops: Sequence[Stop]) -> Iterator[int]:
    """Yield the number of processes of each run, those in `counts` in turn.

    The most come to the first code between two loops, where a validation is: it shows what several do there.
    """
    killed = [number for number, stop in enumerate(stops) if stop.moment is Moment.AFTER_LOOP]
    ended = [number for number, stop in enumerate(stops) if stop.moment is Moment.EPOCH_END]
    # A run that is killed at a loop's end leaves that code to the next one.
    first = killed[0] + 1 if killed else ended[0] if ended else 0
    begin = (counts.index(max(counts)) - first) % len(counts)
    return itertools.islice(itertools.cycle(counts), begin, None)
