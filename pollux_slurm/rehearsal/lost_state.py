"""Findings from what a script held before and after its moves: samples, states, variables."""

from __future__ import annotations

import itertools
import math
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
from pollux_slurm.rehearsal.sample_coverage import orders_that_differ, samples_amiss
from pollux_slurm.rehearsal.script_run import Event, ScriptRun

_SAME = 1e-5


def samples(chains: Sequence[Sequence[ScriptRun]]) -> Iterator[Finding]:
    """`chains` are the runs that go on from each other."""
    amiss: dict[str, None] = {}
    for runs in chains:
        for epoch, missed, twice in samples_amiss(runs):
            where = "" if epoch == NO_EPOCH else f" of epoch {epoch}"
            if missed:
                amiss[f"{missed} samples{where} were missed"] = None
            if twice:
                amiss[f"{twice} samples{where} were seen twice"] = None
    if amiss:
        yield Finding(
            level=Level.CHANGE,
            kind="samples",
            text=f"Over the moves {listed(list(amiss))}.",
            cure="Each loop over an AdaptiveDataLoader must be begun in the same order in each run, and go "
            "on to its end or to the same break.",
            guide=DATA,
        )
    epochs = sorted({epoch for runs in chains for epoch in orders_that_differ(runs)})
    if epochs:
        names = listed([str(epoch) for epoch in epochs if epoch != NO_EPOCH])
        where = "" if not names else f" of epoch{'s' * (len(epochs) > 1)} {names}"
        yield Finding(
            level=Level.CHANGE,
            kind="order",
            text=f"The samples{where} came in another order, or in another number, after a move.",
            cure="A dataset and a sampler of your own must be the same in each run and for each number of "
            "processes: the loader itself shares samples out.",
            guide=DATA,
        )


def _moves_within(runs: Sequence[ScriptRun]) -> Iterator[tuple[Event, Event]]:
    """Yield, for each move in mid-epoch, what the script held at its checkpoint and what it went on with."""
    for before, after in itertools.pairwise(runs):
        saved = [event for event in before.of("snapshot") if event["moment"] == "checkpoint"]
        went_on = [event for event in after.of("snapshot") if event["moment"] == "epoch"]
        if saved and went_on and saved[-1]["in_loop"] and saved[-1]["epoch"] == went_on[0]["epoch"]:
            yield saved[-1], went_on[0]


def lost_states(chains: Sequence[Sequence[ScriptRun]]) -> Iterator[Finding]:
    """`chains` are the runs that go on from each other."""
    lost: dict[str, Mapping[str, Any]] = {}
    for saved, went_on in (pair for runs in chains for pair in _moves_within(runs)):
        for name, state in saved["objects"].items():
            after = went_on["objects"].get(name)
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
    """Return the cure for a state that is in no checkpoint, and its place in the guide."""
    if state["kind"] != "module":
        return "Give it to AdaptiveDataParallel, beside the model.", CHANGES
    if is_average or state["type"] == "AveragedModel":
        return "Keep it in a State (pollux_slurm.torch.State) of your own.", AVERAGES
    return "Keep it in a State (pollux_slurm.torch.State) of your own, or train it wrapped.", VARIABLES


def lost_variables(first_run: ScriptRun, held: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find variables that stood, after a move, where the script's beginning had put them."""
    epochs = {event["epoch"]: event for event in first_run.of("snapshot") if event["moment"] == "epoch"}
    if not epochs:
        return
    fresh = next(iter(epochs.values()))["variables"]
    pairs = [(saved, went_on, "in mid-epoch") for saved, went_on in _moves_within(held)]
    for before, after in itertools.pairwise(held):
        went_on = next((event for event in after.of("snapshot") if event["moment"] == "epoch"), None)
        is_at_end = before.stop is not None and before.stop.moment is StopMoment.EPOCH_END
        if is_at_end and went_on is not None and went_on["epoch"] in epochs:
            pairs.append((epochs[went_on["epoch"]], went_on, "at an epoch's end"))
    lost: dict[str, str] = {}
    for saved, went_on in _moves_within(held):
        for name, words in saved["tensors"].items():
            now = went_on["tensors"].get(name)
            if now is not None and now != words:
                short = name.partition(":")[2]
                lost.setdefault(short, f"`{short}` ({words} before a move in mid-epoch, {now} after it)")
    for wanted, went_on, where in pairs:
        for name, words in wanted["variables"].items():
            now = went_on["variables"].get(name)
            if now is not None and now != words and now == fresh.get(name):
                short = name.partition(":")[2]
                # Several functions may hold one thing under one name (`self`).
                lost.setdefault(short, f"`{short}` ({words} before a move {where}, {now} after it)")
    if lost:
        yield Finding(
            level=Level.LOOK,
            kind="lost_variables",
            text=f"Variables of the script's own began anew: {', '.join(lost.values())}.",
            cure="Where they matter after a move, sum up in a pollux_slurm.torch.Accumulator or keep them in "
            "a State.",
            guide=VARIABLES,
        )


def are_same(one: Sequence[float], other: Sequence[float], tolerance: float = _SAME) -> bool:
    if len(one) != len(other):
        return False
    return all(
        math.isnan(a) == math.isnan(b)
        and (math.isnan(a) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance * 1e-2))
        for a, b in zip(one, other, strict=True)
    )
