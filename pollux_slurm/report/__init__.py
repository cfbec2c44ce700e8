"""Reports: pages with plots, terminal text, CSV and JSON, pictures, and frames for notebooks.

May be imported by `cli`, `simulator`, `web`.

`charts` makes charts of plain numbers, `document` the forms of a report, `parts` one subject each.
"""

from pollux_slurm.report.charts.line_charts import LineChart, Mark, Panel, Series
from pollux_slurm.report.charts.scales import (
    Axis,
    duration_axis,
    hours,
    linear_axis,
    log_axis,
    minutes,
    value_axis,
)
from pollux_slurm.report.charts.timeline import Bar, Timeline
from pollux_slurm.report.document.page import Figure, Page, Section, Table, render_page
from pollux_slurm.text import duration_text

__all__ = [
    "Axis",
    "Bar",
    "Figure",
    "LineChart",
    "Mark",
    "Page",
    "Panel",
    "Section",
    "Series",
    "Table",
    "Timeline",
    "duration_axis",
    "duration_text",
    "hours",
    "linear_axis",
    "log_axis",
    "minutes",
    "render_page",
    "value_axis",
]
