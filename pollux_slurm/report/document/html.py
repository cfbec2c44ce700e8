"""A report as one page: the document's values as texts in tables, its charts as they are."""

from __future__ import annotations

from pollux_slurm.report.document.document import Data, Document, Kind, Plot, text_of
from pollux_slurm.report.document.page import Figure, Page, Section, Table, render_page
from pollux_slurm.text import shortened

# What a reader can still go through, on the page and in what is opened below a plot; CSV and JSON have all.
MOST_ROWS = 50
MOST_VALUES = 200


def document_html(document: Document, *, static: bool = False) -> str:
    """Return the report as HTML text that needs nothing else; `static`: without a script."""
    return render_page(document_page(document), static=static)


def document_page(document: Document) -> Page:
    """Return the page of a report."""
    return Page(
        title=document.title,
        subject=shortened(document.subject, 200),
        lead=document.lead,
        account=next((str(fact.value) for fact in document.facts if fact.key == "account"), ""),
        facts=tuple((fact.title, fact.shown()) for fact in document.facts if not fact.wide),
        wide_facts=tuple((fact.title, fact.shown()) for fact in document.facts if fact.wide),
        sections=tuple(
            Section(
                title=part.title,
                text=part.text,
                figures=tuple(_figure(plot, document) for plot in part.plots),
                tables=tuple(_table(data, document, MOST_ROWS) for data in part.tables if data.rows),
                figures_first=True,
            )
            for part in document.parts
        ),
        made_at=text_of(document.made_at, Kind.MOMENT) + " UTC",
    )


def _figure(plot: Plot, document: Document) -> Figure:
    data = None if plot.data is None else _table(plot.data, document, MOST_VALUES)
    return Figure(chart=plot.chart, caption=plot.caption, data=data)


def _table(data: Data, document: Document, most: int) -> Table:
    """Return the table's texts, at most `most` rows, with the command that prints all."""
    places = data.places(most)
    hint = data.hint(len(places))
    more = f"{hint}; all: {document.command} --csv --table {data.key}" if hint else ""
    columns = [(index, column) for index, column in enumerate(data.columns) if column.shown]
    return Table(
        columns=tuple(column.title for _, column in columns),
        rows=tuple(
            tuple(column.text_of(data.rows[place][index]) for index, column in columns) for place in places
        ),
        values=tuple(tuple(data.rows[place][index] for index, _ in columns) for place in places),
        note=f"{data.note} {more}".strip(),
        title=data.title,
        keys=tuple(column.key for _, column in columns),
        texts=tuple(place for place, (_, column) in enumerate(columns) if column.kind is Kind.TEXT),
        sentences=tuple(place for place, (_, column) in enumerate(columns) if column.is_sentence),
    )
