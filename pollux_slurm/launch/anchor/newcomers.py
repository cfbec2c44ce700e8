"""The wings that bring processes to a later generation: which a plan lacks, and which nobody wants any more.

They are submitted while their generation is planned. A wing is unwanted once its generation is given up, or
another was planned before it has come. Where it has come, its processes see the latter themselves, and end.

A plan that has not all of its wings ten minutes later is refused, so that none waits without a bound where
there is no daemon: one that got priority would keep others from its node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pollux_slurm.launch.anchor.start import Start, Wing
from pollux_slurm.store.contract.membership import GenerationRecord, GenerationState, plan_of_member

_WAIT_S = 600.0
_GIVEN_UP = (GenerationState.REFUSED, GenerationState.WITHDRAWN, GenerationState.FAILED)


class Newcomers:
    """The plans of one start. `lacking` has the GPUs of wings to be submitted yet, by plan and node."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self.lacking: dict[tuple[int, str], int] = {}
        self._refuse_at_s: dict[int, float] = {}

    def note(self, record: GenerationRecord, now_s: float) -> None:
        """Take note of the newest generation, as often as it is read."""
        plans = {plan_of_member(member.id) for member in record.members}
        if record.state is GenerationState.REGROUPED:
            self._start.members = frozenset(member.id for member in record.members)
        if record.state is GenerationState.PLANNED:
            for plan in plans - self._start.records.keys() - {0}:
                self._start.records[plan] = record
                self._refuse_at_s[plan] = now_s + _WAIT_S
                own = [one.node_name for one in record.members if plan_of_member(one.id) == plan]
                self.lacking |= {(plan, node): gpus for node, gpus in Counter(own).items()}
        for plan, node in list(self.lacking):
            if record.state is not GenerationState.PLANNED or not self._is_of(plan, record):
                del self.lacking[plan, node]

    def unwanted(self, record: GenerationRecord) -> Iterator[Wing]:
        """Yield the wings that are left and belong to no generation that may still come."""
        for wing in self._start.left:
            if wing.plan not in self._start.records:
                continue
            if self._is_of(wing.plan, record):
                is_unwanted = record.state in _GIVEN_UP
            else:
                named = {plan_of_member(member.id) for member in record.members}
                is_unwanted = not wing.has_come and wing.plan not in named
            if is_unwanted:
                yield wing

    def late(self, record: GenerationRecord, now_s: float) -> str | None:
        """Return why a planned generation is to be refused: it lacks a wing for too long."""
        for plan, at_s in self._refuse_at_s.items():
            if now_s < at_s or not self._is_of(plan, record):
                continue
            missing = [
                wing for wing in self._start.of_plan(plan) if not wing.has_come or wing.code is not None
            ]
            if record.state is GenerationState.PLANNED and (missing or self.lacking):
                which = "no wing" if not missing else f"wing {missing[0].job_id} has not come"
                return f"{which} within {_WAIT_S / 60:.0f} minutes"
        return None

    def note_refusal(self) -> None:
        """Submit no wing of the newest plan any more, and find none late."""
        self.lacking.clear()
        self._refuse_at_s.clear()

    def _is_of(self, plan: int, record: GenerationRecord) -> bool:
        return self._start.records[plan].number == record.number
