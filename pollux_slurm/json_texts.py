"""JSON from outside: from Slurm, jobs, nodes and files. PySlurm's own process alone parses it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def parse_json(
    text: str | bytes,
    *,
    strict: bool = True,
    parse_constant: Callable[[str], Any] | None = None,
    object_pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """Return what a JSON text contains, with options as those of `json.loads`.

    Raises `ValueError` for anything that cannot be parsed: `json.loads` has another error for deep nesting.
    """
    try:
        return json.loads(
            text, strict=strict, parse_constant=parse_constant, object_pairs_hook=object_pairs_hook
        )
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None
