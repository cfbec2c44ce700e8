"""The result of a rehearsal, as text and as JSON."""

from __future__ import annotations

import itertools
import shlex
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pollux_slurm.agent.rehearsal_protocol import StopMethod
from pollux_slurm.rehearsal.completeness import is_time_too_short, kinds_not_made, time_needed
from pollux_slurm.rehearsal.findings import Finding, Level
from pollux_slurm.rehearsal.rehearse import RehearsalRuns
from pollux_slurm.rehearsal.run_failures import where_of
from pollux_slurm.rehearsal.runs.script_run import RunOutcome, ScriptRun
from pollux_slurm.text import bytes_text, plural

_WIDTH = 100
_PHASES = {
    "save_s": "to save {:.1f} s",
    "end_s": "to end {:.1f} s",
    "import_s": "Python and imports {:.1f} s",
    "restore_s": "to join and restore {:.1f} s",
    "first_step_s": "to the first step {:.1f} s",
}
_HOW = {
    StopMethod.REQUEST: "on request",
    StopMethod.SIGTERM: "by SIGTERM",
    StopMethod.REGROUP: "in place",
    StopMethod.OUT_OF_MEMORY: "by an OutOfMemoryError",
}


def must_change(findings: Sequence[Finding]) -> bool:
    """Tell whether the script must change before it is submitted."""
    return any(finding.level is Level.CHANGE for finding in findings)


def exit_code(rehearsed: RehearsalRuns, findings: Sequence[Finding]) -> int:
    """Return 1 if something must change, 3 if the time was too short to tell, else 0."""
    return 1 if must_change(findings) else 3 if is_time_too_short(rehearsed) else 0


def move_times(runs: Sequence[ScriptRun]) -> dict[str, float]:
    """Return the mean seconds of each phase of the moves between `runs`, without phases that no move had."""
    seen: dict[str, list[float]] = {part: [] for part in _PHASES}
    for before, after in itertools.pairwise(runs):
        stop, start, step = before.first("stop"), after.first("start"), after.first("first_step")
        kinds = ("checkpoint", "confirmed", "killed")
        saved = [event["time"] for kind in kinds for event in before.of(kind)]
        if stop is not None and saved:
            seen["save_s"].append(max(saved) - stop["time"])
            seen["end_s"].append(before.ended_at - max(saved))
        if start is not None:
            seen["import_s"].append(start["imported_s"])
            seen["restore_s"].append(start["joined_s"] - start["imported_s"])
        if start is not None and step is not None:
            seen["first_step_s"].append(step["age_s"] - start["joined_s"])
    return {part: statistics.fmean(values) for part, values in seen.items() if values}


def regroup_times(in_place_runs: Sequence[ScriptRun]) -> dict[str, float]:
    """Return the mean seconds until processes that were to join were ready, and of standstill."""
    joined = [run for run in in_place_runs if run.stop and run.stop.num_processes > run.num_processes]
    ready = [event["after_s"] for run in joined for event in run.of("newcomers_ready")]
    stood = [event["standstill_s"] for run in in_place_runs for event in run.of("begun")]
    times = {"ready_s": ready, "standstill_s": stood}
    return {part: statistics.fmean(values) for part, values in times.items()} if ready and stood else {}


def moves(rehearsed: RehearsalRuns) -> list[dict[str, Any]]:
    """Return each move: where, how it was requested, the numbers of processes, and whether it succeeded.

    `leaves` are the ranks that have left, where the others went on.
    """
    found = []
    chains = (rehearsed.fixed_batch_runs[1:], rehearsed.varying_batch_runs, rehearsed.in_place_runs)
    for runs in chains:
        for before, after in itertools.pairwise(runs):
            assert before.stop is not None
            found.append(
                {
                    "where": where_of(before),
                    "by": before.stop.method.value,
                    "batch_varies": before.varies_batch,
                    "processes": [before.num_processes, after.num_processes],
                    "leaves": list(before.stop.leaves),
                    "ok": after.outcome not in (RunOutcome.FAILED, RunOutcome.HUNG),
                }
            )
    return found


