"""All objects of this process that have some types, as the garbage collector knows them."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from typing import Any

# Far longer than a look at a process takes. A thread that never waits would hold up each look so long.
_UNDISTURBED_S = 5.0
# Longer than the usual interval, at whose end a waiting thread asks for its turn.
_TURN_S = 0.01


def live_objects(*kinds: type) -> list[Any]:
    """Return the objects whose type is one of `kinds` or a subclass.

    The collector also lists tuples that another thread is filling, and filling one fails (SystemError) while
    somebody else refers to it. So the other threads first get their turn, and then none until the list is
    gone. Types are compared, by identity, since a proxy answers `isinstance` by loading what it stands for.
    """
    wanted = {id(subclass) for kind in kinds for subclass in _subclasses(kind)}
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(_UNDISTURBED_S)
    try:
        time.sleep(_TURN_S)
        return [value for value in gc.get_objects() if id(type(value)) in wanted]
    finally:
        sys.setswitchinterval(usual_s)


def _subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = type.__subclasses__(kind)
    for subclass in subclasses:
        yield from _subclasses(subclass)
