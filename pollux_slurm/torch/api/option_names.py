"""Options that an integration passes on by `**options`: a misspelled one is refused by the name meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from pollux_slurm.errors import UsageError


def refuse_unknown_options(owner: str, given: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Raise `UsageError` for an option that no parameter of `takers` is named after."""
    known = [
        name
        for taker in takers
        for name, parameter in inspect.signature(taker).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name != "self"
    ]
    for name in given:
        if name not in known:
            meant = difflib.get_close_matches(name, known, n=1)
            cure = f"do you mean {meant[0]}?" if meant else f"it has {', '.join(sorted(set(known)))}"
            raise UsageError(f"{owner} has no option {name}: {cure}")