def as_json(rehearsed: RehearsalRuns, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the result as plain containers."""
    return {
        "command": list(rehearsed.command),
        "must_change": must_change(findings),
        "not_made": kinds_not_made(rehearsed),
        "time_needed": time_needed(rehearsed) if is_time_too_short(rehearsed) else None,
        "findings": [{**asdict(finding), "level": finding.level.name.lower()} for finding in findings],
        "moves": moves(rehearsed),
        "move_times": move_times(rehearsed.fixed_batch_runs[1:]),
        "regroup_times": regroup_times(rehearsed.in_place_runs),
        "checkpoint_bytes": _checkpoint_bytes(rehearsed),
        "runs": len(rehearsed.all_runs),
        "wall_s": round(rehearsed.wall_s, 1),
        "logs": str(rehearsed.folder),
    }


def as_text(rehearsed: RehearsalRuns, findings: Sequence[Finding]) -> str:
    """Return the result as text for a terminal."""
    lines = ["", f"Rehearsed {shlex.join(rehearsed.command)} in {rehearsed.wall_s:.0f} s."]
    lines += [""] * bool(moves(rehearsed))
    for move in moves(rehearsed):
        how = _HOW[StopMethod(move["by"])]
        batch = ", varying batch" if move["batch_varies"] else ""
        first, second = move["processes"]
        verdict = "ok    " if move["ok"] else "FAILED"
        left = ", without rank 0" * (0 in move["leaves"])
        lines.append(
            f"  {verdict}  moved {move['where']}, {how}, from {first} to {second} processes{left}{batch}"
        )
    for finding in findings:
        lines += ["", *_block(finding)]
    times = move_times(rehearsed.fixed_batch_runs[1:])
    if times:
        parts = ", ".join(text.format(times[part]) for part, text in _PHASES.items() if part in times)
        size = _checkpoint_bytes(rehearsed)
        saved = "" if size is None else f" The checkpoint has {bytes_text(size)}."
        lines += ["", *_wrapped(f"A move takes {sum(times.values()):.1f} s here: {parts}.{saved}", "")]
    regrouped = regroup_times(rehearsed.in_place_runs)
    if regrouped:
        text = (
            f"In place, training stands still for {regrouped['standstill_s']:.1f} s here; new processes are "
            f"ready after {regrouped['ready_s']:.1f} s, while the others train."
        )
        lines += ["", *_wrapped(text, "")]
    lines += ["", f"The script's output: {rehearsed.folder}"]
    lines.append(_verdict(rehearsed, findings))
    return "\n".join(lines)


def _verdict(rehearsed: RehearsalRuns, findings: Sequence[Finding]) -> str:
    if must_change(findings):
        return "Something must change."
    num_looks = sum(finding.level is Level.LOOK for finding in findings)
    looks = f"; {plural(num_looks, 'thing')} to look at" if num_looks else ""
    missing = kinds_not_made(rehearsed)
    if is_time_too_short(rehearsed):
        made = f"no move was made {' or '.join(missing)}" if missing else "not all was measured"
        return f"The time was too short: {made}{looks}. Rehearse with --time {time_needed(rehearsed)}."
    if missing:
        return f"Nothing must change in the moves that were made{looks}. None was {' or '.join(missing)}."
    return f"Nothing must change{looks}."


def _block(finding: Finding) -> list[str]:
    lines = _wrapped(f"{finding.level.value.upper()}: {finding.text}", "")
    if finding.details:
        lines += ["", textwrap.indent(finding.details.rstrip(), "    | ")]
        lines += [""] * bool(finding.cure or finding.guide)
    if finding.cure:
        lines += _wrapped(f"Cure: {finding.cure}", "  ")
    if finding.guide:
        lines.append(f"  See {finding.guide}.")
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False
    )


def _checkpoint_bytes(rehearsed: RehearsalRuns) -> int | None:
    sizes = [event["size_bytes"] for run in rehearsed.fixed_batch_runs for event in run.of("checkpoint")]
    return max(sizes, default=None)
