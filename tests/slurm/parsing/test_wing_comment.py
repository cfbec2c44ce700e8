"""Writing a wing's Comment and reading it back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment, parse_wing_comment

HEX = "0123456789abcdef" * 4
GOOD = f"pollux-wing/1:anchor=17,restart=2,plan=3,sha256={HEX}"

numbers = st.integers(min_value=0, max_value=999_999_999)


def test_that_a_wings_comment_has_the_documented_format() -> None:
    terms = WingTerms(anchor_id="17", restart_count=2, plan=3, token_sha256=HEX)
    assert encode_wing_comment(terms) == GOOD


@given(anchor=st.integers(min_value=1, max_value=2**32 - 1), restart=numbers, plan=numbers)
def test_that_a_wings_terms_survive_the_round_trip(anchor: int, restart: int, plan: int) -> None:
    terms = WingTerms(anchor_id=str(anchor), restart_count=restart, plan=plan, token_sha256=HEX)
    assert parse_wing_comment(encode_wing_comment(terms)) == terms


@pytest.mark.parametrize(
    "comment",
    [
        "",
        f"{GOOD} ",
        f"mine {GOOD}",
        f"{GOOD}\n",
        GOOD.replace("/1:", "/2:"),
        GOOD.replace("=17", "=017"),
        GOOD.replace("=17", "=1_2"),
        GOOD.replace("restart=2", "restart=-2"),
        GOOD.replace("plan=3", "plan=٣"),
        GOOD.upper(),
    ],
)
def test_that_any_other_comment_is_no_wings(comment: str) -> None:
    assert parse_wing_comment(comment) is None
