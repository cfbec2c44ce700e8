"""Whole numbers in texts from outside: what Slurm prints, and what an environment or a file's name has."""

from __future__ import annotations

import re

# All numbers of 64 bits. Python itself refuses a text of more than 4,300 digits with a ValueError.
_DIGITS = re.compile(r"[0-9]{1,20}")


def whole_number(text: str) -> int | None:
    """Return the number that `text` is, in digits 0 to 9; None for any other text, and a longer one."""
    return int(text) if _DIGITS.fullmatch(text) else None
