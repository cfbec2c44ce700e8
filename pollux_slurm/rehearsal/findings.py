"""A finding of a rehearsal: what was seen in plain words, its cure, and a place in the guide."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLES = "docs/user.md, “Variables of your own”"
LOCAL = "docs/user.md, “What is not”"
CHANGES = "docs/user.md, “What changes in your script”"
STATES = "docs/training.md, “Checkpoints”"
AVERAGES = "docs/training.md, “An average of the weights”"
DATA = "docs/training.md, “Data”"


class Level(enum.Enum):
    """What a finding asks of the script's author."""

    CHANGE = "must change"
    LOOK = "look at"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was seen. `kind` is for scripts; `details` is a traceback or the end of a log."""

    level: Level
    kind: str
    text: str
    cure: str = ""
    guide: str = ""
    details: str = ""


def listed(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def is_or_are(words: Sequence[str]) -> str:
    """Return the verb for so many."""
    return "is" if len(words) == 1 else "are"
