"""Writing a job's terms into its Comment and reading them back, whatever else it contains."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.errors import UsageError
from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.parsing.comment_terms import (
    MAX_GPUS,
    decode_comment,
    encode_comment,
    parse_comment,
    user_part,
)

HEX = "0123456789abcdef" * 4

counts = st.integers(min_value=1, max_value=MAX_GPUS)


@st.composite
def job_terms(draw: st.DrawFn) -> JobTerms:
    low, high = sorted((draw(counts), draw(counts)))
    return JobTerms(
        token_sha256=draw(st.text(alphabet="0123456789abcdef", min_size=64, max_size=64)),
        user_id=draw(st.integers(min_value=0, max_value=2**32 - 1)),
        min_gpus=low,
        max_gpus=draw(st.sampled_from([None, high])),
        allow_unconfirmed=draw(st.booleans()),
        **draw(
            st.sampled_from(
                [
                    {},
                    {"in_place": True},
                    {"kind": "gpt2.small-1_b"},
                    {"finish_by": datetime(2026, 12, 1, 9, 0, tzinfo=timezone.utc)},
                    {"min_run_s": 0.0},
                    {"min_run_s": 7200.0},
                    {"min_run_s": math.inf},
                    {"slice_s": 3600, "total_s": 3601},
                    {"slice_s": 1, "total_s": 999_999_999},
                ]
            )
        ),
    )


def test_that_the_comment_has_the_documented_format() -> None:
    terms = JobTerms(token_sha256=HEX, user_id=1000, min_gpus=2, max_gpus=8, allow_unconfirmed=True)
    comment = encode_comment("ask Ada first", terms)
    assert comment == f"ask Ada first pollux/1:sha256={HEX},uid=1000,min=2,max=8,unconfirmed=1"
    assert (
        encode_comment("", JobTerms(token_sha256=HEX, user_id=1000))
        == f"pollux/1:sha256={HEX},uid=1000,min=1"
    )


@given(user=st.text().filter(lambda text: "pollux/" not in text), terms=job_terms())
def test_that_terms_and_the_users_text_survive_the_round_trip(user: str, terms: JobTerms) -> None:
    comment = encode_comment(user, terms)
    assert decode_comment(comment) == terms
    assert user_part(comment) == user


@given(text=st.text(alphabet="pollux/1:sha256=min,ax 0abf\n", max_size=200) | st.text())
def test_that_no_text_makes_reading_raise(text: str) -> None:
    parsed = parse_comment(text)
    assert parsed.terms is None or parsed.problem is None


@given(user=st.text(), old=job_terms(), new=job_terms())
def test_that_setting_terms_again_replaces_the_old_ones(user: str, old: JobTerms, new: JobTerms) -> None:
    twice = encode_comment(encode_comment(user, old), new)
    assert decode_comment(twice) == new
    assert twice == encode_comment(user, new)


def test_that_text_added_after_the_terms_keeps_them() -> None:
    comment = encode_comment("before", JobTerms(token_sha256=HEX, user_id=1000)) + " added later"
    assert decode_comment(comment) == JobTerms(token_sha256=HEX, user_id=1000)
    assert user_part(comment) == "before added later"


@pytest.mark.parametrize("comment", ["", "a plain comment", "see pollux/1 docs", f"mypollux/1:sha256={HEX}"])
def test_that_an_ordinary_comment_is_an_unmanaged_jobs(comment: str) -> None:
    assert parse_comment(comment).terms is None
    assert parse_comment(comment).problem is None
    assert user_part(comment) == comment


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("pollux/1:", "unknown field ''"),
        ("pollux/1:min=1", "'sha256' is missing"),
        (f"pollux/2:sha256={HEX}", "unknown version"),
        (f"pollux/1:sha256={HEX.upper()}", "field 'sha256'"),
        (f"pollux/1:sha256={HEX[:-1]}", "field 'sha256'"),
        (f"pollux/1:sha256={HEX}0", "field 'sha256'"),
        (f"pollux/1:sha256={HEX},min=1", "field 'uid' is missing"),
        (f"pollux/1:sha256={HEX},uid=-1", "field 'uid'"),
        (f"pollux/1:sha256={HEX},uid=01", "field 'uid'"),
        (f"pollux/1:sha256={HEX},uid=1,min=0", "field 'min'"),
        (f"pollux/1:sha256={HEX},uid=1,min=-1", "field 'min'"),
        (f"pollux/1:sha256={HEX},uid=1,min=٣", "field 'min'"),
        (f"pollux/1:sha256={HEX},uid=1,min=1e3", "field 'min'"),
        (f"pollux/1:sha256={HEX},uid=1,max=1000001", "more than 1000000"),
        (f"pollux/1:sha256={HEX},uid=1,max=99999999999999999999", "field 'max'"),
        (f"pollux/1:sha256={HEX},uid=1,min=3,max=2", "min 3 is above max 2"),
        (f"pollux/1:sha256={HEX},uid=1,min=3,min=3", "twice"),
        (f"pollux/1:sha256={HEX},uid=1,min", "field 'min'"),
        (f"pollux/1:sha256={HEX},uid=1,unconfirmed=yes", "field 'unconfirmed'"),
        (f"pollux/1:sha256={HEX},uid=1,slice=3600", "slice and total must be given together"),
        (f"pollux/1:sha256={HEX},uid=1,total=3600", "slice and total must be given together"),
        (f"pollux/1:sha256={HEX},uid=1,slice=3600,total=3600", "total 3600 is not above slice 3600"),
        (f"pollux/1:sha256={HEX},uid=1,slice=0,total=3600", "field 'slice'"),
        (f"pollux/1:sha256={HEX},uid=1,slice=1,total=1000000000", "field 'total'"),
        (f"pollux/1:sha256={HEX},uid=1,finishby=0", "field 'finishby'"),
        (f"pollux/1:sha256={HEX},uid=1,finishby=100000000000", "field 'finishby'"),
        (f"pollux/1:sha256={HEX},uid=1,colour=red", "unknown field 'colour'"),
        (f"pollux/1:sha256={HEX},uid=1,", "unknown field ''"),
        (f"pollux/1:sha256={HEX} pollux/1:sha256={HEX}", "more than one"),
    ],
)
def test_that_a_malformed_payload_gives_no_terms_but_a_reason(payload: str, problem: str) -> None:
    parsed = parse_comment(f"text {payload}")
    assert parsed.terms is None
    assert parsed.problem is not None
    assert problem in parsed.problem
    assert decode_comment(payload) is None


@pytest.mark.parametrize(
    "terms",
    [
        JobTerms(token_sha256="short", user_id=1000),
        JobTerms(token_sha256=HEX, user_id=1000, min_gpus=0),
        JobTerms(token_sha256=HEX, user_id=1000, min_gpus=4, max_gpus=2),
        JobTerms(token_sha256=HEX, user_id=1000, min_gpus=MAX_GPUS + 1),
    ],
)
def test_that_impossible_terms_are_refused_before_they_reach_slurm(terms: JobTerms) -> None:
    with pytest.raises(UsageError, match="Comment"):
        encode_comment("", terms)
