"""Log lines of the library go to stderr, with the prefix `pollux: `, and Slurm writes them to the job's log.

The root logger, and thus the script's own logging, stays as the script has set it. A script that gives the
logger `pollux_slurm` a handler of its own, before or after, decides where the library's lines go.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

from pollux_slurm.text import LineFormatter

PREFIX = "pollux: "
LOGGER = "pollux_slurm"


class _PrefixFormatter(LineFormatter):
    """Puts the prefix before a message and each line of its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(PREFIX + line for line in super().format(record).splitlines())


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time of the message."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_PrefixFormatter())

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def log_to_stderr() -> None:
    """Send the library's log lines to stderr, for the life of the process.

    Does nothing if the script has configured the logger `pollux_slurm`. Enables loggers that a `dictConfig`
    of the script has disabled only because they existed.
    """
    logger = logging.getLogger(LOGGER)
    if logger.handlers or not logger.propagate:
        return
    for name, known in logging.root.manager.loggerDict.items():
        if (name == LOGGER or name.startswith(LOGGER + ".")) and isinstance(known, logging.Logger):
            known.disabled = False
    logger.addHandler(_StderrHandler())
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
