"""Names of what a script makes without naming it: the same in every run, whichever epoch that begins with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

_OF_EPOCH = "-of-epoch-"


class Names:
    """Counts the unnamed objects of a run by kind; those made within an epoch are counted within it."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def next(self, kind: str, epoch: int) -> str:
        """Return the name of the next object of its kind; `epoch` is −1 outside of one."""
        name = f"{kind}-{self._counts[kind, epoch]}"
        self._counts[kind, epoch] += 1
        return name if epoch < 0 else f"{name}{_OF_EPOCH}{epoch}"


def is_of_epoch(name: str) -> bool:
    """Tell whether an object was made within an epoch, and so perhaps for it alone."""
    return _OF_EPOCH in name


def place_of(name: str) -> str:
    """Return what all objects are called that are made at the same place of an epoch."""
    return name.partition(_OF_EPOCH)[0]


def saved_name(name: str, saved: Mapping[str, Any], epoch: int) -> str | None:
    """Return under which name a checkpoint holds an object; None where that is its own.

    One that was made once, when first needed, bears the epoch in which its run began; it is known by having
    been in use in this one.
    """
    if not is_of_epoch(name) or name in saved:
        return None
    for other, state in saved.items():
        same_place = is_of_epoch(other) and place_of(other) == place_of(name)
        if same_place and isinstance(state, Mapping) and state.get("epoch") == epoch:
            return other
    return None
