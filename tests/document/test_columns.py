"""Columns select, order and cut, whatever the records are."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from rich.console import Console

from pollux_slurm.document.columns import Column, Data, Kind, in_order, matches
from pollux_slurm.document.forms.terminal import print_data, terminal_table
from tests.document.test_document import NOW

NAME = Column(key="name", title="name", kind=Kind.TEXT, least=6)
USER = Column(key="user_name", title="user", kind=Kind.TEXT, value=lambda record: record["by"])
GPUS = Column(key="gpus", title="GPUs", kind=Kind.COUNT, rank=1)
AT = Column(key="at", title="at", kind=Kind.MOMENT, rank=2)
RECORDS = [
    {"name": "resnet-50", "by": "ada", "gpus": 2, "at": NOW},
    {"name": "BERT", "by": "grace", "gpus": None, "at": NOW + timedelta(hours=1)},
    {"name": "vit", "by": "Ada", "gpus": 8, "at": NOW - timedelta(hours=1)},
]


def names(records: list[dict[str, object]]) -> list[object]:
    return [record["name"] for record in records]


def test_that_numbers_and_times_are_ordered_from_large_to_small_and_texts_from_small_to_large() -> None:
    assert names(in_order(RECORDS, GPUS)) == ["vit", "resnet-50", "BERT"], "what is unknown comes last"
    assert names(in_order(RECORDS, AT)) == ["BERT", "resnet-50", "vit"]
    assert names(in_order(RECORDS, NAME)) == ["BERT", "resnet-50", "vit"]
    assert names(in_order(RECORDS, NAME, turned=True)) == ["vit", "resnet-50", "BERT"]
    assert names(in_order(RECORDS, USER)) == ["resnet-50", "vit", "BERT"], "equal ones stay as they are"


def test_that_every_word_must_be_found_and_may_name_its_column() -> None:
    def found(words: str) -> list[object]:
        return names([record for record in RECORDS if matches(record, (NAME, USER, GPUS), words)])

    assert found("") == ["resnet-50", "BERT", "vit"]
    assert found("user:ada") == ["resnet-50", "vit"]
    assert found("user:ADA res") == ["resnet-50"]
    assert found("name:ada") == []
    assert found("8") == [], "numbers are no words"


def shown(width: int) -> tuple[str, list[str]]:
    rows = (("a-long-name-of-a-job", 2, NOW), ("x", None, NOW))
    data = Data(key="jobs", title="", columns=(NAME, GPUS, AT), rows=rows)
    console = Console(file=io.StringIO(), width=width)
    with console.capture() as captured:
        print_data(data, console, command="pollux jobs")
    left_out = terminal_table(data, width).left_out
    return captured.get(), [data.columns[place].key for place in left_out]


@pytest.mark.parametrize(("width", "missing"), [(60, []), (45, []), (40, [])])
def test_that_words_are_cut_before_numbers_are_left_out(width: int, missing: list[str]) -> None:
    text, left_out = shown(width)
    assert left_out == missing
    assert ("a-long-name-of-a-job" in text) == (width >= 47)
    assert "2026-11-21 11:03:07" in text
    assert max(map(len, text.splitlines())) <= width


def test_that_the_highest_rank_is_left_out_first_and_named() -> None:
    columns = (NAME, GPUS, AT, Column(key="more", title="more", kind=Kind.TEXT, least=12))
    data = Data(key="jobs", title="", columns=columns, rows=(("resnet", 2, NOW, "m" * 30),))
    console = Console(file=io.StringIO(), width=40)
    with console.capture() as captured:
        print_data(data, console, command="pollux jobs")
    assert "no room for at: pollux jobs --csv --table jobs" in " ".join(captured.get().split())
    assert [columns[place].key for place in terminal_table(data, 40).left_out] == ["at"]


def test_that_tables_in_capitals_keep_the_case_of_units_and_have_hyphens() -> None:
    goodput = Column(key="goodput", title="goodput/s")
    data = Data(key="jobs", title="", columns=(NAME, goodput), rows=(("x", None),))
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(terminal_table(data, 80, in_capitals=True).drawn)
    assert [line.split() for line in captured.get().splitlines()] == [["NAME", "GOODPUT/s"], ["x", "-"]]
