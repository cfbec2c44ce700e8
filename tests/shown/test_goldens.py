"""What people see of a store is in files, one set for both databases.

A change of what is shown changes them: `POLLUX_TEST_GOLDENS=write pytest tests/shown` writes them anew, and
`git diff tests/shown/goldens` is what the change does to people.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest

pytest.importorskip("textual")
pytest.importorskip("starlette")

from tests.shown.surfaces import OF_EACH_DATABASE, SURFACES, rounded

GOLDENS = Path(__file__).parent / "goldens"
IS_WRITING = os.environ.get("POLLUX_TEST_GOLDENS") == "write"


@pytest.mark.parametrize("name", SURFACES)
def test_that_what_people_see_is_as_in_its_golden_file(seeded: tuple[str, str], name: str) -> None:
    backend, url = seeded
    if backend == "postgresql" and name not in OF_EACH_DATABASE:
        return
    file, shown = GOLDENS / name, rounded(SURFACES[name](url))
    if IS_WRITING and backend == "sqlite":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    golden = file.read_text(encoding="utf-8")
    difference = difflib.unified_diff(
        golden.splitlines(), shown.splitlines(), name, "shown", lineterm="", n=1
    )
    assert golden == shown, "\n".join(difference)


def test_that_each_golden_file_is_compared() -> None:
    files = {file.relative_to(GOLDENS).as_posix() for file in GOLDENS.rglob("*") if file.is_file()}
    assert files == set(SURFACES)
