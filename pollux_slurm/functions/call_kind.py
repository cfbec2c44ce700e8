"""The kind of a submitted function's call: which earlier calls ran the same training."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from pollux_slurm.launch.kind import kind_of


def kind_of_call(function: Callable[..., Any], args: tuple[Any, ...], *, folder: Path) -> str:
    """Return the kind of calls of a function with these arguments, as of a script that is given them.

    What it takes from an enclosing function, and a method from its object, counts as arguments do.
    """
    named: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, named = (*function.args, *args), {**function.keywords, **named}
        function = function.func
    try:
        named |= inspect.signature(function).bind_partial(*args).arguments
    except (TypeError, ValueError):  # arguments that do not fit are the function's error; C has no signature
        named["args"] = args
    owner, where = getattr(function, "__self__", None), qualified_name(function)
    if not hasattr(function, "__qualname__"):
        owner, where = function, qualified_name(type(function))
    if owner is not None and not inspect.ismodule(owner):
        named["self"] = owner
    with contextlib.suppress(TypeError, ValueError):  # not of Python, or a variable that has no value yet
        named = {**inspect.getclosurevars(function).nonlocals, **named}
    if getattr(function, "__name__", "") == "<lambda>":
        code = function.__code__
        named["code"] = (code.co_code, code.co_consts, code.co_names)
    words = [f"--{name}={_stable_text(value, set())}" for name, value in sorted(named.items())]
    if where.startswith("__main__."):
        words.append(str(getattr(sys.modules["__main__"], "__file__", "")))
    return kind_of("", [where, *words], folder=folder)


def _stable_text(value: object, seen: set[int]) -> str:
    """Return a text of an argument that is the same in each process: no address, no order of a set.

    Containers and objects without a text of their own whose `id` was `seen` are named by their type.
    """
    is_plain = type(value).__repr__ is object.__repr__
    if is_plain or type(value) in (list, tuple, dict, set, frozenset):
        if id(value) in seen:
            return qualified_name(type(value))
        seen.add(id(value))

    def text(part: object) -> str:
        return _stable_text(part, seen)

    if is_plain:
        return f"{qualified_name(type(value))}{text(getattr(value, '__dict__', {}))}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(text, value)))}}}"
    if type(value) in (list, tuple):
        return f"({', '.join(map(text, cast('Sequence[object]', value)))})"
    if type(value) is dict:
        return f"{{{', '.join(sorted(f'{text(key)}: {text(item)}' for key, item in value.items()))}}}"
    try:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    except Exception:  # the text of a user's type must not prevent the submission
        return qualified_name(type(value))


def qualified_name(function: object) -> str:
    """Return the qualified name of a function or type."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
