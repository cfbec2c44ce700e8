"""Findings from what a script held before and after its moves: samples, states, variables, weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from pollux_slurm.agent.rehearsing import Moment
from pollux_slurm.rehearsal.coverage import orders_that_differ, samples_amiss
from pollux_slurm.rehearsal.findings import CHANGES, DATA, LOCAL, STATES, VARIABLES, Finding, Level
from pollux_slurm.rehearsal.plan import OUTSIDE
from pollux_slurm.rehearsal.playing import Event, Played

_SAME = 1e-5
_SAME_TRAINING = 1e-3
_RANDOM_LAYERS = ("Dropout", "BatchNorm", "RReLU")


def replicas_that_differ(runs: Sequence[Played]) -> Iterator[Finding]:
    for run in runs:
        for snapshots in zip(
            *(run.of("snapshot", rank=rank) for rank in range(run.num_processes)), strict=False
        ):
            for name, numbers in snapshots[0]["models"].items():
                for rank, other in enumerate(snapshots[1:], start=1):
                    if _are_same(numbers, other["models"].get(name, numbers)):
                        continue
                    yield Finding(
                        level=Level.CHANGE,
                        kind="replicas_differ",
                        text=f"The weights of {name} differ between processes 0 and {rank} of "
                        f"{run.num_processes}: only those of process 0 would be saved.",
                        cure="Each gradient must go through the wrapped model: no forward through the inner "
                        "module, no optimizer over its parameters that AdaptiveDataParallel was not given, "
                        "no layer unfrozen after wrapping.",
                        guide=CHANGES,
                    )
                    return


def samples(runs: Sequence[Played]) -> Iterator[Finding]:
    for epoch, missed, twice in samples_amiss(runs):
        where = "" if epoch == OUTSIDE else f" of epoch {epoch}"
        parts = [f"{missed} samples{where} were missed"] * (missed > 0)
        parts += [f"{twice} samples{where} were seen twice"] * (twice > 0)
        yield Finding(
            level=Level.CHANGE,
            kind="samples",
            text=f"Over the moves {' and '.join(parts)}.",
            cure="Each loop over an AdaptiveDataLoader must be begun in the same order in each run, and go "
            "on to its end or to the same break.",
            guide=DATA,
        )
    for epoch in orders_that_differ(runs):
        yield Finding(
            level=Level.CHANGE,
            kind="order",
            text=f"The samples of epoch {epoch} came in another order, or in another number, after a move.",
            cure="A dataset and a sampler of your own must be the same in each run and for each number of "
            "processes: the loader itself shares samples out.",
            guide=DATA,
        )


def _moves_within(runs: Sequence[Played]) -> Iterator[tuple[Event, Event]]:
    """Yield, for each move in mid-epoch, what the script held at its checkpoint and what it went on with."""
    for before, after in itertools.pairwise(runs):
        saved = [event for event in before.of("snapshot") if event["moment"] == "checkpoint"]
        went_on = [event for event in after.of("snapshot") if event["moment"] == "epoch"]
        if saved and went_on and saved[-1]["in_loop"] and saved[-1]["epoch"] == went_on[0]["epoch"]:
            yield saved[-1], went_on[0]


def lost_states(runs: Sequence[Played]) -> Iterator[Finding]:
    for saved, went_on in _moves_within(runs):
        for name, state in saved["objects"].items():
            after = went_on["objects"].get(name)
            if after is None or _are_same(state["numbers"], after["numbers"]):
                continue
            cure = "Give it to AdaptiveDataParallel, beside the model."
            if state["kind"] == "module":
                cure = "Keep it in a State (pollux_slurm.torch.State) of your own, or train it wrapped."
            yield Finding(
                level=Level.CHANGE,
                kind="lost_state",
                text=f"`{name}` ({state['type']}) is not in the checkpoint: after a move it began anew.",
                cure=cure,
                guide=STATES,
            )


def lost_variables(scouted: Played, held: Sequence[Played]) -> Iterator[Finding]:
    """Find variables that stood, after a move, where the script's beginning had put them."""
    epochs = {event["epoch"]: event for event in scouted.of("snapshot") if event["moment"] == "epoch"}
    if not epochs:
        return
    fresh = next(iter(epochs.values()))["variables"]
    pairs = [(saved, went_on, "in mid-epoch") for saved, went_on in _moves_within(held)]
    for before, after in itertools.pairwise(held):
        went_on = next((event for event in after.of("snapshot") if event["moment"] == "epoch"), None)
        is_at_end = before.stop is not None and before.stop.moment is Moment.EPOCH_END
        if is_at_end and went_on is not None and went_on["epoch"] in epochs:
            pairs.append((epochs[went_on["epoch"]], went_on, "at an epoch's end"))
    lost: dict[str, str] = {}
    for wanted, went_on, where in pairs:
        for name, words in wanted["variables"].items():
            now = went_on["variables"].get(name)
            if now is not None and now != words and now == fresh.get(name):
                short = name.partition(":")[2]
                lost.setdefault(name, f"`{short}` ({words} before a move {where}, {now} after it)")
    if lost:
        yield Finding(
            level=Level.LOOK,
            kind="lost_variables",
            text=f"Variables of the script's own began anew: {', '.join(lost.values())}.",
            cure="Where they matter after a move, sum up in a pollux_slurm.torch.Accumulator or keep them in "
            "a State.",
            guide=VARIABLES,
        )


