"""How often Python looks for cycles of objects that nobody holds."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

# New objects after which it looks. Imports and simulations make many that stay and hardly any cycles, and at
# the usual 700 looking takes up to a tenth of their time.
_OBJECTS_BETWEEN_LOOKS = 50_000


@contextlib.contextmanager
def seldom_looking_for_garbage() -> Iterator[None]:
    """Look more seldom within, or as before where that is never (0) or more seldom still."""
    before = gc.get_threshold()
    if before[0] > 0:
        gc.set_threshold(max(before[0], _OBJECTS_BETWEEN_LOOKS), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
