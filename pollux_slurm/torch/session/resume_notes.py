"""Explain an error that ends a script after a restart: its own variables began anew, training did not."""

from __future__ import annotations

import logging

from pollux_slurm.errors import PolluxError

_LOG = logging.getLogger(__name__)


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
        """Log a likely cause of an error in `epoch` (None: outside of all epochs)."""
        if not self._is_open or not isinstance(error, Exception) or isinstance(error, PolluxError):
            return
        _LOG.error(
            "this error came after a restart, which resumed %s: %s. The script began anew, and its own "
            "variables with it: counts, sums, lists. What it needs of them belongs into an Accumulator or a "
            "State: see 'Variables of your own' in docs/user.md",
            "the training" if epoch is None else f"epoch {epoch}",
            "; ".join(self._loops) or "no loop had begun yet",
        )
