"""Findings about weights and schedules that differ between processes or by moves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.findings import CHANGES, LOCAL, VARIABLES, Finding, Level, listed
from pollux_slurm.rehearsal.lost_state import are_same
from pollux_slurm.rehearsal.script_run import Event, ScriptRun

_TOLERANCE = 1e-3
_RANDOM_LAYERS = ("Dropout", "BatchNorm", "RReLU")
_RANDOM_SOURCES = {
    "script": "random numbers that the script draws while it trains",
    "model": "random numbers that the model draws",
    "dataset": "random numbers that the dataset draws (augmentation)",
}


def replicas_that_differ(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find models whose weights differ between the processes of a run."""
    differing: dict[str, str] = {}
    for run in runs:
        for snapshots in zip(
            *(run.of("snapshot", rank=rank) for rank in range(run.num_processes)), strict=False
        ):
            for name, numbers in snapshots[0]["models"].items():
                for rank, other in enumerate(snapshots[1:], start=1):
                    if not are_same(numbers, other["models"].get(name, numbers)):
                        differing.setdefault(name, f"processes 0 and {rank} of {run.num_processes}")
    if differing:
        yield Finding(
            level=Level.CHANGE,
            kind="replicas_differ",
            text=f"The weights of {listed(list(differing))} differ between "
            f"{next(iter(differing.values()))}: only those of process 0 would be saved.",
            cure="Every forward pass must go through the wrapped model. Every optimizer of its parameters "
            "must be passed to AdaptiveDataParallel. No layer may be unfrozen after wrapping.",
            guide=CHANGES,
        )


def training_that_differs(
    first_run: ScriptRun, moved_runs: Sequence[ScriptRun], *, moves: str = "moves"
) -> Iterator[Finding]:
    """Compare moved runs with the first run, at the first micro-batch of each epoch."""
    reference_by_epoch = {event["epoch"]: event for event in first_run.of("snapshot") if _is_at_start(event)}
    pairs = [
        (reference_by_epoch[event["epoch"]], event)
        for run in moved_runs
        for event in filter(_is_at_start, run.of("snapshot"))
        if event["epoch"] in reference_by_epoch and event["epoch"] != min(reference_by_epoch)
    ]
    schedules: dict[str, str] = {}
    for reference, moved in pairs:
        for name, state in reference["objects"].items():
            other = moved["objects"].get(name)
            is_schedule = state["kind"] == "scheduler" and state["type"] != "ReduceLROnPlateau"
            if other and is_schedule and not are_same(state["numbers"], other["numbers"], _TOLERANCE):
                schedules.setdefault(name, f"`{name}` ({state['type']})")
    if schedules:
        yield Finding(
            level=Level.CHANGE,
            kind="schedule",
            text=f"{listed(list(schedules.values()))} {'differs' if len(schedules) == 1 else 'differ'} "
            f"after an epoch with {moves} from after one without.",
            cure="Pass it to AdaptiveDataParallel, and step it equally often in each epoch.",
            guide=CHANGES,
        )
    yield from _other_weights(pairs, [first_run, *moved_runs], moves)


def _other_weights(
    pairs: Sequence[tuple[Event, Event]], runs: Sequence[ScriptRun], moves: str
) -> Iterator[Finding]:
    differing: dict[str, float] = {}
    for reference, moved in pairs:
        for name, numbers in reference["models"].items():
            relative = _relative_distance(numbers, moved["models"].get(name, ()))
            if relative > _TOLERANCE:
                differing[name] = max(relative, differing.get(name, 0.0))
    if not differing:
        return
    text = (
        f"After an epoch with {moves} the weights of {listed(list(differing))} differ from those without by "
        f"{'up to ' if len(differing) > 1 else ''}{max(differing.values()):.1%}"
    )
    causes = _random_causes(pairs, runs)
    if causes:
        yield Finding(
            level=Level.NOTE,
            kind="weights",
            text=f"{text}. Possible reasons: {listed(causes)}.",
            guide=LOCAL,
        )
        return
    has_workers = any(event["has_workers"] for run in runs for event in run.of("loop"))
    yield Finding(
        level=Level.LOOK,
        kind="weights",
        text=f"{text}. The script, the model and the dataset drew no random numbers"
        + (", but the loader's workers may: augmentation there explains it. Else " if has_workers else ": ")
        + "something that affects the training is not in the checkpoint, or a high learning rate amplifies "
        "rounding.",
        guide=VARIABLES,
    )


def _random_causes(pairs: Sequence[tuple[Event, Event]], runs: Sequence[ScriptRun]) -> list[str]:
    layers = {name for _, moved in pairs for name in moved["layers"] if name.startswith(_RANDOM_LAYERS)}
    sources = {event["who"] for run in runs for event in run.of("drew")}
    if any(not name.startswith("BatchNorm") for name in layers):
        # These are the layers' random numbers.
        sources.discard("model")
    return [*sorted(layers), *(words for who, words in _RANDOM_SOURCES.items() if who in sources)]


def _relative_distance(numbers: Sequence[float], moved: Sequence[float]) -> float:
    distance = math.dist(numbers, moved) if len(numbers) == len(moved) else math.inf
    return distance / max(math.hypot(*numbers), 1e-30)


def _is_at_start(event: Event) -> bool:
    return (event["moment"], event.get("position")) == ("epoch", 0)
