"""Pages and plots: one self-contained HTML file, drawn without a network, a script or a plotting library.

`charts` draws SVG out of plain numbers, `page` puts charts and tables into the template report.html.j2.
"""

from pollux_slurm.report.charts import LineChart, Mark, Panel, Series
from pollux_slurm.report.page import Figure, Page, Section, Table, render_page
from pollux_slurm.report.scales import (
    Axis,
    duration_axis,
    duration_text,
    hours,
    linear_axis,
    log_axis,
    minutes,
    value_axis,
)
from pollux_slurm.report.timeline import Bar, Timeline

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