def another_training(scouted: Played, held: Sequence[Played]) -> Iterator[Finding]:
    """Compare, at the first batch of an epoch, runs that were moved with the one that was not."""
    unmoved = {event["epoch"]: event for event in scouted.of("snapshot") if _is_at_start(event)}
    for run in held:
        for event in filter(_is_at_start, run.of("snapshot")):
            reference = unmoved.get(event["epoch"])
            if reference is None or event["epoch"] == min(unmoved):
                continue
            for name, state in reference["objects"].items():
                moved = event["objects"].get(name)
                is_schedule = state["kind"] == "scheduler" and state["type"] != "ReduceLROnPlateau"
                if (
                    moved
                    and is_schedule
                    and not _are_same(state["numbers"], moved["numbers"], _SAME_TRAINING)
                ):
                    yield Finding(
                        level=Level.CHANGE,
                        kind="schedule",
                        text=f"`{name}` ({state['type']}) stands elsewhere after an epoch with moves than "
                        "after one without.",
                        cure="Give it to AdaptiveDataParallel, and step it equally often in each epoch.",
                        guide=CHANGES,
                    )
            yield from _other_weights(reference, event)


def _other_weights(reference: Event, event: Event) -> Iterator[Finding]:
    layers = [name for name in event["layers"] if name.startswith(_RANDOM_LAYERS)]
    for name, numbers in reference["models"].items():
        moved = event["models"].get(name, ())
        distance = math.dist(numbers, moved) if len(numbers) == len(moved) else math.inf
        relative = distance / max(math.hypot(*numbers), 1e-30)
        if relative <= _SAME_TRAINING:
            continue
        text = f"After an epoch with moves the weights of {name} differ from those without by {relative:.1%}"
        if layers:
            yield Finding(
                level=Level.NOTE,
                kind="weights",
                text=f"{text}, as may be with {' and '.join(layers)}.",
                guide=LOCAL,
            )
        else:
            yield Finding(
                level=Level.LOOK,
                kind="weights",
                text=f"{text}. Augmentation at random explains it; if there is none, something that shapes "
                "the training is not in the checkpoint.",
                guide=LOCAL,
            )
        return


def _is_at_start(event: Event) -> bool:
    return (event["moment"], event.get("position")) == ("epoch", 0)


def _are_same(one: Sequence[float], other: Sequence[float], tolerance: float = _SAME) -> bool:
    if len(one) != len(other):
        return False
    return all(
        math.isnan(a) == math.isnan(b)
        and (math.isnan(a) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance * 1e-2))
        for a, b in zip(one, other, strict=True)
    )
