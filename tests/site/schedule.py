"""What happens to a hostile site, and when: seeded, and everything at least once. Pure."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass


class Kind(enum.Enum):
    """What an administrator or a user does to the site."""

    SWEEP = "forty jobs of one GPU are submitted at once"
    DRAIN = "a node is drained for a while"
    RESERVATION = "maintenance of a node is announced"


# So much happens in each block of time.
BLOCK_S = 150.0
_IN_A_BLOCK = (Kind.SWEEP, Kind.DRAIN, Kind.RESERVATION, Kind.DRAIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One event. `node` is where, by its place, `lasts_s` how long, `ahead_s` how early it is announced."""

    at_s: float
    kind: Kind
    node: int = 0
    lasts_s: float = 0.0
    ahead_s: float = 0.0


def make_schedule(minutes: float, num_nodes: int, rng: random.Random) -> list[Planned]:
    """Return the events of a run in order of time; each block of time has all kinds, in another order."""
    found = []
    num_blocks = max(int(60 * minutes / BLOCK_S), 1)
    length_s = 60 * minutes / num_blocks
    for block in range(num_blocks):
        kinds = rng.sample(_IN_A_BLOCK, len(_IN_A_BLOCK))
        part_s = length_s / len(kinds)
        for place, kind in enumerate(kinds):
            begin_s = block * length_s + place * part_s
            found.append(
                Planned(
                    at_s=begin_s + rng.uniform(0.2, 0.6) * part_s,
                    kind=kind,
                    node=rng.randrange(num_nodes),
                    lasts_s={Kind.DRAIN: rng.uniform(15, 30), Kind.RESERVATION: 60.0}.get(kind, 0.0),
                    ahead_s=rng.uniform(15, 40) if kind is Kind.RESERVATION else 0.0,
                )
            )
    return found
