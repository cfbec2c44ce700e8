"""Findings about regroups: whether a script can be moved in place, and what its processes keep then."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from pollux_slurm.rehearsal.findings import (
    IN_PLACE,
    NEWCOMERS,
    REQUEUE_ONLY,
    WORLD_SIZE,
    Finding,
    Level,
)
from pollux_slurm.rehearsal.lost_state import process_variables
from pollux_slurm.rehearsal.rehearse import RehearsalRuns, has_failed
from pollux_slurm.rehearsal.runs.script_run import ScriptRun
from pollux_slurm.rehearsal.runs.stop_plan import sizes_of_regroups, training_loops


def regroups_refused(rehearsed: RehearsalRuns) -> Iterator[Finding]:
    """Find why the script is moved by a requeue only."""
    first_run = rehearsed.fixed_batch_runs[0]
    started, forbids = first_run.first("start"), first_run.first("cannot_regroup")
    refusals = [event for run in rehearsed.in_place_runs for event in run.of("regroup_refused")]
    if started is None or not training_loops(first_run):
        return
    if forbids is not None:
        yield Finding(
            level=Level.NOTE,
            kind="requeue_only",
            text=f"The script moves by a requeue only, which starts it anew: {forbids['reason']}.",
        )
    elif not started["in_place"]:
        yield Finding(
            level=Level.NOTE,
            kind="requeue_only",
            text="The script moves by a requeue only, which starts it anew. With "
            "init_process_group(in_place=True) it allows that replicas join and leave while it trains.",
            guide=IN_PLACE,
        )
    elif refusals:
        yield Finding(
            level=Level.LOOK,
            kind="regroup_refused",
            text="The script asks to be moved in place and cannot be, so it moves by a requeue: "
            f"{refusals[0]['reason']}.",
            guide=REQUEUE_ONLY,
        )
    elif sizes_of_regroups(rehearsed.processes) is None:
        yield Finding(
            level=Level.LOOK,
            kind="no_regroup",
            text="All runs had the same number of processes, so none joined or left while it trained.",
            cure="Rehearse with several numbers, on the CPU where GPUs are too few: --processes 1,2.",
        )


def joins_that_waited(in_place_runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find why processes could not join in mid-epoch."""
    reasons = [event["reason"] for run in in_place_runs for event in run.of("regroup_waits")]
    if reasons:
        yield Finding(
            level=Level.NOTE,
            kind="regroup_waits",
            text=f"Processes that were to join in mid-epoch waited for the end of the epoch: {reasons[0]}.",
            guide=NEWCOMERS,
        )


def regroup_never_came(rehearsed: RehearsalRuns) -> Iterator[Finding]:
    """Find a regroup that was asked for and did not come about, for no reason that is known."""
    last = rehearsed.in_place_runs[-1:]
    if not last or has_failed(rehearsed.in_place_runs) or not any(last[0].of("regroup_asked")):
        return
    if not any(last[0].of("regroup_refused", "regroup_failed")):
        is_ready = any(last[0].of("newcomers_ready"))
        yield Finding(
            level=Level.LOOK,
            kind="no_regroup",
            text="The run ended before processes that waited could join."
            if is_ready
            else "Processes that were to join were not ready before the time was up.",
            cure="" if is_ready else "Raise --time, or look at the output for where they hang.",
        )


def stale_variables(
    stopped_runs: Sequence[ScriptRun], in_place_runs: Sequence[ScriptRun]
) -> Iterator[Finding]:
    """Find variables that kept the value of the former rank or number of processes after a regroup.

    What they should be is known from the runs that were stopped and began with that rank and number.
    """
    known = process_variables(stopped_runs)
    stale: dict[str, str] = {}
    for before, after in itertools.pairwise(in_place_runs):
        for rank, former_rank in _ranks_of_those_that_stay(before, after):
            former = known.get((before.num_processes, former_rank), {})
            present = known.get((after.num_processes, rank), {})
            kept = next((event for event in after.of("snapshot", rank=rank)), None)
            for name, value in {} if kept is None else kept["variables"].items():
                wanted = present.get(name, value)
                if value == former.get(name) and value != wanted:
                    short = name.partition(":")[2]
                    stale.setdefault(
                        short,
                        f"`{short}` ({value} as before, where a start with {after.num_processes} processes "
                        f"has {wanted} in process {rank})",
                    )
    if stale:
        yield Finding(
            level=Level.LOOK,
            kind="stale_variables",
            text="Variables kept the value of the former processes after some joined or left: "
            f"{', '.join(stale.values())}.",
            cure="Where they matter, ask for the rank or the number of processes where it is used, or set "
            "them anew in a function that is given to pollux_slurm.torch.on_regroup.",
            guide=WORLD_SIZE,
        )


def _ranks_of_those_that_stay(before: ScriptRun, after: ScriptRun) -> Iterator[tuple[int, int]]:
    """Yield the rank of each process that has stayed, and the one that it had before."""
    leaves = () if before.stop is None else before.stop.leaves
    stayed = [rank for rank in range(before.num_processes) if rank not in leaves][: after.num_processes]
    yield from enumerate(stayed)
