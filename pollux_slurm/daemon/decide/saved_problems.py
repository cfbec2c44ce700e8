"""Save the problems of the last rounds as files, for `pollux replay` without the store."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from pollux_slurm.model import Problem
from pollux_slurm.policy.problem.json_format import problem_to_json
from pollux_slurm.system.private_files import write_private

_NAME = re.compile(r"round-\d{9,}\.json")
_UNFINISHED = re.compile(r"\.round-\d{9,}\.json-[0-9a-f]{16}\.tmp")


def save_problem(folder: Path, round_id: int, problem: Problem, *, keep: int) -> Path:
    """Write a round's problem atomically, and delete all but the last `keep` files.

    The file has names of users and accounts, so only its owner may read it. Raises `OSError`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"round-{round_id:09d}.json"
    write_private(path, f"{problem_to_json(problem)}\n".encode(), in_any_folder=True, is_synced=False)
    entries = list(folder.iterdir())
    saved = sorted((entry for entry in entries if _NAME.fullmatch(entry.name)), key=_number)
    left_by_a_crash = [entry for entry in entries if _UNFINISHED.fullmatch(entry.name)]
    for old in (*left_by_a_crash, *saved[: max(len(saved) - keep, 0)]):
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    return path


def _number(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))
