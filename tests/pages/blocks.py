"""The fenced blocks of README and the pages, with what each says of its test.

A block of shell commands or Python is run as it stands, unless a comment before it says otherwise:

    <!-- run by tests/path/to/test_file.py -->    that test reads the page and runs the block
    <!-- not run: reason -->

A block with a title is a file that the commands after it use.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")], key=lambda path: path.relative_to(ROOT))
)
RUN = ("bash", "console", "python")
SHOWN = ("diff", "ini", "json", "sql", "text", "toml")

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n+)?^```(?P<head>[^\n]*)\n(?P<text>.*?)^```$", re.M | re.S
)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block; `line` is the number of its first line, `mark` the comment before it."""

    page: Path
    line: int
    language: str
    title: str | None
    mark: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.mark is None


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        head = found["head"].strip()
        title = _TITLE.search(head)
        yield Block(
            page=page,
            line=text[: found.start("head")].count("\n") + 1,
            language=head.split()[0] if head else "",
            title=title[1] if title else None,
            mark=found["mark"],
            text=found["text"],
        )


def run_script(lines: Sequence[str], *, cwd: Path, environ: Mapping[str, str], timeout_s: float) -> None:
    """Run lines in one shell; they are to succeed."""
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
