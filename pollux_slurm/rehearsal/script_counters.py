"""Findings about what a script counts itself: its epochs, or micro-batches instead of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pollux_slurm.agent.rehearsal_protocol import NO_EPOCH
from pollux_slurm.rehearsal.findings import AVERAGES, CHANGES, Finding, Level, listed
from pollux_slurm.rehearsal.runs.script_run import ScriptRun
from pollux_slurm.rehearsal.runs.stop_plan import training_loops

_MIN_TIMES = 2


def own_epochs(first_run: ScriptRun) -> Iterator[Finding]:
    """Find training loops outside of `remaining_epochs_until`: several are epochs, one may be all."""
    loops = Counter(loop.loader for loop in training_loops(first_run) if loop.epoch == NO_EPOCH)
    if not loops:
        return
    cure = "Write `for epoch in pollux_slurm.torch.remaining_epochs_until(n):` instead of `range(n)`."
    if max(loops.values()) > 1:
        yield Finding(
            level=Level.CHANGE,
            kind="own_epochs",
            text="The script counts its epochs itself. After a move it counts from the start again: the code "
            "around the loop over the batches (a schedule, a validation, a file) runs again for epochs "
            "that were done. With a first epoch of its own (`range(start, n)`) other epochs are skipped. "
            "No move waits for the end of an epoch, and no last checkpoint is written.",
            cure=cure,
            guide=CHANGES,
        )
    else:
        yield Finding(
            level=Level.NOTE,
            kind="one_loop",
            text="The script trains outside of remaining_epochs_until, apparently in one loop: no move waits "
            "for its end, and no last checkpoint is written.",
            cure=f"If it is one of several epochs: {cure[0].lower()}{cure[1:]}",
            guide=CHANGES,
        )


def averages_over_micro_batches(runs: Sequence[ScriptRun]) -> Iterator[Finding]:
    """Find averages of the weights that are updated after micro-batches that do not step."""
    times = Counter(name for run in runs for event in run.of("averaged") for name in event["names"])
    names = sorted(name for name, number in times.items() if number >= _MIN_TIMES)
    if names:
        quoted = listed([f"`{name}`" for name in names if name])
        yield Finding(
            level=Level.CHANGE,
            kind="average",
            text=f"An average of the weights{f' ({quoted})' if quoted else ''} is also updated after "
            "micro-batches that only accumulate gradients. The weights do not change there, so the average "
            "depends on the number of micro-batches.",
            cure="Update it `if loader.is_stepping:`.",
            guide=AVERAGES,
        )
