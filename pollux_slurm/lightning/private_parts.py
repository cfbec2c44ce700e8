"""Lightning's private attributes that the integration reads or sets, in one place.

Lightning has no public hook for these. They were read in 2.6.6; a release without one is refused by name.
"""

from __future__ import annotations

from typing import Any

import lightning

from pollux_slurm.errors import UsageError

_MISSING = object()


def part(owner: Any, path: str) -> Any:
    """Return an attribute of Lightning's, given by a dotted path. Raises `UsageError` where it is missing."""
    value = owner
    for name in path.split("."):
        value = getattr(value, name, _MISSING)
        if value is _MISSING:
            raise UsageError(
                f"Lightning {lightning.__version__} has no {type(owner).__name__}.{path}, which "
                "pollux_slurm.lightning needs: install a release that docs/lightning.md names"
            )
    return value


def do_nothing(*args: Any, **kwargs: Any) -> None:
    """Take the place of a method of Lightning's."""


def replace_method(owner: Any, name: str, method: Any) -> Any:
    """Replace a method of one object; return the original."""
    original = part(owner, name)
    setattr(owner, name, method)
    return original
