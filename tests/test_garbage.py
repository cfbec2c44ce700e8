"""How often Python looks for garbage, within and afterwards."""

from __future__ import annotations

import gc

import pytest

from pollux_slurm.garbage import seldom_looking_for_garbage


def test_that_it_is_looked_for_as_before_afterwards_whatever_happens() -> None:
    before = gc.get_threshold()
    during: list[tuple[int, int, int]] = []

    def fail() -> None:
        with seldom_looking_for_garbage():
            during.append(gc.get_threshold())
            raise OSError("an error within")

    with pytest.raises(OSError, match="within"):
        fail()
    assert during[0][0] > before[0]
    assert during[0][1:] == before[1:]
    assert gc.get_threshold() == before


@pytest.mark.parametrize("objects", [0, 1_000_000], ids=["never", "hardly ever"])
def test_that_it_is_looked_for_no_more_often_than_before(objects: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(objects, *before[1:])
    try:
        with seldom_looking_for_garbage():
            assert gc.get_threshold() == (objects, *before[1:])
        assert gc.get_threshold() == (objects, *before[1:])
    finally:
        gc.set_threshold(*before)
