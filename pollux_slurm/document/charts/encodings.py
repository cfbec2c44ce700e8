"""What all charts share in Altair: axes (times in UTC), colours by label, zooming, the look."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pollux_slurm.document.charts.palette import DASHES, GRID, SERIES, SOFT, TEXT
from pollux_slurm.document.charts.scales import Axis, Scale
from pollux_slurm.errors import UsageError
from pollux_slurm.extras import INSTALL_VIEW

WIDTH = 800
"""The width of a chart's plots in pixels; a page with scripts fits them to its own."""

_DURATION_TEXT = (
    "datum.value >= 86400 ? format(datum.value / 86400, '~g') + ' d' : "
    "datum.value >= 3600 ? format(datum.value / 3600, '~g') + ' h' : "
    "datum.value >= 60 ? format(datum.value / 60, '~g') + ' min' : format(datum.value, '~g') + ' s'"
)

_TIME_FORMS = {
    **{
        "year": "%Y",
        "quarter": "%b %Y",
        "month": "%b %Y",
        "week": "%-d %b",
        "date": "%-d %b",
        "day": "%-d %b",
    },
    **{"hours": "%H:%M", "minutes": "%H:%M", "seconds": "%H:%M:%S", "milliseconds": "%H:%M:%S"},
}


def altair() -> Any:
    """Return Altair. Raises `UsageError` where it, or vl-convert, is not installed."""
    try:
        import altair as alt
        import vl_convert  # noqa: F401
    except ImportError:
        raise UsageError(f"plots need Altair and vl-convert; {INSTALL_VIEW}") from None
    return alt


def rows_as_data(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows for `alt.Chart`, which names them once, however many layers draw them.

    As a tuple: Altair copies lists at each step of building a chart.
    """
    return altair().InlineData(values=tuple(rows))


def place(axis: Axis, value: float) -> float:
    """Return a value as Vega has it: times in milliseconds since 1970."""
    return 1000 * value if axis.scale is Scale.TIME else value


def position(field: str, axis: Axis, *, labels: bool = True) -> dict[str, Any]:
    """Return the arguments of `alt.X` or `alt.Y` for an axis; without `labels` it has ticks only."""
    more: dict[str, Any] = {"title": axis.label if labels else None, "labels": labels}
    if axis.ticks:
        more["values"] = list(axis.ticks)
    if axis.tick_texts:
        texts = dict(zip(axis.ticks, axis.tick_texts, strict=True))
        more["labelExpr"] = f"{json.dumps(texts)}[datum.value]"
    elif axis.scale is Scale.TIME:
        more |= {"format": _TIME_FORMS, "tickCount": 8}
    elif axis.scale is Scale.SHARE:
        more["format"] = "~%"
    elif axis.scale is Scale.DURATION:
        more["labelExpr"] = _DURATION_TEXT
    elif axis.scale is Scale.LOG:
        more["format"] = "~g"
    return {
        "shorthand": field,
        "type": "temporal" if axis.scale is Scale.TIME else "quantitative",
        "scale": _scale(axis),
        "axis": more,
    }


def _scale(axis: Axis) -> dict[str, Any]:
    if axis.scale is Scale.TIME:
        # Vega-Lite 6.4 takes no domain of times in layered plots: `frame` has its ends instead.
        return {"type": "utc", "nice": False}
    return {
        "type": "log" if axis.scale.is_log else "linear",
        "domain": (axis.low, axis.high),
        "nice": not axis.scale.is_log and not axis.ticks,
        **({} if axis.scale.is_log else {"zero": False}),
    }


def frame(axis: Axis, *, labels: bool = True) -> Any:
    """Return a layer of nothing that can be seen, from one end of an x axis to the other."""
    alt = altair()
    ends = ({"end": place(axis, axis.low)}, {"end": place(axis, axis.high)})
    return (
        alt.Chart(rows_as_data(ends))
        .mark_point(opacity=0)
        .encode(x=alt.X(**position("end", axis, labels=labels)))
    )


def tooltip(field: str, axis: Axis, title: str = "") -> Any:
    """Return the tooltip of a value on an axis."""
    alt = altair()
    if axis.scale is Scale.TIME:
        return alt.Tooltip(f"utcyearmonthdatehoursminutesseconds({field}):T", title="time (UTC)")
    form = ".1%" if axis.scale is Scale.SHARE else ",.4~g"
    return alt.Tooltip(f"{field}:Q", title=title or axis.label, format=form)


def colour(labels: Sequence[str], styles: Sequence[int], *, legend: str) -> Any:
    """Return the colours of the field `label`, with a `legend` of `stroke` or `square` symbols, if any."""
    alt = altair()
    return alt.Color(
        "label:N",
        scale={"domain": tuple(labels), "range": tuple(SERIES[style % len(SERIES)] for style in styles)},
        legend=_legend(legend) if legend else None,
    )


def dashes(labels: Sequence[str], styles: Sequence[int], *, legend: str) -> Any:
    """Return the dashes of the field `label`; its legend is one with that of the colours."""
    alt = altair()
    found = tuple(tuple(DASHES[style % len(DASHES)]) for style in styles)
    return alt.StrokeDash(
        "label:N",
        scale={"domain": tuple(labels), "range": found},
        legend=_legend(legend) if legend else None,
    )


def _legend(symbol: str) -> dict[str, Any]:
    return {
        **{"title": None, "orient": "top", "columns": 4, "labelLimit": 320},
        **{"symbolSize": 200, "symbolType": symbol},
    }


def chosen(name: str) -> Any:
    """Return the choice of labels by clicks in the legend; all are chosen at first."""
    return altair().selection_point(name=name, fields=["label"], bind="legend")


def zoom() -> Any:
    """Return zooming and panning along the x axis, of all plots together. The wheel alone scrolls."""
    return altair().selection_interval(
        name="zoom", bind="scales", encodings=["x"], zoom="wheel![event.shiftKey]"
    )


def look(title: str, text: str) -> dict[str, Any]:
    """Return the arguments of a whole chart: the house's look, and words for those who do not see it."""
    config = {
        "aria": False,
        "font": "sans-serif",
        "view": {"stroke": None},
        "axis": {
            **{"gridColor": GRID, "domainColor": SOFT, "tickColor": SOFT},
            **{"labelColor": TEXT, "titleColor": TEXT, "labelFontSize": 12, "titleFontSize": 12},
            **{"titleFontWeight": "bold", "labelOverlap": True, "labelSeparation": 6},
        },
        "legend": {
            **{"labelColor": TEXT, "titleColor": TEXT, "labelFontSize": 12, "titleFontSize": 12},
            **{"symbolStrokeWidth": 2.2},
        },
        "title": {"color": TEXT, "fontSize": 12, "anchor": "start"},
        "text": {"fill": TEXT, "fontSize": 12},
    }
    return {"description": f"{title}. {text}", "background": "transparent", "config": config}
