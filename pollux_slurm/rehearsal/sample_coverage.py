"""Which samples the runs of one chain have trained on: each of an epoch exactly once, or it is said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.script_run import Event, RunOutcome, ScriptRun

Loop = tuple[int, str, int]
"""Epoch, loader, and the loop's number in the epoch."""


def samples_amiss(runs: Sequence[ScriptRun]) -> Iterator[tuple[int, int, int]]:
    """Yield the epoch, the samples missed and those seen twice, of each loop that ended and is not whole.

    What a run did behind its last checkpoint is not in the model that goes on, and does not count.
    """
    handed: dict[Loop, list[tuple[int, int]]] = defaultdict(list)
    ended: dict[Loop, None] = {}
    told: dict[Loop, Event] = {}
    for run in runs:
        for rank in range(run.num_processes):
            for event in _counted(run, rank):
                if event["kind"] == "micro_batch":
                    handed[_loop(event)].append((event["start"], event["size"]))
        told |= {_loop(event): event for event in run.of("loop")}
        ended |= dict.fromkeys(_loop(event) for event in run.of("loop_end"))
    for loop in ended:
        if loop not in told:
            continue
        end, missed, twice = 0, 0, 0
        for start, size in sorted(handed[loop]):
            missed += max(start - end, 0)
            twice += max(min(end, start + size) - start, 0)
            end = max(end, start + size)
        length = told[loop]["length"]
        rest = 0 if length is None else length - end
        # The rest that is dropped is smaller than the batch in use, which no batch size bounds from here.
        missed += 0 if told[loop]["drops_last"] else rest
        if missed or twice:
            yield loop[0], missed, twice


def orders_that_differ(runs: Sequence[ScriptRun]) -> Iterator[int]:
    """Yield the epochs in which a loop had another order of samples in one run than in another."""
    orders: dict[Loop, set[tuple[str | None, int | None]]] = defaultdict(set)
    for run in runs:
        for event in run.of("loop"):
            orders[_loop(event)].add((event["order"], event["length"]))
    yield from sorted({loop[0] for loop, known in orders.items() if len(known) > 1})


def _counted(run: ScriptRun, rank: int) -> tuple[Event, ...]:
    """Return a rank's events, of a run that was stopped up to its last checkpoint."""
    events = run.events[rank]
    if run.outcome is not RunOutcome.STOPPED:
        return events
    kept = [at for at, event in enumerate(events) if event["kind"] in ("checkpoint", "states_copied")]
    return events[: kept[-1]] if kept else ()


def _loop(event: Event) -> Loop:
    return event["epoch"], event["loader"], event["loop"]
