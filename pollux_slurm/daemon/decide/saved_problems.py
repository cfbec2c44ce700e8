"""Save the problems of the last rounds as files, for `pollux replay` without the store."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from pollux_slurm.model import Problem
from pollux_slurm.policy.problem.json_format import problem_to_json

_NAME = re.compile(r"round-\d{9,}\.json")


def save_problem(folder: Path, round_id: int, problem: Problem, *, keep: int) -> Path:
    """Write a round's problem atomically, and delete all but the last `keep` files.

    The file has names of users and accounts, so only its owner may read it. Raises `OSError`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"round-{round_id:09d}.json"
    unfinished = path.with_suffix(".tmp")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(problem_to_json(problem) + "\n")
    unfinished.replace(path)
    saved = sorted((entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name)), key=_number)
    for old in saved[: max(len(saved) - keep, 0)]:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    return path


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))
