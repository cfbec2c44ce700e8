"""The loss of jobs at equal numbers of examples, from the TensorBoard files of their trackers.

Only these are complete on a disk: a run of MLflow or W&B is on its server. Needs the extra `trackers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pollux_slurm.document.charts.line_charts import LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.thinning import Point, averaged
from pollux_slurm.document.columns import Column, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.errors import UsageError
from pollux_slurm.extras import extras_named
from pollux_slurm.report.parts.columns import JOB
from pollux_slurm.text import number_text

Losses = tuple[Point, ...]
"""(examples that the job had trained on, loss), by ascending number."""


def read_losses(folder: Path) -> Losses:
    """Return a training's loss by examples, from a folder of TensorBoard's event files.

    The loss is the first scalar that is called so, as `loss` or `train/loss`. Examples are counted from the
    batch sizes that a `Tracker`, or `PolluxMonitor`, logs: each counts for the steps since the one before.

    Raises `UsageError` where the files lack one of the two, and `ModuleNotFoundError` without TensorBoard.
    """
    if not folder.is_dir():
        raise UsageError(f"--tracker {folder}: there is no folder of this name")
    with extras_named():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    files = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    files.Reload()
    tags = sorted(files.Tags()["scalars"])
    loss = next((tag for tag in tags if tag.rpartition("/")[2] == "loss"), None)
    batch = next((tag for tag in tags if tag.endswith("pollux/batch_size")), None)
    if loss is None or batch is None:
        raise UsageError(
            f"{folder} has no loss and batch sizes of a Tracker; its scalars: {', '.join(tags) or 'none'}"
        )
    examples, last_step, counted = 0.0, 0, []
    for one in files.Scalars(batch):
        examples += one.value * (one.step - last_step)
        last_step = one.step
        counted.append((one.step, examples))
    found, place = [], 0
    for one in files.Scalars(loss):
        while place + 1 < len(counted) and counted[place][0] < one.step:
            place += 1
        if counted[place][0] >= one.step:
            found.append((counted[place][1], float(one.value)))
    return tuple(found)


def loss_part(numbers: Sequence[str], losses: Sequence[Losses]) -> Part:
    """Return the losses of jobs over the examples that they trained on, and those at as many as all have."""
    equal = min((found[-1][0] for found in losses if found), default=0.0)
    columns = (
        JOB,
        Column("examples", "examples", value=lambda one: one["losses"][-1][0] if one["losses"] else None),
        Column("last_loss", "last loss", value=lambda one: one["losses"][-1][1] if one["losses"] else None),
        Column("equal_loss", "loss at equal examples", value=lambda one: _loss_at(one["losses"], equal)),
    )
    jobs = [{"slurm_job_id": number, "losses": found} for number, found in zip(numbers, losses, strict=True)]
    text = f"All of these jobs have trained on {number_text(equal)} examples: there, losses can be compared."
    chart = LineChart(
        title="Loss by examples",
        text=text,
        x=linear_axis("examples", [at for found in losses for at, _ in found]),
        panels=(
            Panel(
                y=linear_axis("loss", [value for found in losses for _, value in found]),
                series=tuple(
                    Series(label=f"job {number}", points=averaged(found), style=style)
                    for style, (number, found) in enumerate(zip(numbers, losses, strict=True))
                    if found
                ),
                height=210.0,
            ),
        ),
    )
    return Part(
        title="Loss at equal examples",
        text=text,
        plots=(Plot(chart=chart, caption="As the jobs' trackers logged it; a lower line learns faster."),),
        tables=(table_of("losses", jobs, columns),),
    )


def _loss_at(losses: Losses, examples: float) -> float | None:
    """Return the last loss that was logged at or before a number of examples."""
    return next((value for at, value in reversed(losses) if at <= examples), None)
