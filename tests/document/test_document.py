"""One description of a report, and what programs and people get of it."""

from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime, timedelta, timezone

import pytest

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.columns import Column, Data, Kind, text_of
from pollux_slurm.document.document import Document, Fact, Part
from pollux_slurm.document.forms.exports import data_csv, document_json
from pollux_slurm.document.forms.html import MOST_ROWS, document_html
from pollux_slurm.errors import UsageError
from pollux_slurm.text import number_text
from tests.report.parsed import parse

NOW = datetime(2026, 11, 21, 11, 3, 7, tzinfo=timezone.utc)
COLUMNS = (
    Column(key="name", title="name", kind=Kind.TEXT),
    Column(key="at", title="time", kind=Kind.MOMENT),
    Column(key="rho", title="ρ"),
    Column(key="id", title="id", kind=Kind.COUNT, shown=False),
)


def table(*rows: tuple[object, ...], key: str = "jobs", **changes: object) -> Data:
    return Data(key=key, title="", columns=COLUMNS, rows=rows, **changes)  # type: ignore[arg-type]


def document(*tables: Data) -> Document:
    return Document(
        kind="cluster",
        title="Report",
        subject="",
        lead="What it is about.",
        facts=(Fact(key="gpu_hours", title="GPU hours", value=1.5), Fact(key="rho", title="ρ", value=None)),
        parts=(Part(title="Jobs", tables=tables),),
        made_at=NOW,
        range=Range(since=NOW - timedelta(days=1), until=NOW),
        command="pollux report cluster --since 1d",
    )


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, Kind.NUMBER, "–"),
        (float("nan"), Kind.SHARE, "–"),
        (float("inf"), Kind.SECONDS, "–"),
        ("", Kind.TEXT, "–"),
        ("a\x1b", Kind.TEXT, "a\N{REPLACEMENT CHARACTER}"),
        (True, Kind.TEXT, "yes"),
        (NOW, Kind.MOMENT, "2026-11-21 11:03:07"),
        (date(2026, 11, 1), Kind.DAY, "2026-11-01"),
        (90.0, Kind.SECONDS, "1.5 min"),
        (0.125, Kind.SHARE, "12.5 %"),
        (-0.071, Kind.SHARE, "\N{MINUS SIGN}7.1 %"),
        (-0.0001, Kind.SHARE, "0.0 %"),
        (12345.6, Kind.NUMBER, "12,346"),
        (12.345, Kind.NUMBER, "12.3"),
        (-0.5, Kind.NUMBER, "\N{MINUS SIGN}0.500"),
        (1e-7, Kind.NUMBER, "1e\N{MINUS SIGN}07"),
        (4.0, Kind.NUMBER, "4"),
        (2**40, Kind.COUNT, "1,099,511,627,776"),
    ],
)
def test_that_values_are_texts_for_people(value: object, kind: Kind, text: str) -> None:
    assert text_of(value, kind) == text  # type: ignore[arg-type]


def test_that_numbers_never_fail() -> None:
    assert [number_text(value) for value in (1e300, -1e300, 5e-324)] == [
        "1e+300",
        "\N{MINUS SIGN}1e+300",
        "4.94e\N{MINUS SIGN}324",
    ]


def test_that_json_has_everything_and_no_nan() -> None:
    text = document_json(document(table(("=a\x1b", NOW, float("nan"), 7)), table(key="empty")))
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found["tables"] == {
        "jobs": [{"name": "=a\x1b", "at": "2026-11-21T11:03:07+00:00", "rho": None, "id": 7}],
        "empty": [],
    }
    assert (found["report"], found["facts"]) == ("cluster", {"gpu_hours": 1.5, "rho": None})
    assert found["since"] == "2026-11-20T11:03:07+00:00"


def test_that_csv_is_read_back_as_it_was_and_runs_no_formula() -> None:
    rows = (
        ('a, "b"\nc', NOW, 0.1, 7),
        ("=HYPERLINK(1)", NOW, None, -3),
        ("@x", NOW, 1.0, 1),
        ("\t=x\0\r", NOW, 1.0, 1),
    )
    read = list(csv.DictReader(io.StringIO(data_csv(table(*rows)))))
    assert [row["name"] for row in read] == ['a, "b"\nc', "'=HYPERLINK(1)", "'@x", "\ufffd=x\ufffd\ufffd"]
    assert [row["rho"] for row in read[:2]] == ["0.1", ""]
    assert (read[0]["at"], read[1]["id"]) == ("2026-11-21T11:03:07+00:00", "-3")


def test_that_a_table_is_asked_for_by_name() -> None:
    found = document(table(), table(key="nodes"))
    assert (found.table(None).key, found.table("nodes").key) == ("jobs", "nodes")
    with pytest.raises(UsageError, match="no table 'x'; it has jobs, nodes"):
        found.table("x")


@pytest.mark.parametrize(
    ("keep", "first", "last"),
    [("first", 0, MOST_ROWS - 1), ("last", 1000 - MOST_ROWS, 999), ("spread", 0, 999)],
)
def test_that_a_page_shows_some_of_many_rows_and_says_how_to_get_all(
    keep: str, first: int, last: int
) -> None:
    many = table(*((f"j{i}", NOW, 1.0, i) for i in range(1000)), keep=keep)
    page = parse(document_html(document(many)).replace("<!DOCTYPE html>", ""))
    names = [cell.text for cell in page.all("th", scope="row")]
    assert (len(names), names[0], names[-1]) == (MOST_ROWS, f"j{first}", f"j{last}")
    assert "all: pollux report cluster --since 1d --csv --table jobs" in page.texts()
