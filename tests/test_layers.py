"""Imports point downwards only, and importing the package stays light."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.json_texts import parse_json

PACKAGE = Path(__file__).resolve().parent.parent / "pollux_slurm"

# From the bottom up. A part may import from parts on a lower line, and from itself.
LAYERS = (
    {"errors", "extras", "resources", "__init__", "text"},
    {
        "model",
        "config",
        "durations",
        "whole_numbers",
        "rendering",
        "system",
        "json_texts",
    },
    {"goodput", "document"},
    {"policy"},
    {"slurm", "store"},
    {"sandbox"},
    {"agent", "report"},
    {"launch", "env"},
    {"now"},
    {"torch", "daemon", "simulator", "rehearsal"},
    {"trackers"},
    {"lightning", "huggingface", "functions"},
    {"web"},
    {"cli"},
    {"__main__"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


FILES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def imports_of(file: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the imports of a file, wherever in it they stand."""
    return tuple(node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Import | ast.ImportFrom))


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(file: Path) -> set[str]:
    """Return the parts of the package that `file` imports."""
    parts: set[str] = set()
    for node in imports_of(file):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{file}: relative import; write the whole name")
        if isinstance(node, ast.ImportFrom) and node.module == "pollux_slurm":
            parts.update(alias.name if alias.name in LEVEL else "__init__" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pollux_slurm."):
            parts.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            parts.update(a.name.split(".")[1] for a in node.names if a.name.startswith("pollux_slurm."))
    return parts


def test_that_imports_point_downwards_only() -> None:
    assert {part_of(file) for file in FILES} <= LEVEL.keys(), "each part has a place in LAYERS"
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {other} from above or beside"
        for file in FILES
        for other in imported_parts(file) - {part_of(file)}
        if LEVEL[other] >= LEVEL[part_of(file)]
    ]
    assert not wrong, "\n".join(wrong)


def folder_of(file: Path) -> str:
    """Return where a file stands below the package: `store/access`; one at the top stands for itself."""
    inside = file.relative_to(PACKAGE)
    return inside.parent.as_posix() if len(inside.parts) > 1 else inside.stem


def source_of(place: Path) -> Path:
    """Return the file of a module, of a package, or of a name in either."""
    for candidate in (place.with_suffix(".py"), place / "__init__.py"):
        if candidate.exists():
            return candidate
    return source_of(place.parent)


def imported_files(file: Path) -> set[Path]:
    """Return the other files of the package that `file` imports from, for types, too."""
    names: set[str] = set()
    for node in imports_of(file):
        if isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    ours = [name.split(".")[1:] for name in names if name.startswith("pollux_slurm.")]
    return {source_of(PACKAGE.joinpath(*parts)) for parts in ours} - {file}


def imported_folders(file: Path) -> set[str]:
    """Return the other folders that `file` imports from, for types, too."""
    return {folder_of(other) for other in imported_files(file)} - {folder_of(file)}


IN_FOLDERS = [file for file in FILES if "migrations" not in file.parts]


def test_that_no_folders_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for file in IN_FOLDERS:
        graph.setdefault(folder_of(file), set()).update(imported_folders(file))
    graphlib.TopologicalSorter(graph).prepare()


def named_importers(folder: str) -> list[str] | None:
    """Return who may import a folder by the text of its package, None where it has none."""
    init = PACKAGE / folder / "__init__.py"
    if not init.exists():
        return None
    words = ast.get_docstring(tree_of(init)) or ""
    return re.findall(r"`([\w/]+)`", words.partition("May be imported by")[2].partition(".")[0])


def may_import(importer: str, folder: str) -> bool:
    """Return whether a folder may import another: as its package, or as one that it names."""
    named = named_importers(folder)
    is_sibling = importer.split("/")[0] == folder.split("/")[0]
    return (
        named is None
        or importer in {folder.rpartition("/")[0], "__init__"}
        or (importer if is_sibling else importer.split("/")[0]) in named
    )


