"""Findings about validation sums that each process computes of its share and that are never combined."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.findings import VARIABLES, Finding, Level
from pollux_slurm.rehearsal.runs.script_run import Event, ScriptRun
from pollux_slurm.text import some_of

_MOST_NAMED = 4


def unsynchronized_sums(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find such sums after loops of several processes over an adaptive loader without a training step.

    Sums that are combined in any way before the end of the epoch are correct. A loop after which the run was
    stopped shows nothing.
    """
    for run in runs:
        for at, event in enumerate(run.events[0] if run.num_processes > 1 else ()):
            if event["kind"] != "summed" or not _was_never_combined(run.events[0], at):
                continue
            shares = _differing_sums(run, event)
            if shares:
                variable = event["variable"]
                loader = event["loader"] if variable is None else f"`{variable}`"
                text = some_of([f"`{name}` ({words})" for name, words in shares.items()], _MOST_NAMED)
                yield Finding(
                    level=Level.LOOK,
                    kind="unshared_sums",
                    text=f"After the loop over {loader}, in which nothing is trained, each of "
                    f"{run.num_processes} processes has sums over its own share of the data, which are "
                    f"never combined: {text}. What is printed, saved or decided by them covers only "
                    "a part of the data, and differs between the processes.",
                    cure="Use a pollux_slurm.torch.Accumulator, and read it inside of synchronized(). Or "
                    "loop over an ordinary DataLoader, which gives each process all of the data.",
                    guide=VARIABLES,
                )
                return


def _was_never_combined(events: Sequence[Event], at: int) -> bool:
    """Tell whether the sums were not combined until the epoch ended or such a loop began again."""
    loop = (events[at]["loader"], events[at]["epoch"], events[at]["loop"])
    begins = [
        index
        for index, event in enumerate(events[:at])
        if event["kind"] == "loop" and (event["loader"], event["epoch"], event["loop"]) == loop
    ]
    for event in events[begins[-1] if begins else 0 :]:
        if event["kind"] == "combined":
            return False
        is_again = event["kind"] == "loop" and event["loader"] == loop[0] and event["loop"] != loop[2]
        if event["kind"] in ("epoch_end", "finished") or is_again:
            return True
    return False


def _differing_sums(run: ScriptRun, event: Event) -> dict[str, str]:
    """Return the sums that differ between the processes, or count each process's samples."""
    summed = [
        next((other for other in run.of("summed", rank=rank) if _is_same_loop(other, event)), None)
        for rank in range(run.num_processes)
    ]
    if None in summed:
        return {}
    all_sums = [one["sums"] for one in summed if one is not None]
    loops = (loop for loop in run.of("loop") if _is_same_loop(loop, event))
    length = next((loop["length"] for loop in loops), None)
    found: dict[str, str] = {}
    for name in all_sums[0]:
        parts = [sums[name] for sums in all_sums if name in sums]
        totals = [total for total, _ in parts]
        if len(parts) < len(all_sums):
            continue
        if length is not None and sum(count for _, count in parts) == length:
            found[_short(name)] = f"{parts[0][1]:.6g} of {length} samples in process 0"
        elif not all(math.isclose(total, totals[0], rel_tol=1e-6) for total in totals):
            found[_short(name)] = f"{totals[0]:.6g} in process 0, {totals[1]:.6g} in process 1"
    return found


def _is_same_loop(one: Event, other: Event) -> bool:
    return all(one[key] == other[key] for key in ("loader", "epoch", "loop"))


def _short(name: str) -> str:
    return name.partition(":")[2]
