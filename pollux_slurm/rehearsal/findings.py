"""A finding of a rehearsal: what was seen in plain words, its cure, and a place in the guide."""

from __future__ import annotations

import enum
from dataclasses import dataclass

VARIABLES = "docs/user.md, “Variables of your own”"
LOCAL = "docs/user.md, “What is not”"
CHANGES = "docs/user.md, “What changes in your script”"
STATES = "docs/training.md, “Checkpoints”"
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
