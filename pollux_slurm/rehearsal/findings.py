"""A finding of a rehearsal: what was observed, its cure, and a place in the documentation."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

VARIABLES = "docs/user.md, “Variables of your own”"
LOCAL = "docs/user.md, “Limits”"
CHANGES = "docs/user.md, “What changes in your script”"
STATES = "docs/training.md, “Checkpoints”"
AVERAGES = "docs/training.md, “An average of the weights”"
SPLITS = "docs/training.md, “Split batches”"
MEMORY = "docs/training.md, “Running out of memory”"
DATA = "docs/training.md, “Data”"
REQUEUE_ONLY = "docs/moves.md, “Scripts that move by requeue only”"
NEWCOMERS = "docs/moves.md, “Newcomers”"
WORLD_SIZE = "docs/moves.md, “Rank and world size”"
IN_PLACE = "docs/moves.md, “What a script may rely on”"


class Level(enum.Enum):
    """How severe a finding is."""

    CHANGE = "must change"
    LOOK = "look at"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One observation. `kind` is for programs; `details` is a traceback or the end of a log."""

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
    """Return the verb for as many words."""
    return "is" if len(words) == 1 else "are"
