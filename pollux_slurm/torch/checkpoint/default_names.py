"""Names of states: those of a script's unnamed objects, the same in every run, and the library's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

OWN = "pollux/"
"""What the names of the library's own states begin with, so that a script's may be called "progress"."""

_OF_EPOCH = "-of-epoch-"


class DefaultNames:
    """Counts the unnamed objects of a run by kind; those made within an epoch are counted within it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def next(self, kind: str, epoch: int) -> str:
        """Return the name of the next object of its kind; `epoch` is −1 outside of one."""
        name = f"{kind}-{self._counts[kind, epoch]}"
        self._counts[kind, epoch] += 1
        return name if epoch < 0 else f"{name}{_OF_EPOCH}{epoch}"


def without_own(name: str, saved: Collection[str]) -> str:
    """Return the name of a state of the library's own in a checkpoint, which may name none so."""
    return name if any(other.startswith(OWN) for other in saved) else name.removeprefix(OWN)


def is_of_epoch(name: str) -> bool:
    """Return whether an object was made within an epoch, and so perhaps only for it."""
    return _OF_EPOCH in name


def without_epoch(name: str) -> str:
    """Return the common part of the names of objects that each epoch makes at the same place."""
    return name.partition(_OF_EPOCH)[0]


def saved_name(name: str, saved: Mapping[str, Any], epoch: int) -> str | None:
    """Return the name of an object in a checkpoint; None where that is its own.

    An object that is made once, when first needed, has the epoch in its name in which its run began. It is
    recognised by its saved state, which is of the present epoch.
    """
    if not is_of_epoch(name) or name in saved:
        return None
    for other, state in saved.items():
        same_place = is_of_epoch(other) and without_epoch(other) == without_epoch(name)
        if same_place and isinstance(state, Mapping) and state.get("epoch") == epoch:
            return other
    return None
