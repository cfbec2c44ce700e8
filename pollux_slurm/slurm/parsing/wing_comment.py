"""Write and read the Comment of a wing: a job whose processes belong to another job's training, its anchor's.

    comment = "pollux-wing/1:anchor=" job id ",restart=" number ",plan=" number ",sha256=" 64 lower-case hex

Anybody can write any Comment, so it proves nothing by itself (`pollux_slurm.slurm.parsing.merged_wings`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NUMBER = "0|[1-9][0-9]{0,8}"
_COMMENT = re.compile(
    rf"pollux-wing/1:anchor=(?P<anchor>[1-9][0-9]{{0,9}}),restart=(?P<restart>{_NUMBER}),"
    rf"plan=(?P<plan>{_NUMBER}),sha256=(?P<sha256>[0-9a-f]{{64}})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WingTerms:
    """What a wing's Comment says.

    - `anchor_id`: the anchor's job id
    - `restart_count`: the start of the training that the wing is for: 0, 1, ...
    - `plan`: the id of the reallocation that it was submitted for; 0 for the wing that a start begins with
    - `token_sha256`: that of the anchor's terms
    """

    anchor_id: str
    restart_count: int
    plan: int
    token_sha256: str


def encode_wing_comment(terms: WingTerms) -> str:
    """Return the Comment of a wing."""
    return (
        f"pollux-wing/1:anchor={terms.anchor_id},restart={terms.restart_count},plan={terms.plan},"
        f"sha256={terms.token_sha256}"
    )


def parse_wing_comment(comment: str) -> WingTerms | None:
    """Return what a wing's Comment says; None for any other text."""
    found = _COMMENT.fullmatch(comment)
    if found is None:
        return None
    return WingTerms(
        anchor_id=found["anchor"],
        restart_count=int(found["restart"]),
        plan=int(found["plan"]),
        token_sha256=found["sha256"],
    )
