"""docs/sql.md has a query of each view with its result for the hand-made day."""

from __future__ import annotations

import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.view_rows import ROW_TYPES
from tests.store.schema.test_views import rows_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "sql.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


def cell(value: Any) -> str:
    """Return a value as the page shows it, whichever database it comes from."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.2f}".replace("-0.00", "0.00")
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, date):
        return value.isoformat()
    return re.sub(r"\.0{6}$", "", str(value))


def answer(rows: list[dict[str, Any]]) -> str:
    """Return rows as a text table with aligned columns."""
    lines = [list(rows[0]), *([cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


@pytest.mark.parametrize(("question", "shown"), SHOWN, ids=[str(n) for n in range(len(SHOWN))])
def test_that_the_page_shows_the_results_of_the_database(day: Store, question: str, shown: str) -> None:
    assert answer(rows_of(day, question)) == shown.rstrip()


def test_that_every_view_and_column_is_on_the_page_with_an_example() -> None:
    questions = " ".join(question for question, _ in SHOWN)
    for kind in ROW_TYPES:
        assert f"FROM {kind.VIEW}" in questions, kind.VIEW
        (row,) = re.findall(rf"^\| `{kind.VIEW}` \|.*$", PAGE, re.MULTILINE)
        # user_usage says "the rest as in account_usage".
        rest = () if kind.VIEW != "user_usage" else ("throughput", "goodput")
        for name in kind.__slots__:
            assert f"`{name}`" in row or rest, f"{kind.VIEW}.{name}"
