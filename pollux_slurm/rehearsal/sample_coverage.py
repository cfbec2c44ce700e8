"""Check that the runs of one chain train on each sample of an epoch exactly once, in the same order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.runs.script_run import Event, RunOutcome, ScriptRun

Loop = tuple[int, str, int]
"""Epoch, loader, and the loop's number in the epoch."""


def wrong_sample_counts(runs: Sequence[ScriptRun]) -> Iterator[tuple[int, int, int]]:
    """Yield (epoch, samples missed, samples used twice) of each ended loop in which either is not 0.

    What a run did after its last checkpoint is lost, and does not count.
    """
    consumed: dict[Loop, list[tuple[int, int]]] = defaultdict(list)
    ended: dict[Loop, None] = {}
    loops: dict[Loop, Event] = {}
    for run in runs:
        for rank in range(run.num_processes):
            for event in _counted(run, rank):
                if event["kind"] == "micro_batch":
                    consumed[_loop(event)].append((event["start"], event["size"]))
        loops |= {_loop(event): event for event in run.of("loop")}
        ended |= dict.fromkeys(_loop(event) for event in run.of("loop_end"))
    for loop in ended:
        if loop not in loops:
            continue
        end, missed, twice = 0, 0, 0
        for start, size in sorted(consumed[loop]):
            missed += max(start - end, 0)
            twice += max(min(end, start + size) - start, 0)
            end = max(end, start + size)
        length = loops[loop]["length"]
        rest = 0 if length is None else length - end
        # A dropped rest is smaller than the batch size at that time, which is not known here.
        missed += 0 if loops[loop]["drops_last"] else rest
        if missed or twice:
            yield loop[0], missed, twice


def orders_that_differ(runs: Sequence[ScriptRun]) -> Iterator[int]:
    """Yield the epochs in which the order of a loop's samples differs between runs."""
    orders: dict[Loop, set[tuple[str | None, int | None]]] = defaultdict(set)
    for run in runs:
        for event in run.of("loop"):
            orders[_loop(event)].add((event["order"], event["length"]))
    yield from sorted({loop[0] for loop, known in orders.items() if len(known) > 1})


def _counted(run: ScriptRun, rank: int) -> tuple[Event, ...]:
    """Return a rank's events; for a run that others go on from, only those before its last checkpoint."""
    events = run.events[rank]
    if run.outcome not in (RunOutcome.STOPPED, RunOutcome.OUT_OF_MEMORY):
        return events
    kept = [at for at, event in enumerate(events) if event["kind"] in ("checkpoint", "states_copied")]
    return events[: kept[-1]] if kept else ()


def _loop(event: Event) -> Loop:
    return event["epoch"], event["loader"], event["loop"]
