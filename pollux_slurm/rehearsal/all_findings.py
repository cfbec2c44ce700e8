"""Collect all findings of a rehearsal's runs, and what could not be rehearsed."""

from __future__ import annotations

from collections.abc import Iterator

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH
from pollux_slurm.rehearsal.completeness import time_needed
from pollux_slurm.rehearsal.findings import LOCAL, Finding, Level
from pollux_slurm.rehearsal.in_place import (
    joins_that_waited,
    regroup_never_came,
    regroups_refused,
    stale_variables,
)
from pollux_slurm.rehearsal.lost_state import lost_states, lost_variables, wrong_samples
from pollux_slurm.rehearsal.rate_differences import schedules_that_differ
from pollux_slurm.rehearsal.rehearse import RehearsalRuns, has_failed
from pollux_slurm.rehearsal.run_failures import (
    caught_errors,
    failed_leavers,
    failures,
    never_trained,
)
from pollux_slurm.rehearsal.runs.script_run import RunOutcome
from pollux_slurm.rehearsal.runs.stop_plan import training_loops
from pollux_slurm.rehearsal.script_counters import averages_over_micro_batches, own_epochs
from pollux_slurm.rehearsal.unsynchronized_sums import unsynchronized_sums
from pollux_slurm.rehearsal.weight_differences import (
    depends_on_shape,
    needs_rounding,
    replicas_that_differ,
    training_that_differs,
)


def all_findings(rehearsed: RehearsalRuns) -> list[Finding]:
    """Return all findings, the most severe first.

    Each fault is one finding, for all runs, models and variables in which it was seen.
    """
    first_run, *moved_runs = rehearsed.fixed_batch_runs
    chains = (rehearsed.fixed_batch_runs[:1], moved_runs, rehearsed.varying_batch_runs)
    runs, in_place = [run for chain in chains for run in chain], rehearsed.in_place_runs
    lost = [
        *wrong_samples(chains),
        *wrong_samples([in_place], moves="moves in place"),
        *lost_states(chains),
        *schedules_that_differ(first_run, (moved_runs, in_place)),
    ]
    weights = training_that_differs(
        first_run,
        moved_runs,
        in_place,
        rounding_run=rehearsed.rounding_run,
        is_measured=rehearsed.rounding_run is not None or not needs_rounding(first_run, moved_runs, in_place),
    )
    found = [
        *never_trained(first_run),
        *own_epochs(first_run),
        *failures((*chains, in_place)),
        *failed_leavers(in_place),
        *caught_errors(runs),
        *replicas_that_differ([*runs, *in_place]),
        *depends_on_shape([*runs, *in_place]),
        *lost,
        *averages_over_micro_batches(runs),
        *lost_variables(first_run, moved_runs),
        *unsynchronized_sums(runs),
        # What was lost explains weights that differ.
        *([] if lost else weights),
        *regroups_refused(rehearsed),
        *joins_that_waited(in_place),
        *regroup_never_came(rehearsed),
        *stale_variables(rehearsed.fixed_batch_runs, in_place),
        *_not_rehearsed(rehearsed),
        *_notes(rehearsed),
    ]
    order = list(Level)
    return sorted(found, key=lambda one: order.index(one.level))


def _not_rehearsed(rehearsed: RehearsalRuns) -> Iterator[Finding]:
    first_run, *moved_runs = rehearsed.fixed_batch_runs
    moves = max(len(moved_runs) - 1, 0)
    if has_failed(rehearsed.all_runs):
        yield Finding(
            level=Level.NOTE,
            kind="cut_short",
            text="What comes after a failure in the same training was not rehearsed: fix it, then rehearse "
            "again.",
        )
        return
    loops = training_loops(first_run)
    if not loops and first_run.outcome is not RunOutcome.OUT_OF_TIME:
        # The finding `never_stepped` covers this.
        return
    if not moves and rehearsed.is_out_of_time:
        yield Finding(
            level=Level.LOOK,
            kind="no_move",
            text="The time was up before the first move: nothing is known of this script's moves.",
            cure=f"Use --time {time_needed(rehearsed)}, or a smaller model or a part of the data.",
        )
    elif not moves:
        yield Finding(
            level=Level.CHANGE,
            kind="no_move",
            text="No move could be rehearsed: the script ended before.",
            cure="Let it train for longer.",
        )
    elif not loops[0].is_whole and loops[0].epoch != NO_EPOCH:
        yield Finding(
            level=Level.LOOK,
            kind="long_epoch",
            text="An epoch takes longer than its share of --time: only moves in mid-epoch were rehearsed.",
            cure=f"Use --time {time_needed(rehearsed)}, or a part of the data.",
        )
    elif rehearsed.skipped:
        yield Finding(
            level=Level.LOOK,
            kind="time",
            text=f"The time was up before {rehearsed.skipped} of the planned stops: their effect is unknown.",
            cure=f"Use --time {time_needed(rehearsed)}.",
        )
    if loops and first_run.first("autoscale") is None:
        yield Finding(
            level=Level.NOTE,
            kind="fixed_batch",
            text="The script does not call autoscale_batch_size: its batch size stays the same on a cluster.",
        )
    if rehearsed.num_gpus and max(rehearsed.processes) == 1:
        yield Finding(
            level=Level.LOOK,
            kind="one_process",
            text="This machine has one GPU, so each run had one process: replicas were not compared.",
            cure="Rehearse on the CPU as well: CUDA_VISIBLE_DEVICES= pollux rehearse …",
        )


def _notes(rehearsed: RehearsalRuns) -> Iterator[Finding]:
    snapshot = rehearsed.fixed_batch_runs[0].first("snapshot")
    layers = [] if snapshot is None else snapshot["layers"]
    norms = [name for name in layers if name.startswith("BatchNorm")]
    drops = [name for name in layers if "Dropout" in name]
    if norms:
        yield Finding(
            level=Level.NOTE,
            kind="batch_statistics",
            text=f"{' and '.join(norms)}: each process normalizes by its own micro-batch, whose size changes "
            "with the number of processes; the running statistics of process 0 are saved.",
            cure="On GPUs, torch.nn.SyncBatchNorm.convert_sync_batchnorm uses those of all processes.",
            guide=LOCAL,
        )
    if drops:
        yield Finding(
            level=Level.NOTE,
            kind="randomness",
            text=f"{' and '.join(drops)}: its random numbers differ after a move, as with another seed.",
            guide=LOCAL,
        )