def test_that_a_folder_is_imported_by_its_package_and_by_those_that_it_names() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {folder}, which does not name it"
        for file in IN_FOLDERS
        for folder in imported_folders(file)
        if not may_import(folder_of(file), folder)
    ]
    assert not wrong, "\n".join(wrong)


def test_that_no_folder_has_more_than_fifteen_files() -> None:
    for top in (PACKAGE, PACKAGE.parent / "tests"):
        folders = (place for place in top.rglob("*") if place.is_dir() and place.parent.name != "goldens")
        for folder in (top, *folders):
            files = [place for place in folder.iterdir() if place.is_file() and place.suffix != ".pyc"]
            assert len(files) <= 15, f"{folder} has {len(files)} files: split it by subject"


@pytest.mark.parametrize(
    "module",
    [
        "pollux_slurm",
        "pollux_slurm.cli",
        "pollux_slurm.store",
        "pollux_slurm.daemon",
        "pollux_slurm.agent",
        "pollux_slurm.launch",
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


# Torch first: once it is imported, it cannot be missing any more.
MISSING = [
    ("pollux_slurm.torch", "torch", "torch"),
    ("pollux_slurm.trackers", "torch", "torch"),
    ("pollux_slurm.lightning", "torch", "torch"),
    ("pollux_slurm.lightning", "lightning", "lightning"),
    ("pollux_slurm.trackers.lightning_callback", "lightning", "lightning"),
    ("pollux_slurm.huggingface", "accelerate", "transformers"),
    ("pollux_slurm.trackers.transformers_callback", "transformers", "transformers"),
]

IMPORTS = """
import importlib, sys
for module, missing, extra in {missing}:
    sys.modules[missing] = None
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        assert str(error).count("pip install") == 1, error
        assert str(error).endswith(f"pip install '.[{{extra}}]'"), error
        print(module, missing)
    del sys.modules[missing]
"""


@pytest.mark.torch
def test_that_the_error_of_a_missing_package_names_its_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(missing=MISSING)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert [tuple(line.split()) for line in done.stdout.splitlines()] == [row[:2] for row in MISSING]


def test_that_no_worker_imports_torch_for_files_that_others_run() -> None:
    """`.ci/check` runs what imports torch or a framework in processes of its own: each takes many seconds."""
    root = PACKAGE.parent
    folders = re.findall(
        r"tests/\w+", "".join(re.findall(r"^with_.*", (root / ".ci/check").read_text(), re.M))
    )
    assert "tests/torch" in folders
    heavy = re.compile(
        r"^(?:import|from) (?:torch|transformers|lightning|accelerate|mlflow|wandb"
        r"|(?:pollux_slurm|tests)\.(?:torch|huggingface|lightning))\b",
        re.M,
    )
    wrong = [
        str(file.relative_to(root))
        for name in ("test_*.py", "conftest.py")
        for file in (root / "tests").rglob(name)
        if not any(file.is_relative_to(root / folder) for folder in folders)
        and heavy.search(re.sub(r'""".*?"""', "", file.read_text(encoding="utf-8"), flags=re.S))
    ]
    assert wrong == [], "import it inside of the tests"


# PySlurm's own process imports nothing of the package, and is asked by the daemon alone.
PARSERS = {"json_texts.py", "slurm/pyslurm/worker.py"}


def test_that_what_cannot_be_parsed_is_one_kind_of_error() -> None:
    assert parse_json(b'{"a": [1, null]}') == {"a": [1, None]}
    for text in ("", "{", "[" * 100_000, '{"a":' * 100_000, "9" * 5_000, b"\xff", '"\n"'):
        with pytest.raises(ValueError, match=r".+"):
            parse_json(text)


def test_that_nothing_else_parses_json() -> None:
    found = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads", "JSONDecoder")
        and isinstance(node.value, ast.Name)
        and node.value.id == "json"
    }
    assert found == PARSERS
