"""`pollux config table`, and the page that has it."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.config import load_config
from tests.cli.inside import pollux

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def test_that_the_page_has_the_table_that_the_code_makes() -> None:
    table = pollux("config", "table").stdout
    begin = "<!-- settings: made by `pollux config table` -->\n"
    assert begin + table + "<!-- end of settings -->" in PAGE.read_text(encoding="utf-8")


def test_that_the_table_has_every_key_with_its_meaning() -> None:
    rows = [row.split(" | ") for row in pollux("config", "table").stdout.splitlines()[2:]]
    assert [row[0].strip("|` ") for row in rows] == [key for key, _ in load_config({}).origins]
    assert all(row[-1].strip("| ") for row in rows)


def test_that_the_table_has_defaults_and_bounds() -> None:
    table = pollux("config", "table").stdout
    assert "| `daemon.interval_s` | 60.0 | 0.5 to 86400 |" in table
    assert "| `policy.hysteresis` | – | 0 to below 1 |" in table
    assert "| `policy.between` | users | `users`, `accounts`, `jobs` |" in table
    assert "| `policy.kept_shares` | – | each 0 to 1 |" in table
