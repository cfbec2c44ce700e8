"""Errors that have ended ranks, recorded in the job's checkpoint directory.

A rank that ends by an error writes a file, before its connections to the other ranks close::

    failures/000003-000001.json   rank 1 of run 3: host, time, the error in one line, its place in the script

`pollux run` then says which one was first. An error that came of a lost connection is not a cause.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pollux_slurm.json_texts import parse_json
from pollux_slurm.system.private_files import read_data, write_data

_LOG = logging.getLogger(__name__)
_FOLDER = "failures"
_FILE = re.compile(r"(\d{6,})-\d{6,}\.json")
_MAX_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """How a rank ended. `at_s` is in seconds since 1970; `place` is in the script, such as "train.py:31"."""

    rank: int
    host: str
    at_s: float
    error: str
    place: str = ""
    is_cause: bool = True

    @property
    def text(self) -> str:
        """Who failed, and with what."""
        place = f" ({self.place})" if self.place else ""
        return f"rank {self.rank}{f' on {self.host}' if self.host else ''}, with {self.error}{place}"


def error_text(error: BaseException) -> str:
    """Return an error in one line of bounded length."""
    line = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return line if len(line) <= _MAX_CHARACTERS else line[: _MAX_CHARACTERS - 1] + "…"


def record_failure(directory: Path, failure: RankFailure, *, run_number: int) -> None:
    """Write a failure for `pollux run`. Best effort: the error is in the log anyway."""
    path = directory / _FOLDER / f"{run_number:06d}-{failure.rank:06d}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_data(path, json.dumps(asdict(failure)).encode(), is_synced=False)
    except OSError as error:
        _LOG.warning("%s: the failure was not noted: %s", path, error.strerror)


def read_failures(directory: Path, *, since_run: int) -> Sequence[RankFailure]:
    """Return the failures of ranks from run `since_run` on, causes before others, oldest first."""
    found = []
    for path in (directory / _FOLDER).glob("*.json"):
        match = _FILE.fullmatch(path.name)
        if match is None or int(match[1]) < since_run:
            continue
        try:
            failure = RankFailure(**parse_json(read_data(path)))
        except (OSError, ValueError, TypeError):
            continue
        numbers, texts = (failure.rank, failure.at_s), (failure.host, failure.error, failure.place)
        if all(isinstance(one, int | float) for one in numbers) and all(
            isinstance(one, str) for one in texts
        ):
            found.append(failure)
    return sorted(found, key=lambda one: (not one.is_cause, one.at_s))
