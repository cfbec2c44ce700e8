"""One start of a training: its wings, and which processes belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pollux_slurm.launch.anchor.link import Link, Message
from pollux_slurm.store.contract.membership import GenerationRecord

LOST = -1
"""In place of the exit code of a wing that did not say how its processes ended."""


@dataclass(slots=True, eq=False)
class Wing:
    """A wing. It *has come* once its program is connected, by `link`: then its processes start.

    `plan` is the reallocation that it was submitted for, 0 for the one that the start begins with. `code` is
    None until its processes have ended, or it was lost.
    """

    job_id: str
    plan: int
    link: Link | None = None
    members: frozenset[str] = frozenset()
    code: int | None = None
    gone_since_s: float | None = None

    @property
    def has_come(self) -> bool:
        return self.link is not None


@dataclass(slots=True, eq=False)
class Start:
    """What is known of a start.

    - `members`: the processes that train, as the newest generation that was reached has them
    - `records`: the generation that each plan's wings are for
    - `failure`: the exit code of the process that failed by itself
    - `kill_at_s`: when the wings that are left are cancelled
    - `is_hold_passed_on`: its first wing is held because the anchor is
    """

    restart_count: int
    wings: dict[str, Wing] = field(default_factory=dict)
    members: frozenset[str] = frozenset()
    records: dict[int, GenerationRecord] = field(default_factory=dict)
    failure: int | None = None
    kill_at_s: float | None = None
    is_hold_passed_on: bool = False

    @property
    def number(self) -> int:
        """What people call it: 1, 2, ..."""
        return self.restart_count + 1

    @property
    def first(self) -> Wing:
        """The wing that it begins with."""
        return next(iter(self.wings.values()))

    @property
    def left(self) -> list[Wing]:
        """The wings that are not over."""
        return [wing for wing in self.wings.values() if wing.code is None]

    @property
    def is_over(self) -> bool:
        """Whether the processes of all wings have ended, or none can begin any more."""
        if self.first.code is None and not self.first.has_come:
            return False
        return not any(wing.has_come for wing in self.left)

    @property
    def codes(self) -> list[int | None]:
        """The exit codes of the wings that the training needs."""
        needed = [wing for wing in self.wings.values() if self.needs(wing)] or [self.first]
        return [wing.code for wing in needed]

    def is_joining(self, wing: Wing) -> bool:
        """Whether a wing was submitted for the newest plan, and its processes do not train yet."""
        return wing.plan == max(self.records, default=0) > 0 and wing.members.isdisjoint(self.members)

    def needs(self, wing: Wing) -> bool:
        """Whether a wing has processes that train."""
        return bool(wing.members & self.members)

    def of_link(self, link: Link) -> Wing | None:
        return next((wing for wing in self.wings.values() if wing.link is link), None)

    def tell_all(self, message: Message) -> None:
        for wing in self.left:
            if wing.link is not None:
                wing.link.send(message)

    def of_plan(self, plan: int) -> Iterator[Wing]:
        return (wing for wing in self.wings.values() if wing.plan == plan)
