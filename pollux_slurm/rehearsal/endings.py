"""Findings from how runs have ended: no training at all, an error after a move, a standstill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pollux_slurm.agent.rehearsing import Moment, Stop
from pollux_slurm.rehearsal.findings import CHANGES, STATES, VARIABLES, Finding, Level
from pollux_slurm.rehearsal.plan import training_loops
from pollux_slurm.rehearsal.playing import Event, Outcome, Played

_TAIL_LINES = 15


def never_trained(scouted: Played) -> Iterator[Finding]:
    if scouted.first("start") is None:
        if scouted.outcome is Outcome.FINISHED:
            yield Finding(
                level=Level.CHANGE,
                kind="no_session",
                text="The script ended without a call of pollux_slurm.torch.init_process_group(): the "
                "library knows nothing of its training.",
                cure="Add the five lines of the README to it.",
                guide=CHANGES,
            )
    elif scouted.outcome in (Outcome.FINISHED, Outcome.STOPPED) and not training_loops(scouted):
        yield Finding(
            level=Level.CHANGE,
            kind="never_stepped",
            text="No wrapped optimizer made a step in a loop over an AdaptiveDataLoader.",
            cure="Train the model that AdaptiveDataParallel returns, with the optimizer that it was given, "
            "in a loop over an AdaptiveDataLoader, and put no other wrapper around it.",
            guide=CHANGES,
        )


def failures(runs: Sequence[Played]) -> Iterator[Finding]:
    for before, run in zip((None, *runs), runs, strict=False):
        when = _when(before, run)
        if run.outcome is Outcome.HUNG:
            yield Finding(
                level=Level.CHANGE,
                kind="hung",
                text=f"{when} the script stood still and did not heed SIGTERM.",
                cure="See where: all processes must call what is collective equally often (backward, "
                "Accumulator.synchronized, torch.distributed).",
                guide=STATES,
                details=run.tail(_TAIL_LINES),
            )
        if run.outcome is not Outcome.FAILED:
            continue
        error = _first_error(run)
        if error is None:
            yield Finding(
                level=Level.CHANGE,
                kind="failed",
                text=f"{when} the script ended with exit code {run.exit_code}.",
                cure="Its last lines are below." if before is None else _OWN_CURE,
                guide="" if before is None else VARIABLES,
                details=run.tail(_TAIL_LINES),
            )
            continue
        said = f"{error['type']}: {error['message']}".strip().rstrip(".")
        text = f"{when} the script failed at {Path(error['file']).name}:{error['line']}: {said}."
        is_after_move = before is not None and not error["has_stepped"] and not error["is_ours"]
        yield Finding(
            level=Level.CHANGE,
            kind="failed",
            text=text,
            cure=_OWN_CURE if is_after_move else "",
            guide=VARIABLES if is_after_move else "",
            # Our own say what to write, and the line of the script.
            details="" if error["is_ours"] else error["traceback"],
        )


_OWN_CURE = (
    "Variables of the script's own begin anew after a move, and a loop that was done yields nothing. Sum up "
    "in a pollux_slurm.torch.Accumulator, keep other things in a State, and let no line need what only a "
    "batch sets."
)


def _first_error(run: Played) -> Event | None:
    """Return the error that came first: those of other ranks mostly say that a connection was lost."""
    errors = [event for rank in range(run.num_processes) for event in run.of("error", rank=rank)]
    return min(errors, key=lambda event: (_is_of_network(event), event["time"]), default=None)


def _is_of_network(error: Event) -> bool:
    text = error["message"].lower()
    return error["type"].startswith("Dist") or "connection" in text or "gloo" in text


def _when(before: Played | None, run: Played) -> str:
    if before is None:
        return "Without any move"
    return f"After a move {where_of(before)} ({before.num_processes} → {run.num_processes} processes)"


def where_of(run: Played) -> str:
    """Say where a run was stopped."""
    return "at its end" if run.stop is None else place_of(run.stop)


def place_of(stop: Stop) -> str:
    """Say where a stop is."""
    return {
        Moment.STEP: "in mid-epoch",
        Moment.AFTER_LOOP: "between an epoch's last step and its end",
        Moment.EPOCH_END: "at an epoch's end",
    }[stop.moment]
