"""Sums over a validation of which each process has its share, and that nothing brings together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.findings import VARIABLES, Finding, Level
from pollux_slurm.rehearsal.script_run import Event, ScriptRun

_MOST_NAMED = 4


def unshared_sums(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find them where several processes looped over an adaptive loader without a step of training.

    Sums that were brought together, by whatever means, before the epoch ended are sound. A loop after which
    the run was stopped shows nothing.
    """
    for run in runs:
        for at, event in enumerate(run.events[0] if run.num_processes > 1 else ()):
            if event["kind"] != "summed" or not _was_left_alone(run.events[0], at):
                continue
            shares = _shares(run, event)
            if shares:
                variable = event["variable"]
                loader = event["loader"] if variable is None else f"`{variable}`"
                text = ", ".join(f"`{name}` ({words})" for name, words in list(shares.items())[:_MOST_NAMED])
                more = f" and {len(shares) - _MOST_NAMED} more" * (len(shares) > _MOST_NAMED)
                yield Finding(
                    level=Level.LOOK,
                    kind="unshared_sums",
                    text=f"After the loop over {loader}, in which nothing is trained, each of "
                    f"{run.num_processes} processes has the sums of its own share, and nothing brings them "
                    f"together: {text}{more}. What is printed, saved or decided by them is that of a part "
                    "of the data, and differs between the processes.",
                    cure="Sum up in a pollux_slurm.torch.Accumulator, and read it inside of synchronized(); "
                    "or loop over an ordinary DataLoader, which gives each process all of the data.",
                    guide=VARIABLES,
                )
                return


def _was_left_alone(events: Sequence[Event], at: int) -> bool:
    """Whether the epoch went on to its end (or to such a loop again) without any combining."""
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


def _shares(run: ScriptRun, event: Event) -> dict[str, str]:
    """Return the sums that differ between the processes, or add up to the number of samples."""
    told = [
        next((other for other in run.of("summed", rank=rank) if _is_same_loop(other, event)), None)
        for rank in range(run.num_processes)
    ]
    if None in told:
        return {}
    every = [one["sums"] for one in told if one is not None]
    loops = (loop for loop in run.of("loop") if _is_same_loop(loop, event))
    length = next((loop["length"] for loop in loops), None)
    found: dict[str, str] = {}
    for name in every[0]:
        parts = [sums[name] for sums in every if name in sums]
        totals = [total for total, _ in parts]
        if len(parts) < len(every):
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
