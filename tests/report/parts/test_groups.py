"""The same group looks the same all over a page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.report.parts.groups import MOST_GROUPS, styles_of


def test_that_a_group_keeps_its_style_and_newcomers_get_what_is_left() -> None:
    assert styles_of(["c", "a"], ["a", "b", "c"]) == {"a": 0, "c": 2}
    assert styles_of(["x", "a", "y"], ["a", "b"]) == {"a": 0, "x": 1, "y": 2}
    assert styles_of(["x"], []) == {"x": 0}


@given(
    names=st.lists(st.integers(0, 20).map(str), max_size=MOST_GROUPS, unique=True),
    before=st.lists(st.integers(0, 20).map(str), max_size=12, unique=True),
)
def test_that_no_two_groups_share_a_style(names: list[str], before: list[str]) -> None:
    found = styles_of(names, before)
    assert list(found) == names
    assert len(set(found.values())) == len(names)
    assert all(0 <= style < MOST_GROUPS for style in found.values())
    for place, name in enumerate(before[:MOST_GROUPS]):
        assert found.get(name, place) == place
