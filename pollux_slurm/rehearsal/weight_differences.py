"""Findings about weights that differ between processes, or by moves.

Weights are compared by the number of the step. What chance and rounding alone change is measured on the same
script: two runs without a move until the first stop, and, where it matters, a run that adds up in another
order. A move may change no more than a few times that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pollux_slurm.rehearsal.findings import CHANGES, LOCAL, SPLITS, VARIABLES, Finding, Level, listed
from pollux_slurm.rehearsal.lost_state import are_same
from pollux_slurm.rehearsal.run_failures import after_move, caught_lack_of_memory
from pollux_slurm.rehearsal.runs.script_run import ScriptRun

_MARGIN = 10.0
_ON_CPU, _ON_GPU, _OF_LOW_PRECISION = 1e-5, 1e-3, 1e-2
_NOTED = 1e-3
_RANDOM_LAYERS = ("Dropout", "AlphaDropout", "FeatureAlphaDropout", "RReLU")
_RANDOM_SOURCES = {
    "script": "random numbers that the script draws while it trains",
    "model": "random numbers that the model draws",
    "dataset": "random numbers that the dataset draws (augmentation)",
    "workers": "random numbers that the loader's workers draw (augmentation)",
}

Weights = Mapping[tuple[str, int], Mapping[str, Sequence[float]]]
"""By moment and number of the step, then by model: numbers of its weights."""


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


def depends_on_shape(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find what the log says that splits of a batch, or another number of processes, change."""
    for text in dict.fromkeys(event["text"] for run in runs for event in run.of("depends_on_shape")):
        yield Finding(
            level=Level.LOOK,
            kind="depends_on_shape",
            text=f"{text[0].upper()}{text[1:]}.",
            guide=SPLITS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The largest relative difference of a run's weights from those without moves.

    `is_repeated`: only the stop and the restart may have caused it, since all else was as without them.
    """

    size: float
    models: tuple[str, ...]
    before: ScriptRun
    run: ScriptRun
    is_repeated: bool


def needs_rounding(
    first_run: ScriptRun, moved_runs: Sequence[ScriptRun], in_place: Sequence[ScriptRun]
) -> bool:
    """Return whether it depends on the rounding what the weights of the runs say."""
    found = training_that_differs(first_run, moved_runs, in_place)
    has_draws = _draws([first_run, *moved_runs]) & {"model", "script"}
    return not has_draws and any(finding.level is Level.CHANGE for finding in found)


def training_that_differs(
    first_run: ScriptRun,
    moved_runs: Sequence[ScriptRun],
    in_place: Sequence[ScriptRun] = (),
    *,
    rounding_run: ScriptRun | None = None,
    is_measured: bool = True,
) -> Iterator[Finding]:
    """Compare the weights of moved runs with those of the first run.

    `is_measured` is False where a `rounding_run` was needed and there was no time for it.
    """
    wanted = _weights(first_run)
    by_chance = _distance(wanted, _weights(moved_runs[0])) if _is_unmoved(first_run, moved_runs) else 0.0
    by_rounding = 0.0 if rounding_run is None else _distance(wanted, _weights(rounding_run))
    explained = max(by_chance, by_rounding)
    bound = max(_floor(first_run), _MARGIN * explained)
    found = [
        difference
        for chain in (moved_runs, in_place)
        for difference in _differences(wanted, chain)
        if difference.size > _floor(first_run)
    ]
    level = Level.CHANGE if is_measured else Level.LOOK
    for difference in found:
        if difference.is_repeated and difference.size > bound and not _reads_random_stream(first_run):
            yield _by_restart(difference, explained, level)
            return
    causes = _random_causes([first_run, *moved_runs])
    large = [difference for difference in found if difference.size > bound]
    if large and not causes:
        yield _by_processes(large, explained, level)
        return
    largest = max(found, key=lambda difference: difference.size, default=None)
    if largest is not None and largest.size > _NOTED:
        reasons = list(causes)
        if by_chance > _floor(first_run):
            reasons.append(f"two runs without a move differ by {by_chance:.2%} (seed all random generators)")
        if by_rounding > _floor(first_run):
            reasons.append(f"rounding alone changes them by {by_rounding:.2%}")
        yield Finding(
            level=Level.NOTE,
            kind="weights",
            text=f"{_what(largest)}. Possible reasons: {listed(reasons)}.",
            guide=LOCAL,
        )


def _by_restart(difference: Difference, explained: float, level: Level) -> Finding:
    return Finding(
        level=level,
        kind="weights",
        text=f"After a stop and a restart with as many processes, the same batches and the same random "
        f"numbers, {_size(difference)}; {_rounding(explained, level)}.",
        cure="Something that the training depends on is not in the checkpoint: keep counts, weights of "
        "losses and what goes from batch to batch in a pollux_slurm.torch.State.",
        guide=VARIABLES,
    )


def _by_processes(large: Sequence[Difference], explained: float, level: Level) -> Finding:
    most = max(difference.size for difference in large)
    later = "" if most == large[0].size else f", later by up to {most:.1%}"
    return Finding(
        level=level,
        kind="weights",
        text=f"{_what(large[0])}{later}. No random numbers were drawn; {_rounding(explained, level)}.",
        cure="Something follows the number of processes or the size of a micro-batch (`batch_size // "
        "world_size`, a loss that is a sum or compares a batch's examples), or is not in the checkpoint: "
        "keep what goes from batch to batch in a pollux_slurm.torch.State.",
        guide=VARIABLES,
    )


def _what(difference: Difference) -> str:
    moved = after_move(difference.before, difference.run)
    return f"{moved[0].upper()}{moved[1:]} {_size(difference)}"


def _size(difference: Difference) -> str:
    return (
        f"the weights of {listed(difference.models)} differ from those without moves by {difference.size:.1%}"
    )


def _rounding(explained: float, level: Level) -> str:
    if level is Level.LOOK:
        return "there was no time to measure how much of it is rounding"
    return f"rounding explains {explained:.1e}"


def _differences(wanted: Weights, chain: Sequence[ScriptRun]) -> Iterator[Difference]:
    """Yield the difference of each run but the first, which was not moved."""
    for number, (before, run) in enumerate(itertools.pairwise(chain)):
        if caught_lack_of_memory(run):
            return
        sizes = _distances(wanted, _weights(run))
        largest = max(sizes.values(), default=0.0)
        is_repeated = (
            number == 0
            and before.num_processes == run.num_processes
            and run.first("random_restored") is not None
        )
        yield Difference(
            size=largest,
            models=tuple(sorted(name for name, size in sizes.items() if size > largest / _MARGIN)),
            before=before,
            run=run,
            is_repeated=is_repeated,
        )


def _weights(run: ScriptRun) -> Weights:
    found = {("step", event["step"]): event["models"] for event in run.of("stepped") if event["models"]}
    for event in run.of("snapshot"):
        if event["moment"] == "epoch" and event["position"] == 0:
            # Code between the epochs may have changed them.
            found["epoch", event["step"]] = event["models"]
        elif event["moment"] == "checkpoint" and event["in_loop"]:
            found.setdefault(("step", event["step"]), event["models"])
    return found


def _distances(wanted: Weights, seen: Weights) -> dict[str, float]:
    """Return the largest relative distance of each model's weights, at the steps that both have."""
    sizes: dict[str, float] = {}
    for moment in wanted.keys() & seen.keys():
        for name in wanted[moment].keys() & seen[moment].keys():
            size = _relative_distance(wanted[moment][name], seen[moment][name])
            sizes[name] = max(size, sizes.get(name, 0.0))
    return sizes


def _distance(wanted: Weights, seen: Weights) -> float:
    return max(_distances(wanted, seen).values(), default=0.0)


def _relative_distance(numbers: Sequence[float], moved: Sequence[float]) -> float:
    if len(numbers) != len(moved):
        return math.inf
    finite = [math.isfinite(number) for number in (*numbers, *moved)]
    if not all(finite):
        return 0.0 if [*map(str, numbers)] == [*map(str, moved)] else math.inf
    return math.dist(numbers, moved) / max(math.hypot(*numbers), 1e-30)


def _is_unmoved(first_run: ScriptRun, moved_runs: Sequence[ScriptRun]) -> bool:
    return bool(moved_runs) and moved_runs[0].num_processes == first_run.num_processes


def _floor(first_run: ScriptRun) -> float:
    """Return the difference that means nothing, by the precision of what is computed."""
    precisions = {name for event in first_run.of("snapshot") for name in event["precisions"]}
    if any("float16" in name or "float8" in name for name in precisions):
        return _OF_LOW_PRECISION
    start = first_run.first("start")
    return _ON_GPU if start is not None and start["backend"] == "nccl" else _ON_CPU


def _reads_random_stream(first_run: ScriptRun) -> bool:
    """Return whether random numbers are drawn in a stream, which is read again after a restart."""
    is_stream = any(event["order"] is None for event in first_run.of("loop"))
    return is_stream and bool(_draws([first_run]) & {"dataset", "workers"})


def _draws(runs: Sequence[ScriptRun]) -> set[str]:
    return {
        event["who"]
        for run in runs
        for rank in range(run.num_processes)
        for event in run.of("drew", rank=rank)
    }


def _random_causes(runs: Sequence[ScriptRun]) -> list[str]:
    """Return why another number of processes trains otherwise: random numbers, and BatchNorm."""
    layers = {name for run in runs for event in run.of("snapshot") for name in event["layers"]}
    sources = _draws(runs)
    norms = sorted(name for name in layers if name.startswith("BatchNorm"))
    drops = sorted(name for name in layers if name.startswith(_RANDOM_LAYERS) and "model" in sources)
    if drops:
        # These are the layers' random numbers.
        sources.discard("model")
    return [*norms, *drops, *(words for who, words in _RANDOM_SOURCES.items() if who in sources)]
