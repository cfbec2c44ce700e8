"""docs/tutorials/objective.md: its objective, added to a copy of the package as the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.pages.blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "tutorials" / "objective.md"
REGISTRY = Path("pollux_slurm/policy/objectives/registry.py")


def without_times(text: str) -> str:
    return re.sub(r"[\d.]+ ms", "… ms", text)


def test_that_the_tutorials_objective_decides_as_the_page_shows(tmp_path: Path) -> None:
    blocks = list(blocks_of(PAGE))
    (problem,) = [block for block in blocks if block.title == "problem.json"]
    (function,) = [block.text for block in blocks if block.language == "python"]
    (change,) = [block.text for block in blocks if block.language == "diff"]
    commands = [b.text for b in blocks if b.language == "console" and (b.mark or "").startswith("run by")]
    shown = [block.text for block in blocks if block.language == "text" and block.text.startswith("job")]
    (tmp_path / "problem.json").write_text(problem.text)
    for name in ("pollux_slurm", "templates", "sql"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    registry = tmp_path / REGISTRY
    text = registry.read_text()
    before = "".join(line[1:] for line in change.splitlines(keepends=True) if not line.startswith("+"))
    after = "".join(line[1:] for line in change.splitlines(keepends=True))
    assert text.count(before) == 1
    registry.write_text(
        text.replace(before, function + "\n\n" + after).replace(
            "from __future__ import annotations\n", "from __future__ import annotations\nimport dataclasses\n"
        )
    )
    for command, expected in zip(commands, shown, strict=True):
        words = command.split()
        assert words[0] == "pollux"
        done = subprocess.run(
            [sys.executable, "-m", "pollux_slurm", *words[1:]],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert without_times(done.stdout) == without_times(expected)
