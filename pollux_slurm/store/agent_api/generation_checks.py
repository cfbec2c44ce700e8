"""Check what a job says of its membership before it reaches the database: see `report_checks`."""

from __future__ import annotations

from typing import Any, NamedTuple

from pollux_slurm.errors import ReportRefusedError
from pollux_slurm.store.access.sanitizing import clean_text
from pollux_slurm.store.agent_api.report_checks import checked_real, checked_whole, refuse
from pollux_slurm.store.contract.membership import MAX_MEETING, MAX_MEMBER_ID, GenerationState

_BELONGS = {
    GenerationState.COMMITTED: "meeting",
    GenerationState.REGROUPED: "standstill_s",
    GenerationState.REFUSED: "reason",
}
"""The states that a job may bring about, and what it says with each."""


class GenerationQuestion(NamedTuple):
    """What `MembershipStore.generation` asks."""

    restart_count: int
    after: int


class Newcomer(NamedTuple):
    """What `MembershipStore.report_ready` says."""

    restart_count: int
    number: int
    member: str


def checked_generation_question(*, after: int, restart_count: int) -> GenerationQuestion:
    """Return the arguments as plain numbers; `after` 0 is before the first. Raises `ReportRefusedError`."""
    return GenerationQuestion(
        restart_count=checked_whole("restart_count", restart_count),
        after=0 if isinstance(after, int) and after == 0 else checked_whole("after", after, "generation"),
    )


def checked_newcomer(member: str, *, number: int, restart_count: int) -> Newcomer:
    """Return the arguments as plain values; raises `ReportRefusedError`."""
    return Newcomer(
        restart_count=checked_whole("restart_count", restart_count),
        number=checked_whole("number", number, "generation"),
        member=_text("member", member, MAX_MEMBER_ID),
    )


def checked_step(
    number: int,
    state: GenerationState,
    *,
    restart_count: int,
    meeting: str | None,
    standstill_s: float | None,
    reason: str | None,
) -> dict[str, Any]:
    """Return the arguments of `MembershipStore.advance_generation` as plain values, by name.

    Raises `ReportRefusedError` for a state that is not a job's to bring about, and where anything else is
    said than what belongs to it. A long reason is cut off.
    """
    said = {"meeting": meeting, "standstill_s": standstill_s, "reason": reason}
    if not isinstance(state, GenerationState) or state not in _BELONGS:
        refuse("state", "committed, regrouped or refused", state)
    if reason is not None and not isinstance(reason, str):
        refuse("reason", "a text", reason)
    if [name for name, value in said.items() if value is not None] != [_BELONGS[state]]:
        raise ReportRefusedError(f"report refused: {state.value} comes with its {_BELONGS[state]} alone")
    return {
        "restart_count": checked_whole("restart_count", restart_count),
        "number": checked_whole("number", number, "generation"),
        "state": state.value,
        "meeting": None if meeting is None else _text("meeting", meeting, MAX_MEETING),
        "standstill_s": None if standstill_s is None else checked_real("standstill_s", standstill_s),
        "reason": None if reason is None else clean_text(reason),
    }


def _text(name: str, value: str, max_length: int) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= max_length or value != clean_text(value):
        refuse(name, f"a text of 1 to {max_length} characters", value)
    return value
