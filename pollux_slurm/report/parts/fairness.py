"""What sharing the cluster cost jobs: finish-time fairness ρ, by account or user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pollux_slurm.document.charts.line_charts import LineChart, Mark, Panel, distribution
from pollux_slurm.document.charts.scales import linear_axis, log_axis
from pollux_slurm.document.columns import Column, Kind, table_of
from pollux_slurm.document.document import Part, Plot
from pollux_slurm.report.parts.columns import ACCOUNT, JOB, NAME, STATE, USER, WAITED
from pollux_slurm.report.parts.groups import MOST_GROUPS, NAMELESS, styles_of
from pollux_slurm.store.reporting.view_rows import Fairness
from pollux_slurm.text import number_text, plural

_FAIRNESS = (
    JOB,
    NAME,
    USER,
    ACCOUNT,
    Column("rho", "ρ"),
    Column("elapsed_s", "elapsed", Kind.SECONDS),
    Column("fair_share_s", "on its fair share", Kind.SECONDS),
    WAITED,
    Column("mean_gpus", "mean GPUs"),
    Column("fair_share_gpus", "fair share (GPUs)"),
    STATE,
)


def fairness_part(rows: Sequence[Fairness], *, by: str, drawn_before: Sequence[str] = ()) -> Part:
    """Return what sharing cost the jobs, rows of fairness, as distributions by `by`: account or user_name.

    `drawn_before` are the groups of a plot before it, which look the same here.
    """
    ordered = sorted(rows, key=lambda row: (row.rho is None, -(row.rho or 0.0)))
    data = table_of(
        "fairness",
        ordered,
        _FAIRNESS,
        note="ρ is a job's time from submission to its end (so far) over the time that the same work would "
        "have taken on its fair share of the cluster from the start.",
    )
    known = [
        (getattr(row, by) or NAMELESS, row.rho) for row in ordered if row.rho is not None and row.rho > 0
    ]
    if not known:
        return Part(
            title="Fairness",
            text="ρ is not known of any job yet: it takes measurements and rounds that compare them.",
            tables=(data,),
        )
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for name, rho in known:
        groups[name].append(rho)
    first = {name or NAMELESS: place for place, name in enumerate(drawn_before[:MOST_GROUPS])}
    ordered_names = sorted(groups, key=lambda name: (first.get(name, MOST_GROUPS), -len(groups[name]), name))
    largest = ordered_names[:MOST_GROUPS]
    styles = styles_of(largest, list(first))
    own = {name: sorted(groups[name]) for name in largest}
    others = sorted(rho for name, found in groups.items() if name not in own for rho in found)
    if others:
        own[f"{len(groups) - len(largest)} others"] = others
    rhos = [rho for _, rho in known]
    worse = sum(rho > 1 for rho in rhos)
    summary = (
        f"{plural(worse, 'job')} of {len(known):,} took longer than alone on a fair share of the cluster "
        f"(ρ > 1); the worst has ρ {number_text(max(rhos))}."
    )
    axis = log_axis("finish-time fairness ρ (logarithmic)", rhos, around=1.0)
    chart = LineChart(
        title="What sharing cost the jobs",
        text=summary,
        x=axis,
        panels=(
            Panel(
                y=linear_axis("share of jobs (%)", [0.0, 1.0], percent=True),
                series=tuple(
                    distribution(
                        f"{name} ({plural(len(found), 'job')})", found, axis, styles.get(name, MOST_GROUPS)
                    )
                    for name, found in own.items()
                ),
                height=240.0,
            ),
        ),
        marks=(Mark(x=1.0, text="as fast as alone on a fair share"),),
    )
    return Part(
        title="Fairness",
        text=summary,
        plots=(
            Plot(
                chart=chart,
                caption="Share of jobs with ρ up to a value. Left of the line, sharing made jobs faster than "
                "an equal part of the cluster of their own would have; right of it, it cost them time.",
                data=data,
            ),
        ),
    )
