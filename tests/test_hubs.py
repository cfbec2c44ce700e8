"""No hub knows all parts by name: no circle of files, no large class or function.

What breaks a rule is listed with its reason. The lists may only shrink: an entry that breaks none fails, too.
"""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

from tests.test_layers import FILES, PACKAGE, imported_files, tree_of

MOST_METHODS, MOST_LINES = 20, 60

_FRAMEWORK = "it overrides the methods of a framework's class"
_WAYS = "Slurm's interface: a method a command"
CLASSES = {
    "cli/top/app.py:TopApp": "Textual finds a method for each key and event",
    "huggingface/accelerator.py:PolluxAccelerator": _FRAMEWORK,
    "huggingface/trainer.py:PolluxTrainerMixin": _FRAMEWORK,
    "lightning/strategy.py:PolluxStrategy": _FRAMEWORK,
    "slurm/client.py:SlurmClient": _WAYS,
    "slurm/commands/command_client.py:CommandClient": _WAYS,
    "slurm/merging_client.py:MergingClient": _WAYS,
    "torch/api/accumulator.py:Accumulator": "a mapping with operators",
    "torch/api/data_loader.py:AdaptiveDataLoader": "what a script asks of it: a property for each fact",
    "torch/gradients/reducer.py:GradientReducer": "one state, which DDP, the loader and the script change",
    "torch/wrapped_model/wrapped_model.py:WrappedModel": _FRAMEWORK,
}

_SEARCH = "one search over arrays, with its algebra above its lines"
FUNCTIONS = {
    "daemon/service/metrics.py:DaemonMetrics.__init__": "a metric after the other",
    "report/parts/fairness.py:fairness_part": "a part of a page, a chart after the other",
    "simulator/experiments/axis_plots.py:_plot": "a figure, an axis after the other",
}


def name_of(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def test_that_no_files_import_each_other_in_a_circle() -> None:
    graph = {name_of(file): {name_of(other) for other in imported_files(file)} for file in FILES}
    graphlib.TopologicalSorter(graph).prepare()


Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef):
                yield f"{name_of(file)}:{node.name}", node


def functions() -> Iterator[tuple[str, Function]]:
    """Yield each function and method; one inside of another is part of that."""
    for file in FILES:
        for node in tree_of(file).body:
            if isinstance(node, Function):
                yield f"{name_of(file)}:{node.name}", node
    for owner, node in classes():
        for inner in node.body:
            if isinstance(inner, Function):
                yield f"{owner}.{inner.name}", inner


def num_lines(first: ast.AST, last: ast.AST | None = None) -> int:
    end: int = getattr(last or first, "end_lineno", 0)
    return end - int(getattr(first, "lineno", 0)) + 1


def body_of(function: Function) -> list[ast.stmt]:
    """Return the statements of a function, without its text."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def is_table(function: Function) -> bool:
    """Whether it neither branches nor loops, or more than half of it is one call or display."""
    branches = (ast.If, ast.For, ast.While, ast.Try, ast.Match)
    if not any(isinstance(node, branches) for node in ast.walk(function)):
        return True
    body = body_of(function)
    displays = (ast.Call, ast.List, ast.Tuple, ast.Dict, ast.Set)
    largest = max((num_lines(node) for node in ast.walk(function) if isinstance(node, displays)), default=0)
    return 2 * largest > num_lines(body[0], body[-1])


def is_overload(function: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in function.decorator_list)


def test_that_no_class_has_more_than_twenty_methods() -> None:
    large = set()
    for name, node in classes():
        methods = [one for one in node.body if isinstance(one, Function) and not is_overload(one)]
        if len(methods) > MOST_METHODS:
            large.add(name)
    assert sorted(large - CLASSES.keys()) == [], "let its parts listen, or give them classes of their own"
    assert sorted(CLASSES.keys() - large) == [], "these are small: take them off the list"


def test_that_no_function_has_more_than_sixty_lines() -> None:
    large = set()
    for name, node in functions():
        body = body_of(node)
        if body and num_lines(body[0], body[-1]) > MOST_LINES and not is_table(node):
            large.add(name)
    assert sorted(large - FUNCTIONS.keys()) == [], "make stages of it"
    assert sorted(FUNCTIONS.keys() - large) == [], "these are short: take them off the list"


def test_that_a_table_is_told_from_what_decides() -> None:
    def function(text: str) -> Function:
        found = ast.parse(text).body[0]
        assert isinstance(found, Function)
        return found

    rows = "\n".join(f"        {number}," for number in range(9))
    assert is_table(function("def f():\n" + "    g()\n" * 9))
    assert is_table(function(f"def f(a):\n    if a:\n        pass\n    return [\n{rows}\n    ]"))
    assert not is_table(function("def f(a):\n    if a:\n        pass\n" + "    g()\n" * 9))
