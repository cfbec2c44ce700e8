"""Charts as JSON for a page with scripts, as SVG within a page, and as pictures in files.

All of a chart's forms are made from the same specification. No form needs a browser or a network.
"""

from __future__ import annotations

import functools
import json
import math
import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, Protocol

from pollux_slurm.document.charts.encodings import altair
from pollux_slurm.document.charts.palette import on_paper
from pollux_slurm.json_texts import parse_json
from pollux_slurm.resources import resource_dir

if TYPE_CHECKING:
    from altair.typing import ChartType

PICTURES = ("svg", "png", "pdf")
"""The kinds of pictures, by the ending of their files."""


class Chart(Protocol):
    """What draws itself; `text` describes it in words."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...

    def altair(self) -> ChartType:
        """Return the chart for Altair, with CSS variables as colours."""
        ...


def specification(chart: Chart) -> str:
    """Return the chart's Vega-Lite specification as JSON that may stand within a script element."""
    return json.dumps(_dict(chart), separators=(",", ":")).replace("<", "\\u003c")


def page_svg(drawn: str, name: str) -> str:
    """Return the chart of a `specification` as an SVG element for a page; `name` makes its ids unique."""
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(drawn)
    svg = re.sub(r'(id="|url\(#)(\w+)', rf"\g<1>{name}-\g<2>", svg)
    return re.sub(r'^<svg ([^>]*?)width="[\d.]+" height="[\d.]+"', r"<svg \1", svg, count=1)


def picture(chart: Chart, kind: str) -> bytes:
    """Return the chart as a file of one of `PICTURES`, in the colours for paper."""
    import vl_convert

    text = on_paper(json.dumps(_dict(chart) | {"background": "white"}))
    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(text)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(text, scale=2.0))
    return bytes(vl_convert.vegalite_to_pdf(text))


def notebook_chart(chart: Chart) -> ChartType:
    """Return the chart for a notebook: an Altair object, in the colours for paper."""
    alt = altair()
    found = parse_json(on_paper(json.dumps(_dict(chart))))
    kinds = {"layer": alt.LayerChart, "vconcat": alt.VConcatChart, "hconcat": alt.HConcatChart}
    kind = next((of for key, of in kinds.items() if key in found), alt.Chart)
    return kind.from_dict(found, validate=False)  # type: ignore[no-any-return]


@functools.cache
def script() -> str:
    """Return the script that makes a page's charts react to a pointer: Vega, and `templates/charts.js`."""
    altair()
    import vl_convert

    code = (resource_dir("templates") / "charts.js").read_text(encoding="utf-8")
    bundle: str = vl_convert.javascript_bundle(code)
    return re.sub(r"</(script)", r"<\\/\1", bundle, flags=re.IGNORECASE)


_BUILDING = threading.Lock()


def _dict(chart: Chart) -> dict[str, Any]:
    from altair.utils.schemapi import debug_mode

    # Altair would check every part against its schema, which takes half of a page's time; a test does that.
    # The switch is global: one thread at a time.
    with _BUILDING, debug_mode(False), warnings.catch_warnings():
        # Plots above each other share their zoom, which is meant.
        warnings.filterwarnings("ignore", message="Automatically deduplicated selection parameter")
        return dict(_finite(chart.altair().to_dict(validate=False)))


def _finite(value: Any) -> Any:
    """Return a value of JSON with null in place of numbers that are none: JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
