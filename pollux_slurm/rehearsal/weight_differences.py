"""Findings from weights and schedules: of processes that differ, and of runs with moves and without."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.findings import CHANGES, LOCAL, VARIABLES, Finding, Level, listed
from pollux_slurm.rehearsal.lost_state import are_same
from pollux_slurm.rehearsal.script_run import Event, ScriptRun

_SAME_TRAINING = 1e-3
_RANDOM_LAYERS = ("Dropout", "BatchNorm", "RReLU")
_DRAWERS = {
    "script": "random numbers that the script draws while it trains",
    "model": "random numbers that the model draws",
    "dataset": "random numbers that the dataset draws (augmentation)",
}


def replicas_that_differ(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    apart: dict[str, str] = {}
    for run in runs:
        for snapshots in zip(
            *(run.of("snapshot", rank=rank) for rank in range(run.num_processes)), strict=False
        ):
            for name, numbers in snapshots[0]["models"].items():
                for rank, other in enumerate(snapshots[1:], start=1):
                    if not are_same(numbers, other["models"].get(name, numbers)):
                        apart.setdefault(name, f"processes 0 and {rank} of {run.num_processes}")
    if apart:
        yield Finding(
            level=Level.CHANGE,
            kind="replicas_differ",
            text=f"The weights of {listed(list(apart))} differ between {next(iter(apart.values()))}: only "
            "those of process 0 would be saved.",
            cure="Each gradient must go through the wrapped model: no forward through the inner module, no "
            "optimizer over its parameters that AdaptiveDataParallel was not given, no layer unfrozen after "
            "wrapping.",
            guide=CHANGES,
        )


def another_training(first_run: ScriptRun, held: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Compare, at the first batch of an epoch, runs that were moved with the one that was not."""
    unmoved = {event["epoch"]: event for event in first_run.of("snapshot") if _is_at_start(event)}
    pairs = [
        (unmoved[event["epoch"]], event)
        for run in held
        for event in filter(_is_at_start, run.of("snapshot"))
        if event["epoch"] in unmoved and event["epoch"] != min(unmoved)
    ]
    schedules: dict[str, str] = {}
    for reference, moved in pairs:
        for name, state in reference["objects"].items():
            other = moved["objects"].get(name)
            is_schedule = state["kind"] == "scheduler" and state["type"] != "ReduceLROnPlateau"
            if other and is_schedule and not are_same(state["numbers"], other["numbers"], _SAME_TRAINING):
                schedules.setdefault(name, f"`{name}` ({state['type']})")
    if schedules:
        yield Finding(
            level=Level.CHANGE,
            kind="schedule",
            text=f"{listed(list(schedules.values()))} {'stands' if len(schedules) == 1 else 'stand'} "
            "elsewhere after an epoch with moves than after one without.",
            cure="Give it to AdaptiveDataParallel, and step it equally often in each epoch.",
            guide=CHANGES,
        )
    yield from _other_weights(pairs, [first_run, *held])


def _other_weights(pairs: Sequence[tuple[Event, Event]], runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    apart: dict[str, float] = {}
    for reference, moved in pairs:
        for name, numbers in reference["models"].items():
            relative = _relative_distance(numbers, moved["models"].get(name, ()))
            if relative > _SAME_TRAINING:
                apart[name] = max(relative, apart.get(name, 0.0))
    if not apart:
        return
    text = (
        f"After an epoch with moves the weights of {listed(list(apart))} differ from those without by "
        f"{'up to ' if len(apart) > 1 else ''}{max(apart.values()):.1%}"
    )
    causes = _random_causes(pairs, runs)
    if causes:
        yield Finding(
            level=Level.NOTE,
            kind="weights",
            text=f"{text}, as may be with {listed(causes)}.",
            guide=LOCAL,
        )
        return
    has_workers = any(event["has_workers"] for run in runs for event in run.of("loop"))
    yield Finding(
        level=Level.LOOK,
        kind="weights",
        text=f"{text}. No random numbers were seen to be drawn"
        + (", but the loader's workers may: augmentation there explains it. Else " if has_workers else ": ")
        + "something that shapes the training is not in the checkpoint, or a high learning rate makes much "
        "of rounding.",
        guide=VARIABLES,
    )


def _random_causes(pairs: Sequence[tuple[Event, Event]], runs: Sequence[ScriptRun]) -> list[str]:
    layers = {name for _, moved in pairs for name in moved["layers"] if name.startswith(_RANDOM_LAYERS)}
    drawers = {event["who"] for run in runs for event in run.of("drew")}
    if any(not name.startswith("BatchNorm") for name in layers):
        # The layers' own.
        drawers.discard("model")
    return [*sorted(layers), *(words for who, words in _DRAWERS.items() if who in drawers)]


def _relative_distance(numbers: Sequence[float], moved: Sequence[float]) -> float:
    distance = math.dist(numbers, moved) if len(numbers) == len(moved) else math.inf
    return distance / max(math.hypot(*numbers), 1e-30)


def _is_at_start(event: Event) -> bool:
    return (event["moment"], event.get("position")) == ("epoch", 0)
