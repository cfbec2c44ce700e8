"""Modules that others import and a process does not need: their code is run at their first use.

For processes of our own that do little else, because other users of such modules may be harmed (Python 3.11):
a second thread finds one half made while a first use runs its code; and a part of a package that is put off,
if it is the first of it to be imported, as by unpickling, is made twice, with classes that are not its own.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

# What scipy's triangulation imports and never uses: a third of the time that its import takes (scipy 1.17).
UNUSED_BY_SIMULATIONS = ("numpy.f2py", "numpy.testing", "scipy.sparse", "scipy.spatial.transform")


@contextmanager
def put_off(names: Collection[str]) -> Iterator[None]:
    """Let what is imported within run the code of the modules `names` at their first use (`LazyLoader`).

    A module that was loaded before stays as it is; a name that nothing imports, as after a change of who
    imports what, does nothing.
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
