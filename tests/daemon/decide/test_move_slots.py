"""Limits on concurrent moves."""

from __future__ import annotations

from pollux_slurm.daemon.decide.move_slots import Mover, Slots


def taken(slots: Slots, user: str, *, may_not_answer: bool = False) -> int:
    """Take slots for `user` until none is left; return how many."""
    count = 0
    while slots.has_room_for(Mover(user, may_not_answer)):
        slots.take(Mover(user, may_not_answer))
        count += 1
    return count


def test_that_the_only_user_has_all() -> None:
    assert taken(Slots(8, users=["ann"], taken_by=[]), "ann") == 8


def test_that_one_of_several_users_has_half_and_the_others_the_rest() -> None:
    slots = Slots(8, users=["ann", "bob", "eve"], taken_by=[Mover("ann")])
    assert [taken(slots, user) for user in ("ann", "bob", "eve")] == [3, 4, 0]


def test_that_moves_above_a_users_half_do_not_count_against_others() -> None:
    """Ann's moves began when no other user had jobs."""
    slots = Slots(8, users=["ann", "bob"], taken_by=[Mover("ann")] * 8)
    assert [taken(slots, user) for user in ("ann", "bob")] == [0, 4]


def test_that_a_single_slot_is_anybodys() -> None:
    slots = Slots(1, users=["ann", "bob"], taken_by=[])
    assert [taken(slots, user) for user in ("ann", "bob")] == [1, 0]


def test_that_jobs_that_may_not_answer_share_a_quarter_and_the_others_have_the_rest() -> None:
    slots = Slots(8, users=["ann", "bob", "eve"], taken_by=[])
    assert [taken(slots, user, may_not_answer=True) for user in ("eve", "ann")] == [2, 0]
    assert [taken(slots, user) for user in ("eve", "ann", "bob")] == [2, 4, 0]


def test_that_late_unanswering_moves_count_only_against_their_user() -> None:
    slots = Slots(8, users=["ann", "eve", "mal"], taken_by=[Mover("eve", True), Mover("mal", True)] * 4)
    assert [taken(slots, "eve", may_not_answer=True), taken(slots, "eve"), taken(slots, "ann")] == [0, 0, 4]


def test_that_one_of_few_slots_is_for_jobs_that_may_not_answer() -> None:
    slots = Slots(2, users=["ann", "eve"], taken_by=[])
    assert [taken(slots, "eve", may_not_answer=True), taken(slots, "ann")] == [1, 1]
