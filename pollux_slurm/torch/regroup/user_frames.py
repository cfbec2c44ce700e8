"""The frames of a script's own code, as opposed to Python's, a package's or this package's."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGE = str(Path(__file__).resolve().parents[2])


def user_frames() -> Iterator[FrameType]:
    """Yield the present frames of the script's own code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def is_user_code(file: str) -> bool:
    """Return whether a file is the user's own code, not Python's, a package's or this package's."""
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return not file.startswith(("<frozen", _PACKAGE, *installed))


def has_user_class(value: Any) -> bool:
    """Return whether it is an instance of one of the script's own classes."""
    kind = type(value)
    if not hasattr(value, "__dict__") or isinstance(value, type):
        return False
    module = sys.modules.get(kind.__module__)
    return is_user_code(getattr(module, "__file__", None) or "<frozen")
