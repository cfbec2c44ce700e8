"""CSV files of numbers: read by column, they are what they are by row, and refused in the same words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.csv_tables import (
    number,
    numbers,
    read_columns,
    read_rows,
    whole,
    whole_numbers,
)


def written(folder: Path, text: str) -> Path:
    file = folder / "table.csv"
    file.write_text(text)
    return file


def by_row(file: Path) -> tuple[list[int], list[float]]:
    rows = read_rows(file, ("n", "t"))
    return [whole(file, row, "n", low=1) for row in rows], [number(file, row, "t") for row in rows]


def by_column(file: Path) -> tuple[list[int], list[float]]:
    n, t = read_columns(file, ("n", "t"))
    return whole_numbers(file, "n", n, low=1), numbers(file, "t", t)


@pytest.mark.parametrize(
    "text",
    [
        "n,t\n1,0.5\n2,1e3\n",
        "t,more,n\n0.5,x,1\n\n1.5,,2\n",  # an empty line is none, what nobody asks for may be empty
        "n,t\n1.0, 7 ,9\n",
        "n,t,n\n5,1,6\n",  # of two columns of one name, the last counts
        "n,t\n",
    ],
)
def test_that_columns_are_those_of_the_rows(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    assert by_column(file) == by_row(file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n,s\n1,2\n",
        "n,t\n1,2\n3\n4,5\n",
        "n,t\n1,2\n,3\n",
        "n,t\n1,1\n2,nan\n3,2\n",
        "n,t\n1,1\n2,inf\n",
        "n,t\n1,1\n2,-1\n",
        "n,t\n1,1\n2,x\n",
        "n,t\n1,1\n2.5,1\n",
        "n,t\n1,1\n0,1\n",
    ],
)
def test_that_a_mistake_has_the_same_message_by_row_and_by_column(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(TraceError) as wanted:
        by_row(file)
    with pytest.raises(TraceError) as found:
        by_column(file)
    assert str(found.value) == str(wanted.value)


def test_that_numbers_whose_sum_overflows_are_accepted(tmp_path: Path) -> None:
    assert numbers(tmp_path, "t", ["1e308", "1e308"]) == [1e308, 1e308]
