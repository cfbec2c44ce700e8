"""The frames of a script's own code, as opposed to Python's, a package's or this package's."""

from __future__ import annotations

import functools
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


def calling_line(module: str, *, by_way_of_package: bool) -> tuple[str, str, int] | None:
    """Return which function of the file `module` the script has called, from which file and line.

    The function is "" where none was. None where the script has not called at all, or (unless
    `by_way_of_package`) has called this package, which has called the function.
    """
    frame: FrameType | None = sys._getframe(1)
    function, is_called_by_package = "", False
    while frame is not None:
        file = frame.f_code.co_filename
        if file == module:
            function = frame.f_code.co_name
        elif is_user_code(file):
            return None if is_called_by_package else (function, file, frame.f_lineno)
        elif function and not by_way_of_package:
            is_called_by_package |= file.startswith(_PACKAGE)
        frame = frame.f_back
    return None


@functools.cache
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
