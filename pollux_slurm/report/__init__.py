"""Pages and plots: one self-contained HTML file, drawn without a network or a plotting library.

May be imported by `cli`, `simulator`.

`charts` draws SVG out of plain numbers, `page` puts charts and tables into the template report.html.j2.
"""

from pollux_slurm.report.charts.line_charts import LineChart, Mark, Panel, Series
from pollux_slurm.report.charts.scales import (
    Axis,
    duration_axis,
    duration_text,
    hours,
    linear_axis,
    log_axis,
    minutes,
    value_axis,
)
from pollux_slurm.report.charts.timeline import Bar, Timeline
from pollux_slurm.report.document.page import Figure, Page, Section, Table, render_page

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
