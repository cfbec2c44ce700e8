"""A page of sections, each with tables and figures, as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pollux_slurm import __version__
from pollux_slurm.report.charts.palette import DARK, LIGHT
from pollux_slurm.report.charts.rendering import Chart, page_svg, script, specification
from pollux_slurm.resources import resource_dir
from pollux_slurm.text import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts; the first column names the row. `note` explains the columns.

    `texts` are the places of columns that are words, not numbers, `sentences` of those that are never cut;
    `keys` name the columns for programs, where they have such names; `values` are the rows as they are, where
    texts are shortened.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    title: str = ""
    texts: tuple[int, ...] = ()
    sentences: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    values: tuple[tuple[object, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A chart, how to read it, and its values as a table that can be opened below."""

    chart: Chart
    caption: str
    data: Table | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A headed part of a page."""

    title: str
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    text: str = ""
    figures_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A whole page. `facts` are names and values of its subject, `wide_facts` long ones;
    `subject` is a name beside the title, in whatever script; `account` is that of its subject, if it has one.
    """

    title: str
    lead: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    made_at: str = ""
    subject: str = ""
    account: str = ""
    wide_facts: tuple[tuple[str, str], ...] = ()


def render_page(page: Page, *, static: bool = False) -> str:
    """Return the page as HTML text. All text in it is escaped, whoever wrote it.

    Charts are pictures, which a script makes react to a pointer; a `static` page has no script.
    """
    names, drawn = section_ids(page), drawn_figures(page, with_picture=True, with_specification=not static)
    code = "" if static or not any(drawn) else script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    return (
        page_environment()
        .get_template("report.html.j2")
        .render(
            page=page,
            names=names,
            drawn=drawn,
            version=__version__,
            script=Markup(code),
            policy=f"script-src 'sha256-{digest}'" if code else "script-src 'none'",
            light=LIGHT,
            dark=DARK,
        )
    )


def drawn_figures(page: Page, *, with_picture: bool, with_specification: bool) -> list[list[DrawnFigure]]:
    """Return the charts of each section as they stand on a page."""

    def drawn(chart: Chart, name: str) -> DrawnFigure:
        text = specification(chart)
        return DrawnFigure(
            svg=Markup(page_svg(text, name) if with_picture else ""),
            specification=Markup(text if with_specification else ""),
        )

    return [
        [drawn(figure.chart, f"{name}-{index}") for index, figure in enumerate(section.figures)]
        for name, section in zip(section_ids(page), page.sections, strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnFigure:
    """A chart as it stands on a page: a picture, the specification for the script, or both."""

    svg: Markup
    specification: Markup


def page_environment() -> Environment:
    """Return what renders pages: all text is escaped, and cannot reorder or hide other text."""
    return Environment(
        loader=FileSystemLoader(resource_dir("templates")),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )


def _finalize(value: object) -> object:
    """Return what a template prints, without characters that would reorder or hide others."""
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def section_ids(page: Page) -> list[str]:
    """Return an id for each section: its title's letters and digits, and its place."""
    return [
        f"{re.sub(r'[^a-z0-9]+', '-', section.title.lower()).strip('-')}-{index}"
        for index, section in enumerate(page.sections)
    ]
