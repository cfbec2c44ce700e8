"""All that the runs of a rehearsal show, and what they could not show."""

from __future__ import annotations

from collections.abc import Iterator

from pollux_slurm.rehearsal.findings import LOCAL, Finding, Level
from pollux_slurm.rehearsal.lost_state import lost_states, lost_variables, samples
from pollux_slurm.rehearsal.rehearse import RehearsalRuns
from pollux_slurm.rehearsal.run_failures import failures, never_trained
from pollux_slurm.rehearsal.script_counters import averages_of_passes, own_epochs
from pollux_slurm.rehearsal.script_run import RunOutcome
from pollux_slurm.rehearsal.stop_plan import training_loops
from pollux_slurm.rehearsal.unsynchronized_sums import unshared_sums
from pollux_slurm.rehearsal.weight_differences import another_training, replicas_that_differ


def find(rehearsed: RehearsalRuns) -> list[Finding]:
    """Return what the runs show: what must change first, each thing once.

    Each finder says a thing once for all runs, models and variables that it was seen with.
    """
    first_run, *held = rehearsed.held
    chains = (rehearsed.held[:1], held, rehearsed.varied)
    runs = [run for chain in chains for run in chain]
    found = [
        *never_trained(first_run),
        *own_epochs(first_run),
        *failures(chains),
        *replicas_that_differ(runs),
        *samples(chains),
        *lost_states(chains),
        *averages_of_passes(runs),
        *lost_variables(first_run, held),
        *unshared_sums(runs),
        *another_training(first_run, held),
        *_not_rehearsed(rehearsed),
        *_notes(rehearsed),
    ]
    order = list(Level)
    return sorted(found, key=lambda one: order.index(one.level))


def _not_rehearsed(rehearsed: RehearsalRuns) -> Iterator[Finding]:
    first_run, *held = rehearsed.held
    moves = max(len(held) - 1, 0)
    has_failed = any(
        run.outcome in (RunOutcome.FAILED, RunOutcome.HUNG) for run in (*rehearsed.held, *rehearsed.varied)
    )
    if has_failed:
        yield Finding(
            level=Level.NOTE,
            kind="cut_short",
            text="What comes after the failure was not rehearsed: cure it, then rehearse again.",
        )
        return
    loops = training_loops(first_run)
    if not loops and first_run.outcome is not RunOutcome.OUT_OF_TIME:
        # It never trained, which is told by itself.
        return
    if not moves:
        yield Finding(
            level=Level.CHANGE,
            kind="no_move",
            text="Not one move could be rehearsed: the script ended, or the time was up, before.",
            cure="Let it train for longer, or raise --time.",
        )
    elif not loops[0].is_whole:
        yield Finding(
            level=Level.LOOK,
            kind="long_epoch",
            text="An epoch takes longer than the time for it: only moves in mid-epoch were rehearsed.",
            cure="Raise --time, or rehearse with a part of the data.",
        )
    elif rehearsed.skipped:
        yield Finding(
            level=Level.LOOK,
            kind="time",
            text=f"The time was up before {rehearsed.skipped} of the planned stops: their effect is unknown.",
            cure="Raise --time.",
        )
    if first_run.first("autoscale") is None:
        yield Finding(
            level=Level.NOTE,
            kind="fixed_batch",
            text="The script does not call autoscale_batch_size: its batch stays as it is on a cluster, too.",
        )
    if rehearsed.num_gpus and max(rehearsed.processes) == 1:
        yield Finding(
            level=Level.LOOK,
            kind="one_process",
            text="There is one GPU here, so each run had one process: replicas were not compared.",
            cure="Rehearse on the CPU, too: CUDA_VISIBLE_DEVICES= pollux rehearse …",
        )


def _notes(rehearsed: RehearsalRuns) -> Iterator[Finding]:
    snapshot = rehearsed.held[0].first("snapshot")
    layers = [] if snapshot is None else snapshot["layers"]
    norms = [name for name in layers if name.startswith("BatchNorm")]
    drops = [name for name in layers if "Dropout" in name]
    if norms:
        yield Finding(
            level=Level.NOTE,
            kind="batch_statistics",
            text=f"{' and '.join(norms)}: each process normalizes by its own local batch, which changes with "
            "the number of processes; the running statistics of process 0 are saved.",
            cure="On GPUs, torch.nn.SyncBatchNorm.convert_sync_batchnorm takes those of all processes.",
            guide=LOCAL,
        )
    if drops:
        yield Finding(
            level=Level.NOTE,
            kind="randomness",
            text=f"{' and '.join(drops)}: what it draws differs after a move, as with another seed.",
            guide=LOCAL,
        )
