"""What every kind of `pollux report` shares: its options, its formats and where it is written."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pollux_slurm.cli.shared.progress_bar import ProgressBar
from pollux_slurm.cli.shared.settings_and_store import (
    ConfigOption,
    StoreOption,
    console,
    escaped_json,
    print_line,
    settings,
)
from pollux_slurm.errors import UsageError

if TYPE_CHECKING:
    from pollux_slurm.config import Config
    from pollux_slurm.document.document import Document

# Of a report in a pipe or a file.
_WIDTH = 120
_FORM_OF_SUFFIX = {
    **{".html": "html", ".htm": "html", ".csv": "csv", ".json": "json", ".txt": "text"},
    **{".svg": "svg", ".png": "png", ".pdf": "pdf"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The options of one report: its store, its format and its destination."""

    config_file: Path | None
    store_url: str | None
    form: str
    table: str | None
    output: Path | None
    static: bool

    def settings(self) -> Config:
        return settings(self.config_file, self.store_url)

    @property
    def is_pictures(self) -> bool:
        """Whether each plot is written to a file of its own."""
        from pollux_slurm.document.charts.rendering import PICTURES

        return self.output is not None and self.form in PICTURES


def _wanted(
    as_html: Annotated[
        bool, typer.Option("--html", help="One HTML page with plots, for any browser.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="One table of the report as CSV.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as JSON.")] = False,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="NAME", help="The table that --csv prints; default: the main one."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to a file; its ending sets the format: .html, .csv, .json, .txt; .svg, .png and .pdf "
            "draw the plots.",
        ),
    ] = None,
    static: Annotated[bool, typer.Option("--static", help="An HTML page without a script.")] = False,
    config_file: ConfigOption = None,
    store_url: StoreOption = None,
) -> Wanted:
    """Return the options of every report. Raises `UsageError` for those that exclude each other."""
    form = _form(as_html, as_csv, as_json, table, output)
    if static and form != "html":
        raise UsageError("--static is for an HTML page: the other formats have no script")
    return Wanted(
        config_file=config_file,
        store_url=store_url,
        form=form,
        table=table,
        output=output,
        static=static,
    )


def report_command(make: Callable[..., Document]) -> Callable[..., None]:
    """Turn a function that returns a document into a command that prints it, with the common options."""
    shared = inspect.signature(_wanted, eval_str=True).parameters

    @functools.wraps(make)
    def command(**given: Any) -> None:
        wanted = _wanted(**{name: given.pop(name) for name in shared})
        with ProgressBar(2, "report") as bar:
            document = make(wanted, **given)
            bar.update(1)
            text = "" if wanted.is_pictures else _text(document, wanted)
        _write_report(document, text, wanted)

    # Without `wanted`, and without the return type, which is not imported here.
    hints = {name: hint for name, hint in make.__annotations__.items() if name not in ("wanted", "return")}
    types = typing.get_type_hints(
        SimpleNamespace(__annotations__=hints), globalns=make.__globals__, include_extras=True
    )
    own = inspect.signature(make).parameters
    parameters = [*(own[name].replace(annotation=hint) for name, hint in types.items()), *shared.values()]
    # typer reads both attributes.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _form(as_html: bool, as_csv: bool, as_json: bool, table: str | None, output: Path | None) -> str:
    """Return the format; raises `UsageError` for several, or for a file that cannot be written."""
    asked = [form for form, wanted in (("html", as_html), ("csv", as_csv), ("json", as_json)) if wanted]
    if len(asked) > 1:
        raise UsageError(f"--{asked[0]} and --{asked[1]} exclude each other")
    form = asked[0] if asked else "text"
    if output is not None and not asked:
        if output.suffix.lower() not in _FORM_OF_SUFFIX:
            raise UsageError(
                f"{output}: its ending is not a known format; use {', '.join(_FORM_OF_SUFFIX)}, or add --html"
            )
        form = _FORM_OF_SUFFIX[output.suffix.lower()]
    if table is not None and form != "csv":
        raise UsageError(f"--table {table} is for --csv: the other formats contain all tables")
    if output is not None:
        from pollux_slurm.simulator.results.files import check_writable

        check_writable(output)
    elif form == "html" and sys.stdout.isatty():
        raise UsageError("an HTML page is for a browser: write it to a file with --output report.html")
    return form


def _write_report(document: Document, text: str, wanted: Wanted) -> None:
    """Print or write a report's text, or write its pictures."""
    from pollux_slurm.simulator.results.files import write_text

    if wanted.output is None:
        _print(text, for_people=wanted.form == "text")
    elif wanted.is_pictures:
        _write_pictures(document, wanted.form, wanted.output)
    else:
        write_text(wanted.output, text)
        print_line(f"wrote {wanted.output}")


def _write_pictures(document: Document, kind: str, output: Path) -> None:
    """Write each plot to a file of its own; where there are several, its title is in the file's name."""
    from pollux_slurm.document.charts.rendering import picture

    plots = [plot for part in document.parts for plot in part.plots]
    if not plots:
        raise UsageError("this report has no plot in this time: there is nothing to draw")
    for plot in plots:
        title = re.sub(r"[^a-z0-9]+", "-", plot.chart.title.lower()).strip("-")
        file = output if len(plots) == 1 else output.with_name(f"{output.stem}-{title}{output.suffix}")
        file.write_bytes(picture(plot.chart, kind))
        print_line(f"wrote {file}")


def _print(text: str, *, for_people: bool) -> None:
    """Print in UTF-8 for programs, and in the terminal's encoding for people."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is not None and not for_people:
        sys.stdout.flush()
        binary.write(text.encode("utf-8"))
        binary.flush()
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    typer.echo(text.encode(encoding, "replace").decode(encoding), nl=False)


def _text(document: Document, wanted: Wanted) -> str:
    from pollux_slurm.document.forms.exports import data_csv, document_json
    from pollux_slurm.document.forms.html import document_html

    if wanted.form == "html":
        return document_html(document, static=wanted.static)
    if wanted.form == "json":
        return escaped_json(document_json(document))
    if wanted.form == "csv":
        return data_csv(document.table(wanted.table))
    from rich.console import Console

    from pollux_slurm.document.forms.terminal import document_text

    in_file = Console(width=_WIDTH, no_color=True, force_terminal=False)
    return document_text(document, console(_WIDTH) if wanted.output is None else in_file)
