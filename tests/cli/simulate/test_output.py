"""Tables that fit the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pollux_slurm.cli.simulate.output import Column, print_table

COLUMNS = (
    Column(title="workload", cells=("w-1", "w-1"), rank=3, left=True),
    Column(title="policy", cells=("generalized-mean", "tiresias"), left=True),
    Column(title="average", cells=("3,876", "12,345")),
    Column(title="solve", cells=("0.1", "0.2"), rank=2),
    Column(title="p99", cells=("22,421", "22,439"), rank=1),
)


def printed(width: int, *, terminal: bool = True) -> str:
    out = io.StringIO()
    print_table(COLUMNS, "A note.", Console(file=out, width=width, force_terminal=terminal, no_color=True))
    return out.getvalue()


@pytest.mark.parametrize(
    ("width", "missing"),
    [(100, ()), (43, ("workload",)), (36, ("workload", "solve")), (28, ("workload", "solve", "p99"))],
)
def test_that_omitted_columns_are_named(width: int, missing: tuple[str, ...]) -> None:
    text = printed(width)
    head = text.splitlines()[0]
    shown = [column for column in COLUMNS if column.title not in missing]
    assert [title for title in ("workload", "policy", "average", "solve", "p99") if title in head] == [
        column.title for column in shown
    ]
    assert "…" not in text
    assert all(cell in text for column in shown for cell in column.cells)
    assert ("No room for" in text) == bool(missing)
    assert all(title in text for title in missing)


def test_that_a_pipe_gets_every_column() -> None:
    assert "No room" not in printed(20, terminal=False)
    assert "22,421" in printed(20, terminal=False)
