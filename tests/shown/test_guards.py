"""What keeps one way of showing things one: columns, class names, and plain containers at the edge only."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.test_layers import FILES, PACKAGE, tree_of

_SHOWN = ("cli", "document", "now", "report", "web")

# JSON for programs, and Vega-Lite's: made where they leave the package.
_JSON = {
    "cli/simulate/command.py",
    "document/charts/encodings.py",
    "document/charts/line_charts.py",
    "document/charts/move_bars.py",
    "document/charts/rendering.py",
    "document/charts/timeline.py",
    "document/forms/exports.py",
    "now/json_forms.py",
}

# One name for two frameworks on purpose, and names of parts that never meet.
_SEVERAL = {
    "PolluxMonitor",
    *("Allocation", "Cluster", "Finding", "Interruption", "Move", "NodeGroup", "Plan", "Point"),
    *("Regroup", "RunOutcome", "State", "Wing"),
}


def place_of(file: object) -> str:
    return str(file).removeprefix(f"{PACKAGE}/")


def test_that_plain_containers_are_made_at_the_edge_only() -> None:
    found = {
        place_of(file)
        for file in FILES
        if file.relative_to(PACKAGE).parts[0] in _SHOWN
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef)
        and node.returns is not None
        and "dict[str, Any]" in ast.unparse(node.returns)
    }
    assert found == _JSON


def test_that_a_column_is_defined_once() -> None:
    """The same key and title are the same column, with another value where that comes from elsewhere.

    What a simulator names is another thing: a job of a workload, with times of its own clock.
    """
    places: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for file in (one for one in FILES if one.relative_to(PACKAGE).parts[0] in _SHOWN):
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column":
                key, title = (*node.args, None, None)[:2]
                if isinstance(key, ast.Constant) and isinstance(title, ast.Constant):
                    places[key.value, title.value].append(f"{place_of(file)}:{node.lineno}")
    assert len(places) > 100
    assert {key: found for key, found in places.items() if len(found) > 1} == {}


def test_that_a_public_class_name_stands_once() -> None:
    places: defaultdict[str, set[str]] = defaultdict(set)
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(place_of(file))
    assert {name for name, found in places.items() if len(found) > 1} == _SEVERAL
