"""A document as one HTML page that needs nothing else, and the pieces of it for other pages.

Charts are pictures, which a script makes react to a pointer; a `static` page has no script.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pollux_slurm import __version__
from pollux_slurm.document.charts.palette import DARK, LIGHT
from pollux_slurm.document.charts.rendering import page_svg, script, specification
from pollux_slurm.document.columns import Column, Data, Kind, Value, text_of
from pollux_slurm.document.document import Document
from pollux_slurm.resources import resource_dir
from pollux_slurm.text import shortened, shown

# What a reader can still go through, on the page (the shipped comparison whole) and in what is opened below a
# plot; CSV and JSON have all.
MOST_ROWS = 60
MOST_VALUES = 200


def document_html(document: Document, *, static: bool = False) -> str:
    """Return the document as HTML text. All text in it is escaped, whoever wrote it."""
    pieces = page_pieces(document, with_picture=True, with_specification=not static)
    code = "" if static or not any(pieces["drawn"]) else script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            **pieces,
            version=__version__,
            script=Markup(code),
            policy=f"script-src 'sha256-{digest}'" if code else "script-src 'none'",
            light=LIGHT,
            dark=DARK,
        )
    )


def page_pieces(document: Document, *, with_picture: bool, with_specification: bool) -> Mapping[str, Any]:
    """Return what templates need of a document: itself, ids of its parts, and its charts as they are drawn.

    `drawn` has for each plot of each part a picture, the specification for the script, or both.
    """
    ids = [
        f"{re.sub(r'[^a-z0-9]+', '-', part.title.lower()).strip('-')}-{index}"
        for index, part in enumerate(document.parts)
    ]

    def drawn(text: str, name: str) -> tuple[Markup, Markup]:
        return Markup(page_svg(text, name) if with_picture else ""), Markup(
            text if with_specification else ""
        )

    return {
        "page": document,
        "names": ids,
        "drawn": [
            [drawn(specification(plot.chart), f"{name}-{index}") for index, plot in enumerate(part.plots)]
            for name, part in zip(ids, document.parts, strict=True)
        ],
        "made_at": "" if document.made_at is None else f"{text_of(document.made_at, Kind.MOMENT)} UTC",
    }


def page_environment() -> Environment:
    """Return what renders pages: all text is escaped, and cannot reorder or hide other text."""
    environment = Environment(
        loader=FileSystemLoader(resource_dir("templates")),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    environment.globals.update(cell_text=_cell_text, note_of=_note, places_of=_places)
    environment.filters["shortened"] = shortened
    return environment


def _finalize(value: object) -> object:
    """Return what a template prints, without characters that would reorder or hide others."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _cell_text(column: Column, value: Value) -> str:
    """Return a cell's text. On paper, where columns are narrow, no number is parted from its %."""
    text = column.text_of(value)
    return text.replace(" %", "\N{NO-BREAK SPACE}%") if column.kind is Kind.SHARE else text


def _places(data: Data, many: bool) -> list[int]:
    """Return the rows that stand on the page, `many` of them where they are opened below a plot."""
    return data.places(MOST_VALUES if many else MOST_ROWS)


def _note(data: Data, command: str, many: bool) -> str:
    """Return a table's note, and where it has not all of its rows, what prints all."""
    hint = data.hint(len(_places(data, many)))
    more = f"; all: {command} --csv --table {data.key}" if hint and command else ""
    return f"{data.note} {hint}{more}".strip()
