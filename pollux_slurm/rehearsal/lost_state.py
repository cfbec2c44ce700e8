"""Findings about samples, states and variables that differ before and after a move."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH, StopMoment
from pollux_slurm.rehearsal.findings import (
    AVERAGES,
    CHANGES,
    DATA,
    VARIABLES,
    Finding,
    Level,
    is_or_are,
    listed,
)
from pollux_slurm.rehearsal.runs.script_run import Event, ScriptRun
from pollux_slurm.rehearsal.sample_coverage import orders_that_differ, wrong_sample_counts

_SAME = 1e-5

VariablesByPlace = Mapping[tuple[int, int], Mapping[str, str]]
"""By number of processes and rank: the variables that never change there, in no run."""


def wrong_samples(chains: Sequence[Sequence[ScriptRun]], *, moves: str = "moves") -> Iterator[Finding]:
    """Find samples that were missed, used twice or reordered. The runs of a chain resume from each other."""
    faults: dict[str, None] = {}
    for runs in chains:
        for epoch, missed, twice in wrong_sample_counts(runs):
            where = "" if epoch == NO_EPOCH else f" of epoch {epoch}"
            if missed:
                faults[f"{missed} samples{where} were missed"] = None
            if twice:
                faults[f"{twice} samples{where} were used twice"] = None
    if faults:
        yield Finding(
            level=Level.CHANGE,
            kind="samples",
            text=f"Over the {moves} {listed(list(faults))}.",
            cure="The loops over AdaptiveDataLoaders must begin in the same order in each run, and go on to "
            "their end or to the same break.",
            guide=DATA,
        )
    epochs = sorted({epoch for runs in chains for epoch in orders_that_differ(runs)})
    if epochs:
        names = listed([str(epoch) for epoch in epochs if epoch != NO_EPOCH])
        where = "" if not names else f" of epoch{'s' * (len(epochs) > 1)} {names}"
        yield Finding(
            level=Level.CHANGE,
            kind="order",
            text=f"The order or the number of the samples{where} changed after a move.",
            cure="Your dataset and sampler must be the same in each run and for each number of processes: "
            "the loader distributes the samples itself.",
            guide=DATA,
        )


def _moves_in_mid_epoch(runs: Sequence[ScriptRun]) -> Iterator[tuple[Event, Event]]:
    """Yield the snapshots at the checkpoint and after the resume of each move in mid-epoch."""
    for before, after in itertools.pairwise(runs):
        saved = [event for event in before.of("snapshot") if event["moment"] == "checkpoint"]
        resumed = [event for event in after.of("snapshot") if event["moment"] == "epoch"]
        if saved and resumed and saved[-1]["in_loop"] and saved[-1]["epoch"] == resumed[0]["epoch"]:
            yield saved[-1], resumed[0]


def lost_states(chains: Sequence[Sequence[ScriptRun]]) -> Iterator[Finding]:
    """Find states that are not in the checkpoint. The runs of a chain resume from each other."""
    lost: dict[str, Mapping[str, Any]] = {}
    for saved, resumed in (pair for runs in chains for pair in _moves_in_mid_epoch(runs)):
        for name, state in saved["objects"].items():
            after = resumed["objects"].get(name)
            if after is not None and not are_same(state["numbers"], after["numbers"]):
                lost.setdefault(name, state)
    averages = {
        name for runs in chains for run in runs for event in run.of("averaged") for name in event["names"]
    }
    by_cure: dict[tuple[str, str], list[str]] = {}
    for name, state in lost.items():
        cure_and_guide = _cure_of(state, is_average=name in averages)
        by_cure.setdefault(cure_and_guide, []).append(f"`{name}` ({state['type']})")
    for (cure, guide), names in by_cure.items():
        began = "it began" if len(names) == 1 else "they began"
        yield Finding(
            level=Level.CHANGE,
            kind="lost_state",
            text=f"{listed(names)} {is_or_are(names)} not in the checkpoint: after a move {began} anew.",
            cure=cure,
            guide=guide,
        )


def _cure_of(state: Mapping[str, Any], *, is_average: bool) -> tuple[str, str]:
    """Return the cure for a state that is in no checkpoint, and the place in the guide."""
    if state["kind"] != "module":
        return "Pass it to AdaptiveDataParallel, with the model.", CHANGES
    if is_average or state["type"] == "AveragedModel":
        return "Keep it in your own State (pollux_slurm.torch.State).", AVERAGES
    return "Keep it in your own State (pollux_slurm.torch.State), or wrap it if it is trained.", VARIABLES


def process_variables(runs: Sequence[ScriptRun]) -> VariablesByPlace:
    """Return the script's variables that depend on its rank and the number of processes alone.

    One that has several values for the same two is left out: training changes it, or the time of day.
    """
    values: dict[tuple[int, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        for rank in range(run.num_processes):
            for event in run.of("snapshot", rank=rank):
                for name, value in event["variables"].items():
                    values[run.num_processes, rank][name].add(value)
    changing = {name for seen in values.values() for name, texts in seen.items() if len(texts) > 1}
    return {
        place: {name: next(iter(texts)) for name, texts in seen.items() if name not in changing}
        for place, seen in values.items()
    }


def lost_variables(first_run: ScriptRun, moved_runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find the script's variables that had their initial value again after a move."""
    epochs = {event["epoch"]: event for event in first_run.of("snapshot") if event["moment"] == "epoch"}
    if not epochs:
        return
    fresh = next(iter(epochs.values()))["variables"]
    pairs = [(saved, resumed, "in mid-epoch") for saved, resumed in _moves_in_mid_epoch(moved_runs)]
    for before, after in itertools.pairwise(moved_runs):
        resumed = next((event for event in after.of("snapshot") if event["moment"] == "epoch"), None)
        is_at_end = before.stop is not None and before.stop.moment is StopMoment.EPOCH_END
        if is_at_end and resumed is not None and resumed["epoch"] in epochs:
            pairs.append((epochs[resumed["epoch"]], resumed, "at an epoch's end"))
    # These were not lost: the script has set them anew.
    of_place = {name for known in process_variables([first_run, *moved_runs]).values() for name in known}
    lost: dict[str, str] = {}
    for saved, resumed in _moves_in_mid_epoch(moved_runs):
        for name, text in saved["tensors"].items():
            now = resumed["tensors"].get(name)
            if now is not None and now != text:
                short = name.partition(":")[2]
                lost.setdefault(short, f"`{short}` ({text} before a move in mid-epoch, {now} after it)")
    for wanted, resumed, where in pairs:
        for name, text in wanted["variables"].items():
            now = resumed["variables"].get(name)
            if now is not None and now != text and now == fresh.get(name) and name not in of_place:
                short = name.partition(":")[2]
                # Several functions may have the same variable (`self`).
                lost.setdefault(short, f"`{short}` ({text} before a move {where}, {now} after it)")
    if lost:
        yield Finding(
            level=Level.LOOK,
            kind="lost_variables",
            text=f"Variables of the script were reset: {', '.join(_by_importance(lost))}.",
            cure="Where they matter after a move, keep sums in a pollux_slurm.torch.Accumulator and other "
            "values in a State.",
            guide=VARIABLES,
        )


