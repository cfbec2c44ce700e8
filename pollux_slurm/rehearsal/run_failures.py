"""Findings about how runs ended: no training at all, an error after a move, a hang."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import Stop, StopMethod, StopMoment
from pollux_slurm.rehearsal.findings import (
    CHANGES,
    IN_PLACE,
    MEMORY,
    NEWCOMERS,
    STATES,
    VARIABLES,
    Finding,
    Level,
)
from pollux_slurm.rehearsal.runs.script_run import Event, RunOutcome, ScriptRun
from pollux_slurm.rehearsal.runs.stop_plan import training_loops

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
                cure="Add the calls of README.md to it, or those of docs/frameworks.md for Lightning, "
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
        unjoined = None if before is None else before.first("regroup_failed")
        if run.outcome is RunOutcome.HUNG:
            yield _hung(before, run)
        elif before is not None and unjoined is not None:
            yield _did_not_join(before, run, unjoined["reason"], error)
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
    if run.first("out_of_memory") is not None and error["type"] == "OutOfMemoryError":
        return Finding(
            level=Level.CHANGE,
            kind="out_of_memory",
            text="An OutOfMemoryError ended the script, and it was not started again with smaller "
            "micro-batches.",
            cure=_MEMORY_CURE,
            guide=MEMORY,
            details=_details(error),
        )
    is_after_move = before is not None and not error["has_stepped"] and not error["is_ours"]
    cure, guide = (_RESET_VARIABLES_CURE, VARIABLES) if is_after_move else ("", "")
    if is_after_move and before is not None and is_regroup(before.stop):
        cure, guide = _IN_PLACE_CURE, IN_PLACE
    return Finding(
        level=Level.CHANGE,
        kind="failed",
        text=f"{_when(before, run)} the script failed at {_place_and_message(error)}.",
        cure=cure,
        guide=guide,
        details=_details(error),
    )


def _did_not_join(before: ScriptRun, run: ScriptRun, reason: str, error: Event | None) -> Finding:
    """Return the finding of a process that ended before it could join."""
    is_ours = error is not None and error["is_ours"]
    return Finding(
        level=Level.CHANGE,
        kind="did_not_join",
        text=f"A process that was to join {where_of(before)} ({before.num_processes} → {run.num_processes} "
        f"processes) failed, while the others trained on, at {_place_and_message(error)}."
        if error is not None
        else f"No process joined {where_of(before)} ({before.num_processes} → {run.num_processes} "
        f"processes): {reason}.",
        cure="" if is_ours else _NEWCOMER_CURE,
        guide=NEWCOMERS,
        details=run.tail(_TAIL_LINES) if error is None else _details(error),
    )


def caught_errors(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find a script that goes on after an OutOfMemoryError by itself."""
    if any(caught_lack_of_memory(run) for run in runs):
        yield Finding(
            level=Level.LOOK,
            kind="out_of_memory_caught",
            text="The script catches an OutOfMemoryError and goes on. The examples of that step are left "
            "out, and micro-batches stay as large as they are.",
            cure=_MEMORY_CURE,
            guide=MEMORY,
        )


def caught_lack_of_memory(run: ScriptRun) -> bool:
    """Return whether a run's script went on after an OutOfMemoryError, without the step that had failed."""
    is_raised = run.first("out_of_memory") is not None
    return is_raised and run.outcome not in (RunOutcome.OUT_OF_MEMORY, RunOutcome.FAILED)


def failed_leavers(in_place_runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find processes that have left a training, and failed as their script ended."""
    for before, after in itertools.pairwise(in_place_runs):
        for rank in range(before.num_processes):
            left = next(before.of("left", rank=rank), None)
            for error in () if left is None else before.of("error", rank=rank):
                yield Finding(
                    level=Level.LOOK,
                    kind="failed_to_leave",
                    text=f"A process that left {where_of(before)} ({before.num_processes} → "
                    f"{after.num_processes} processes) failed at {_place_and_message(error)}. The others "
                    "trained on.",
                    cure="Its script ends with SystemExit at its last step. What still runs then (`finally`, "
                    "`atexit`) must not communicate.",
                    guide=IN_PLACE,
                    details=_details(error),
                )
                return


def _place_and_message(error: Event) -> str:
    message = f"{error['type']}: {error['message']}".strip().rstrip(".")
    return f"{Path(error['file']).name}:{error['line']}: {message}"


def _details(error: Event) -> str:
    # Errors of this package name the cure and the line of the script.
    return "" if error["is_ours"] else str(error["traceback"])


_RESET_VARIABLES_CURE = (
    "The script's own variables are reset after a move, and a loop that was done yields nothing. Keep sums "
    "in a pollux_slurm.torch.Accumulator and other values in a State. No line after a loop may need a "
    "variable that only a micro-batch sets."
)


_MEMORY_CURE = (
    "Let the error end the script, or put `with pollux_slurm.torch.memory_guard():` around the body of the "
    "loop and raise the error again: `pollux run` starts the script with smaller micro-batches."
)
_NEWCOMER_CURE = (
    "A process that joins runs the script from its first line while the others train, with the rank that it "
    "is to have. There, pollux_slurm.torch.is_joining() is true."
)
_IN_PLACE_CURE = (
    "What depends on the rank or the number of processes must be asked for where it is used, or set anew in "
    "a function that is given to pollux_slurm.torch.on_regroup. In a process that joins, the script's own "
    "variables are as after a restart: keep sums in a pollux_slurm.torch.Accumulator and other values in a "
    "State."
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
    text = after_move(before, run)
    return f"{text[0].upper()}{text[1:]}"


def after_move(before: ScriptRun, run: ScriptRun) -> str:
    """Return after what a run went on from the one before, in words."""
    if before.outcome is RunOutcome.OUT_OF_MEMORY:
        return "after an OutOfMemoryError, with smaller micro-batches,"
    how = " in place," if is_regroup(before.stop) else ""
    return f"after a move{how} {where_of(before)} ({before.num_processes} → {run.num_processes} processes)"


def is_regroup(stop: Stop | None) -> bool:
    """Return whether a stop lets processes join and leave, without ending the others."""
    return stop is not None and stop.method is StopMethod.REGROUP


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
