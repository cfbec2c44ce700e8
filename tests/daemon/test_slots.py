"""How many jobs of whom may be on the move."""

from __future__ import annotations

from pollux_slurm.daemon.slots import Slots


def taken(slots: Slots, user: str) -> int:
    """Take all that there is for `user`; return how many that were."""
    count = 0
    while slots.has_room_for(user):
        slots.take(user)
        count += 1
    return count


def test_that_the_only_user_has_all() -> None:
    assert taken(Slots(8, users=["ann"], taken_by=[]), "ann") == 8


def test_that_one_of_several_users_has_half_and_the_others_the_rest() -> None:
    slots = Slots(8, users=["ann", "bob", "eve"], taken_by=["ann"])
    assert [taken(slots, user) for user in ("ann", "bob", "eve")] == [3, 4, 0]


def test_that_what_somebody_has_beyond_the_half_is_in_nobodys_way() -> None:
    """Ann began when she was alone."""
    slots = Slots(8, users=["ann", "bob"], taken_by=["ann"] * 8)
    assert [taken(slots, user) for user in ("ann", "bob")] == [0, 4]


def test_that_a_single_slot_is_anybodys() -> None:
    slots = Slots(1, users=["ann", "bob"], taken_by=[])
    assert [taken(slots, user) for user in ("ann", "bob")] == [1, 0]
