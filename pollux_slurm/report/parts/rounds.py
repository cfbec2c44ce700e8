"""The whole cluster over time: GPUs there and decided, speedups, nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pollux_slurm.document.charts.line_charts import LineChart, Panel, Series
from pollux_slurm.document.charts.scales import linear_axis
from pollux_slurm.document.charts.thinning import Point, averaged, known, with_gaps
from pollux_slurm.document.charts.time_axes import Range, time_axis
from pollux_slurm.document.columns import Column, Kind, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import AT, GPU_TYPE, NUM_JOBS, NUM_MOVES, ROUND
from pollux_slurm.report.parts.common import share
from pollux_slurm.store.reporting.view_rows import NodeSum, RoundEntry
from pollux_slurm.text import number_text, plural

# The daemon was away where the next round came this many times as late as is usual.
_AWAY = 10

_ROUNDS = (
    AT,
    ROUND,
    Column("shadow", "shadow", Kind.TEXT),
    NUM_JOBS,
    Column("num_served", "served", Kind.COUNT),
    Column("num_gpus", "GPUs decided", Kind.COUNT),
    Column("total_gpus", "GPUs there", Kind.COUNT),
    Column("mean_speedup", "mean speedup"),
    Column("min_speedup", "least speedup"),
    Column("gap", "gap", Kind.SHARE),
    NUM_MOVES,
    Column("solve_s", "solved in", Kind.SECONDS),
    Column("objective", "objective", Kind.TEXT, shown=False),
    Column("solver", "solver", Kind.TEXT, shown=False),
    Column("fitness", "fitness", shown=False),
    Column("timed_out", "cut short", Kind.TEXT, shown=False),
)


def rounds_part(rows: Sequence[RoundEntry], range_: Range) -> Part:
    """Return what rounds had and decided over time, rows of round_history, oldest first."""
    data = table_of(
        "rounds",
        rows,
        _ROUNDS,
        keep="spread",
        note="Speedups are predicted, over each job's fair share of the cluster.",
    )
    if not rows:
        return Part(title="Rounds", text="No round was decided in this time.", tables=(data,))
    moments = [row.at.timestamp() for row in rows]
    decided, there, mean, least = (
        with_gaps(moments, [getattr(row, key) for row in rows], late=_AWAY)
        for key in ("num_gpus", "total_gpus", "mean_speedup", "min_speedup")
    )
    chart = LineChart(
        title="GPUs decided, and what they were to bring",
        text=f"{plural(len(rows), 'round')} decided on {number_text(_middle(decided))} GPUs, of "
        f"{number_text(_middle(there))} there, at the median.{_shadow_text(rows)}",
        x=time_axis([range_.since, range_.until]),
        panels=(
            Panel(
                y=linear_axis("GPUs", known((*decided, *there))),
                series=(
                    Series(
                        label="decided for adaptive jobs",
                        points=averaged(decided),
                        style=2,
                        step=True,
                        filled=True,
                    ),
                    Series(label="there for them", points=averaged(there), style=5, step=True),
                ),
                height=170.0,
            ),
            Panel(
                y=linear_axis("speedup", known((*mean, *least))),
                series=(
                    Series(label="mean speedup", points=averaged(mean), style=0, step=True),
                    Series(label="least speedup", points=averaged(least), style=1, step=True),
                ),
                height=150.0,
            ),
        ),
    )
    return Part(
        title="Rounds",
        plots=(
            Plot(
                chart=chart,
                caption="Above: GPUs that adaptive jobs could have, and those that each round decided for "
                f"them.{_shadow_text(rows)} Below: predicted speedups over the jobs' fair shares; at 1 a "
                "job is as fast as on an equal part of the cluster.",
                data=data,
            ),
        ),
    )


def _shadow_text(rows: Sequence[RoundEntry]) -> str:
    """Return a sentence for rounds of which nothing was enacted, empty without one."""
    number = sum(row.shadow for row in rows)
    return f" Rounds in shadow mode, by which no job gets GPUs: {number:,}." if number else ""


def _middle(points: Sequence[Point]) -> float:
    return statistics.median(known(points) or [0.0])


def nodes_part(nodes: Sequence[NodeSum], range_: Range) -> Part:
    """Return how busy each node was over the days of a range."""
    columns = (
        Column("node_name", "node", Kind.TEXT),
        GPU_TYPE,
        Column("gpu_hours", "GPU hours held"),
        Column("available_gpu_hours", "GPU hours there"),
        Column(
            "utilization",
            "used",
            Kind.SHARE,
            value=lambda node: share(node.gpu_hours, node.available_gpu_hours),
        ),
    )
    data = table_of(
        "nodes",
        nodes,
        columns,
        note=f"GPU hours are of {range_.days_text()}. GPU hours there: what adaptive jobs could have had, as "
        "far as rounds knew.",
    )
    text = "" if nodes else "No round had a node to give in this time."
    return Part(title="Nodes", text=text, tables=(data,))
