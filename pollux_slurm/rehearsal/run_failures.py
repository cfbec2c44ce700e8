"""Findings about how runs ended: no training at all, an error after a move, a hang."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMoment
from pollux_slurm.rehearsal.findings import CHANGES, STATES, VARIABLES, Finding, Level
from pollux_slurm.rehearsal.script_run import Event, RunOutcome, ScriptRun
from pollux_slurm.rehearsal.stop_plan import training_loops

_TAIL_LINES = 15


def never_trained(first_run: ScriptRun) -> Iterator[Finding]:
    """Find a script that does not use the library, or whose model made no step."""
    if first_run.first("start") is None:
        if first_run.outcome is RunOutcome.FINISHED:
            yield Finding(
                level=Level.CHANGE,
                kind="no_session",
                text="The script ended without a call of pollux_slurm.torch.init_process_group(): the "
                "library does not take part in its training.",
                cure="Add the five lines of the README to it, or those of docs/frameworks.md for Lightning, "
                "Trainer or Accelerate.",
                guide=CHANGES,
            )
    elif first_run.outcome in (RunOutcome.FINISHED, RunOutcome.STOPPED) and not training_loops(first_run):
        yield Finding(
            level=Level.CHANGE,
            kind="never_stepped",
            text="No wrapped optimizer made a step in a loop over an AdaptiveDataLoader.",
            cure="Train the model that AdaptiveDataParallel returns, with the optimizer that was passed to "
            "it, in a loop over an AdaptiveDataLoader, without another wrapper around it.",
            guide=CHANGES,
        )


def failures(chains: Sequence[Sequence[ScriptRun]]) -> Iterator[Finding]:
    """Find runs that failed or hung, once for each line of the script.

    The runs of a chain resume from each other.
    """
    seen: set[tuple[Any, ...]] = set()
    for before, run in (pair for runs in chains for pair in zip((None, *runs), runs, strict=False)):
        error = _first_error(run) if run.outcome is RunOutcome.FAILED else None
        place = (run.exit_code,) if error is None else (error["type"], error["file"], error["line"])
        if run.outcome not in (RunOutcome.FAILED, RunOutcome.HUNG) or (run.outcome, place) in seen:
            continue
        seen.add((run.outcome, place))
        if run.outcome is RunOutcome.HUNG:
            yield _hung(before, run)
        else:
            yield _failed(before, run) if error is None else _raised(before, run, error)


def _hung(before: ScriptRun | None, run: ScriptRun) -> Finding:
    return Finding(
        level=Level.CHANGE,
        kind="hung",
        text=f"{_when(before, run)} the script hung and did not react to SIGTERM.",
        cure="All processes must make the same collective calls (backward, Accumulator.synchronized, "
        "torch.distributed).",
        guide=STATES,
        details=run.tail(_TAIL_LINES),
    )


def _failed(before: ScriptRun | None, run: ScriptRun) -> Finding:
    return Finding(
        level=Level.CHANGE,
        kind="failed",
        text=f"{_when(before, run)} the script ended with exit code {run.exit_code}.",
        cure="See the last lines of its output." if before is None else _RESET_VARIABLES_CURE,
        guide="" if before is None else VARIABLES,
        details=run.tail(_TAIL_LINES),
    )


def _raised(before: ScriptRun | None, run: ScriptRun, error: Event) -> Finding:
    message = f"{error['type']}: {error['message']}".strip().rstrip(".")
    line = f"{Path(error['file']).name}:{error['line']}"
    is_after_move = before is not None and not error["has_stepped"] and not error["is_ours"]
    return Finding(
        level=Level.CHANGE,
        kind="failed",
        text=f"{_when(before, run)} the script failed at {line}: {message}.",
        cure=_RESET_VARIABLES_CURE if is_after_move else "",
        guide=VARIABLES if is_after_move else "",
        # Errors of this package name the cure and the line of the script.
        details="" if error["is_ours"] else error["traceback"],
    )


_RESET_VARIABLES_CURE = (
    "The script's own variables are reset after a move, and a loop that was done yields nothing. Keep sums "
    "in a pollux_slurm.torch.Accumulator and other values in a State. No line after a loop may need a "
    "variable that only a micro-batch sets."
)


def _first_error(run: ScriptRun) -> Event | None:
    """Return the first error that is not a lost connection, which other ranks report as a consequence."""
    errors = [event for rank in range(run.num_processes) for event in run.of("error", rank=rank)]
    return min(errors, key=lambda event: (_is_of_network(event), event["time"]), default=None)


def _is_of_network(error: Event) -> bool:
    text = error["message"].lower()
    return error["type"].startswith("Dist") or "connection" in text or "gloo" in text


def _when(before: ScriptRun | None, run: ScriptRun) -> str:
    if before is None:
        return "Without any move"
    return f"After a move {where_of(before)} ({before.num_processes} → {run.num_processes} processes)"


def where_of(run: ScriptRun) -> str:
    """Return where a run was stopped, in words."""
    return "at its end" if run.stop is None else place_of(run.stop)


def place_of(stop: Stop) -> str:
    """Return where a stop is, in words."""
    return {
        StopMoment.STEP: "in mid-epoch",
        StopMoment.AFTER_LOOP: "between an epoch's last step and its end",
        StopMoment.EPOCH_END: "at an epoch's end",
    }[stop.moment]
