"""Imports point downwards only, and importing the package stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "pollux_slurm"

# From the bottom up. A part may import from parts on a lower line, and from itself.
LAYERS = (
    {"errors", "resources", "__init__"},
    {"model", "config", "durations", "rendering", "processes"},
    {"goodput"},
    {"policy"},
    {"slurm", "store"},
    {"sandbox"},
    {"agent", "report"},
    {"env"},
    {"torch", "daemon", "simulator", "rehearsal"},
    {"cli"},
    {"__main__"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(file: Path) -> set[str]:
    """Return the parts of the package that `file` imports, wherever in the file the import stands."""
    parts: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{file}: relative import; write the whole name")
        if isinstance(node, ast.ImportFrom) and node.module == "pollux_slurm":
            parts.update(alias.name if alias.name in LEVEL else "__init__" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pollux_slurm."):
            parts.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            parts.update(a.name.split(".")[1] for a in node.names if a.name.startswith("pollux_slurm."))
    return parts


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_that_imports_point_downwards_only(file: Path) -> None:
    part = part_of(file)
    assert part in LEVEL, f"{part} has no place in LAYERS"
    for other in imported_parts(file) - {part}:
        assert LEVEL[other] < LEVEL[part], f"{file.relative_to(PACKAGE)} imports {other} from above or beside"


@pytest.mark.parametrize(
    "module",
    [
        "pollux_slurm",
        "pollux_slurm.cli",
        "pollux_slurm.store",
        "pollux_slurm.daemon",
        "pollux_slurm.agent",
        "pollux_slurm.env",
    ],
)
def test_that_importing_needs_no_torch_no_pyslurm_no_driver(module: str) -> None:
    code = (
        f"import {module}, sys; "
        "print([m for m in ('torch', 'pyslurm', 'psycopg', 'psycopg2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == "[]"
