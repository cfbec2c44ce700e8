"""How accounts and users are shown beside each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MOST_GROUPS = 7
"""So many have a style of their own; the others are added up."""

NAMELESS = "(none)"
"""The account of jobs that are charged to none."""


def styles_of(names: Iterable[str], drawn_before: Sequence[str]) -> dict[str, int]:
    """Return a style for each of at most `MOST_GROUPS` names, the same as on the page before.

    `drawn_before` are the names that have the styles 0, 1, ... there; other names get what is left.
    """
    before = list(drawn_before[:MOST_GROUPS])
    wanted = list(names)
    left = [style for style in range(MOST_GROUPS) if style >= len(before) or before[style] not in wanted]
    return {name: before.index(name) if name in before else left.pop(0) for name in wanted}
