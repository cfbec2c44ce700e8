"""Write a job's terms into its Slurm Comment, after the user's own text, and read them back.

Grammar (one word, no blanks inside; fields in any order, each at most once, `sha256` and `uid` required):

    comment = [user's text, " "] payload
    payload = "pollux/1:" field *("," field)
    field   = "sha256=" 64 lower-case hex | "uid=" user id | "min=" count | "max=" count
            | "unconfirmed=" ("0" | "1")
            | "slice=" seconds | "total=" seconds        (both or neither; total above slice)
            | "inplace=1"                                (not with slice and total)
            | "minrun=" ("0" | seconds | "always")
            | "kind=" 1 to 32 letters, digits, ".", "-", "_"
            | "finishby=" seconds since 1970, UTC
    count   = a decimal number from 1 to 1000000, without leading zeros
    seconds = a decimal number from 1 to 999999999, since 1970 to 99999999999, without leading zeros

Any user can write any text into the Comment of their own job, so reading never raises: a comment is an
unmanaged job's, an adaptive job's, or malformed, with a reason.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass
from datetime import datetime, timezone

from pollux_slurm.errors import UsageError
from pollux_slurm.model import JobTerms

MAX_GPUS = 1_000_000

_VERSION = "pollux/1:"
# Matches payloads of any version: one of another version must not be taken for user text.
_PAYLOAD = re.compile(r"(?<!\S)pollux/[0-9]+:\S*")
KIND = re.compile(r"[A-Za-z0-9._-]{1,32}")
_FIELDS = {
    "sha256": re.compile(r"[0-9a-f]{64}"),
    "uid": re.compile(r"0|[1-9][0-9]{0,9}"),
    "min": re.compile(r"[1-9][0-9]{0,6}"),
    "max": re.compile(r"[1-9][0-9]{0,6}"),
    "unconfirmed": re.compile(r"[01]"),
    "slice": re.compile(r"[1-9][0-9]{0,8}"),
    "total": re.compile(r"[1-9][0-9]{0,8}"),
    "inplace": re.compile(r"1"),
    "minrun": re.compile(r"always|0|[1-9][0-9]{0,8}"),
    "kind": KIND,
    "finishby": re.compile(r"[1-9][0-9]{0,10}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedComment:
    """A parsed Comment. `problem` is why its payload cannot be used; `terms` is None then."""

    user_text: str
    terms: JobTerms | None
    problem: str | None = None


def encode_comment(user_comment: str, terms: JobTerms) -> str:
    """Return `user_comment` with `terms` after it; terms that it already has are replaced.

    Raises `UsageError` for terms that `parse_comment` would refuse.
    """
    fields = [f"sha256={terms.token_sha256}", f"uid={terms.user_id}", f"min={terms.min_gpus}"]
    if terms.max_gpus is not None:
        fields.append(f"max={terms.max_gpus}")
    if terms.allow_unconfirmed:
        fields.append("unconfirmed=1")
    if terms.slice_s is not None:
        fields.append(f"slice={terms.slice_s}")
    if terms.total_s is not None:
        fields.append(f"total={terms.total_s}")
    if terms.in_place:
        fields.append("inplace=1")
    if terms.min_run_s is not None:
        fields.append(f"minrun={'always' if math.isinf(terms.min_run_s) else math.ceil(terms.min_run_s)}")
    if terms.kind is not None:
        fields.append(f"kind={terms.kind}")
    if terms.finish_by is not None:
        fields.append(f"finishby={math.floor(terms.finish_by.timestamp())}")
    payload = _VERSION + ",".join(fields)
    checked = _parse_payload(payload)
    if isinstance(checked, str):
        raise UsageError(f"these terms cannot be written into a job's Comment: {checked}")
    text = user_part(user_comment)
    return f"{text} {payload}" if text else payload


def decode_comment(comment: str) -> JobTerms | None:
    """Return the terms of an adaptive job; None for any other comment, malformed ones included."""
    return parse_comment(comment).terms


def user_part(comment: str) -> str:
    """Return the user's own text of a comment."""
    return parse_comment(comment).user_text


@functools.lru_cache(maxsize=20_000)  # each round asks for the same thousands several times
def parse_comment(comment: str) -> ParsedComment:
    """Parse a Comment. Never raises, whatever the text."""
    payloads = list(_PAYLOAD.finditer(comment))
    if not payloads:
        return ParsedComment(user_text=comment, terms=None)
    user_text = _without(comment, payloads)
    if len(payloads) > 1:
        return ParsedComment(user_text=user_text, terms=None, problem="more than one pollux payload")
    parsed = _parse_payload(payloads[0].group())
    if isinstance(parsed, str):
        return ParsedComment(user_text=user_text, terms=None, problem=parsed)
    return ParsedComment(user_text=user_text, terms=parsed)


def _without(comment: str, payloads: list[re.Match[str]]) -> str:
    """Remove the payloads, each with the one blank that `encode_comment` writes before it."""
    kept, end = [], 0
    for payload in payloads:
        before = comment[end : payload.start()]
        kept.append(before.removesuffix(" "))
        end = payload.end()
    return "".join([*kept, comment[end:]])


def _parse_payload(payload: str) -> JobTerms | str:
    """Return the terms, or a description of what is wrong with them."""
    if not payload.startswith(_VERSION):
        return f"payload of an unknown version: {payload[:20]!r}"
    values: dict[str, str] = {}
    for field in payload.removeprefix(_VERSION).split(","):
        key, _, value = field.partition("=")
        if key not in _FIELDS:
            return f"unknown field {key[:20]!r}"
        if key in values:
            return f"field {key!r} occurs twice"
        if not _FIELDS[key].fullmatch(value):
            return f"field {key!r} has the value {value[:70]!r}"
        values[key] = value
    for key in ("sha256", "uid"):
        if key not in values:
            return f"field {key!r} is missing"
    min_gpus = int(values.get("min", "1"))
    max_gpus = int(values["max"]) if "max" in values else None
    if max(min_gpus, max_gpus or 0) > MAX_GPUS:
        return f"more than {MAX_GPUS} GPUs"
    if max_gpus is not None and min_gpus > max_gpus:
        return f"min {min_gpus} is above max {max_gpus}"
    slice_s = int(values["slice"]) if "slice" in values else None
    total_s = int(values["total"]) if "total" in values else None
    if (slice_s is None) != (total_s is None):
        return "slice and total must be given together or not at all"
    if slice_s is not None and total_s is not None and total_s <= slice_s:
        return f"total {total_s} is not above slice {slice_s}"
    if total_s is not None and "inplace" in values:
        return "a job that moves in place has no slices"
    return JobTerms(
        token_sha256=values["sha256"],
        user_id=int(values["uid"]),
        min_gpus=min_gpus,
        max_gpus=max_gpus,
        allow_unconfirmed=values.get("unconfirmed") == "1",
        slice_s=slice_s,
        total_s=total_s,
        in_place="inplace" in values,
        min_run_s=float(values["minrun"].replace("always", "inf")) if "minrun" in values else None,
        kind=values.get("kind"),
        finish_by=datetime.fromtimestamp(int(values["finishby"]), timezone.utc)
        if "finishby" in values
        else None,
    )
