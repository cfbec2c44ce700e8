"""Modules that others import and do not need here: their code is run when something of them is first used."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def put_off(names: Collection[str]) -> Iterator[None]:
    """Let what is imported within run the code of the modules `names` at their first use (`LazyLoader`).

    It changes when they are loaded and nothing else. A module that was loaded before stays as it is; a name
    that nothing imports, as after a change of who imports what, does nothing.
    """
    finder = _Lazily(frozenset(names))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Lazily:
    """Finds the modules `names` where Python does, with a loader that waits."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec
