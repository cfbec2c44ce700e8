"""Explain an error that ends a script after a restart: its own variables began anew, training did not.

Only an error of the script's own line can come from that: one that looks something up, asserts or computes,
from a number, a list or the like, or from a variable that a loop without batches has not set. An error of a
file, a library or a device is left as it is.
"""

from __future__ import annotations

import dis
import logging
import traceback
from collections import deque
from types import CodeType
from typing import Any

from pollux_slurm.errors import PolluxError
from pollux_slurm.torch.regroup.user_frames import is_user_code

_LOG = logging.getLogger(__name__)
_KINDS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
_COUNTS = (int, float, list, tuple, dict, set, deque, type(None))


class ResumeNotes:
    """Notes which loops go on from a checkpoint in this process; none unless it `is_resumed`."""

    def __init__(self, *, is_resumed: bool) -> None:
        self._is_open = is_resumed
        self._loops: list[str] = []

    def loop(self, loader: str, *, start: int | None, length: int | None) -> None:
        """Note that a loop goes on at example `start` of `length`, or (None) had ended before."""
        if self._is_open and (start is None or 0 < start == length):
            self._loops.append(f"the loop over {loader!r} had ended and yields nothing")
        elif self._is_open and start:
            of = "" if length is None else f" of {length}"
            self._loops.append(f"the loop over {loader!r} goes on at example {start}{of}")

    def end(self) -> None:
        """Stop explaining: the epoch that was resumed has ended."""
        self._is_open = False

    def explain(self, error: BaseException, *, epoch: int | None) -> None:
        """Log a likely cause of an error in `epoch` (None: outside of all epochs), where it may be one."""
        if not self._is_open or (epoch is None and not self._loops):
            return
        if isinstance(error, PolluxError) or not _may_come_from_variables(error, epoch):
            return
        _LOG.error(
            "this error came after a restart, which resumed %s: %s. The script began anew, and its own "
            "variables with it: counts, sums, lists. What it needs of them belongs into an Accumulator or a "
            "State: see 'Variables of your own' in docs/user.md",
            "the training" if epoch is None else f"epoch {epoch}",
            "; ".join(self._loops) or "no loop had begun yet",
        )


def _may_come_from_variables(error: BaseException, epoch: int | None) -> bool:
    """Return whether a line of the script's own has raised an error from variables that began anew."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames or not isinstance(error, _KINDS):
        return False
    frame, line = frames[-1]
    if not is_user_code(frame.f_code.co_filename):
        return False
    if isinstance(error, UnboundLocalError):
        return True
    if isinstance(error, NameError):
        return any(error.name in _operands(one.f_code, "STORE_") for one, _ in frames)
    names = _operands(frame.f_code, "LOAD_", line=line)
    variables = {**frame.f_globals, **frame.f_locals}
    used = [variables[name] for name in names if name in variables]
    of_objects = [vars(one) for one in used if hasattr(one, "__dict__")]
    used += [values[name] for values in of_objects for name in names if name in values]
    # The epoch itself is right.
    return any(isinstance(value, _COUNTS) and not (type(value) is int and value == epoch) for value in used)


def _operands(code: CodeType, kind: str, *, line: int | None = None) -> set[Any]:
    """Return what instructions of a kind name in some code, or in one line of it."""
    found: set[Any] = set()
    ranges = [(start, end) for start, end, number in code.co_lines() if line in (None, number)]
    for one in dis.get_instructions(code):
        if one.opname.startswith(kind) and any(start <= one.offset < end for start, end in ranges):
            found.update(one.argval if isinstance(one.argval, tuple) else (one.argval,))
    return {name for name in found if isinstance(name, str)}