def _by_importance(lost: Mapping[str, str]) -> list[str]:
    """Return the texts of variables, by name: what training may depend on first, and meters last."""
    return [text for _, text in sorted(lost.items(), key=lambda named: _rank(named[0]))]


def _rank(name: str) -> int:
    """Return 0 for a best value, a counter or a rate, 2 for a meter, and 1 for others."""
    words = {word for word in re.split(r"[\W_\d]+", name.lower()) if word}
    if words & _METERS and not words & _BESTS:
        return 2
    return 0 if words & (_BESTS | _COUNTERS | _RATES) else 1


_BESTS = {"best", "patience", "wait", "bad", "stale"}
_COUNTERS = {
    "step",
    "steps",
    "iter",
    "iters",
    "iteration",
    "iterations",
    "epoch",
    "updates",
    "it",
    "num",
    "n",
}
_RATES = {"lr", "rate", "decay", "beta", "alpha", "temperature", "temp", "tau", "scale", "warmup", "momentum"}
_METERS = {"loss", "losses", "acc", "accuracy", "correct", "total", "running", "sum", "avg", "average", "val"}
_METERS |= {"count", "meter", "time", "elapsed", "start", "tic", "t0", "metric", "metrics", "log", "history"}


def are_same(one: Sequence[float], other: Sequence[float], tolerance: float = _SAME) -> bool:
    if len(one) != len(other):
        return False
    return all(
        math.isnan(a) == math.isnan(b)
        and (math.isnan(a) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance * 1e-2))
        for a, b in zip(one, other, strict=True)
    )
