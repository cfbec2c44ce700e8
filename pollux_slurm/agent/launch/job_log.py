"""The job's own log: while a process trains, every line of the library on stderr begins with `pollux: `.

Slurm writes stderr into the job's log. The root logger, and so all that the script says itself, stays as the
script has set it. Whoever wants the library's lines elsewhere gives the logger `pollux_slurm` a handler of
their own, before or after: then they are theirs to arrange.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

PREFIX = "pollux: "
LOGGER = "pollux_slurm"


class _Lines(logging.Formatter):
    """The message and what belongs to it (a traceback), each line with the prefix."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(PREFIX + line for line in super().format(record).splitlines())


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to whatever stderr is when a line comes."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Lines())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def log_to_stderr() -> None:
    """Let the library's lines reach the job's log, for as long as the process lives.

    Nothing happens where the script has arranged for the logger `pollux_slurm` itself. Loggers that a
    `dictConfig` of the script has silenced only because they existed are heard again.
    """
    logger = logging.getLogger(LOGGER)
    if logger.handlers or not logger.propagate:
        return
    for name, known in logging.root.manager.loggerDict.items():
        if (name == LOGGER or name.startswith(LOGGER + ".")) and isinstance(known, logging.Logger):
            known.disabled = False
    logger.addHandler(_Stderr())
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
