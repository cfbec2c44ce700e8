"""Findings about schedules, learning rates and weight decays that moves have changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.findings import CHANGES, Finding, Level, listed
from pollux_slurm.rehearsal.lost_state import are_same
from pollux_slurm.rehearsal.run_failures import after_move
from pollux_slurm.rehearsal.runs.script_run import ScriptRun

_TOLERANCE = 1e-3
_BY_LOSS = "ReduceLROnPlateau"
"""Its rates follow the losses, which chance changes, too."""


def schedules_that_differ(first_run: ScriptRun, chains: Sequence[Sequence[ScriptRun]]) -> Iterator[Finding]:
    """Compare schedulers at the first micro-batch of each epoch, and the rates of each step.

    All runs have a fixed batch. The runs of a chain resume from each other.
    """
    runs = [run for chain in chains for run in chain]
    reference = {event["epoch"]: event for event in first_run.of("snapshot") if event["moment"] == "epoch"}
    differing: dict[str, str] = {}
    for moved in (event for run in runs for event in run.of("snapshot") if event["moment"] == "epoch"):
        is_at_start = moved.get("position") == 0 and moved["epoch"] != min(reference, default=0)
        objects = reference[moved["epoch"]]["objects"] if moved["epoch"] in reference and is_at_start else {}
        for name, state in objects.items():
            other = moved["objects"].get(name)
            is_schedule = state["kind"] == "scheduler" and state["type"] != _BY_LOSS
            if other and is_schedule and not are_same(state["numbers"], other["numbers"], _TOLERANCE):
                differing.setdefault(name, f"`{name}` ({state['type']})")
    if differing:
        yield Finding(
            level=Level.CHANGE,
            kind="schedule",
            text=f"{listed(list(differing.values()))} {'differs' if len(differing) == 1 else 'differ'} "
            "after an epoch with moves from after one without.",
            cure="Pass it to AdaptiveDataParallel, and step it equally often in each epoch.",
            guide=CHANGES,
        )
        return
    states = [state for event in reference.values() for state in event["objects"].values()]
    if all(state["type"] != _BY_LOSS for state in states):
        yield from _rates_that_differ(first_run, chains)


def _rates_that_differ(first_run: ScriptRun, chains: Sequence[Sequence[ScriptRun]]) -> Iterator[Finding]:
    wanted = {event["step"]: event["rates"] for event in first_run.of("stepped")}
    differing: dict[str, str] = {}
    for chain in chains:
        for before, run in zip((None, *chain), chain, strict=False):
            for event in run.of("stepped"):
                known = wanted.get(event["step"], {})
                for name, rate in event["rates"].items():
                    value = known.get(name, rate)
                    if math.isclose(value, rate, rel_tol=_TOLERANCE, abs_tol=1e-12):
                        continue
                    if before is None:
                        # They change by themselves: with the time of day, say.
                        return
                    differing.setdefault(
                        name,
                        f"the {name} was {rate:.4g} at step {event['step']} {after_move(before, run)}, "
                        f"{value:.4g} without one",
                    )
    if differing:
        more = len(differing) - 1
        text = next(iter(differing.values()))
        yield Finding(
            level=Level.CHANGE,
            kind="rates",
            text=f"{text[0].upper()}{text[1:]}{f'; {more} more differ' if more else ''}.",
            cure="A rate that the script computes must follow pollux_slurm.torch.finished_steps() or the "
            "epoch, not a count of its own, which a move resets. A rate that it changes step by step belongs "
            "into an LR scheduler that is passed to AdaptiveDataParallel, or into a State.",
            guide=CHANGES,
        )
