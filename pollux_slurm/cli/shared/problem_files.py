"""Read and write problem files, with errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pollux_slurm.errors import InvalidProblemError, UsageError

if TYPE_CHECKING:
    from pollux_slurm.model import Problem


def read_problem(path: Path) -> Problem:
    """Return the problem in a file; raises `UsageError` or `InvalidProblemError`, which name the file."""
    from pollux_slurm.policy.problem.json_format import problem_from_json

    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    try:
        return problem_from_json(text)
    except InvalidProblemError as error:
        raise InvalidProblemError(f"{path}: {error}") from None


def write_problem(path: Path, problem: Problem) -> None:
    """Write a problem to a file; raises `UsageError` where that cannot be done."""
    from pollux_slurm.policy.problem.json_format import problem_to_json

    try:
        path.write_text(problem_to_json(problem) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
