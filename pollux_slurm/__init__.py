"""Pollux (OSDI 2021) for Slurm: goodput-optimal GPU allocation for adaptive deep-learning jobs.

Importing this package imports neither torch nor pyslurm nor a database driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {"submit": "submission", "SubmittedJob": "job"}


def __getattr__(name: str) -> Any:
    """Import what submits functions when it is first used (`pollux_slurm.submit`)."""
    if name in _LAZY:
        return getattr(import_module(f"pollux_slurm.functions.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'pollux_slurm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
