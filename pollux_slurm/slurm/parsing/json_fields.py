"""Read typed values from Slurm's JSON, whose forms change with each release.

A number is `5` in 22.05 and `{"set": true, "infinite": false, "number": 5}` since 23.02. A state is a string
in 22.05 and a list of strings since. Other forms raise `SlurmReadError` that names object and field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NoReturn

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.json_texts import parse_json

# NO_VAL ("not set") and INFINITE ("no limit") of slurm.h in 32 and 64 bits. No field read here has 16 bits,
# and those values would hide user 65534 (nobody) and two jobs.
_NO_VALUE = frozenset(base - offset for base in (1 << 32, 1 << 64) for offset in (1, 2))
LAST_SECOND = int(datetime(9999, 1, 1, tzinfo=timezone.utc).timestamp())
"""Stands for all later times of an owner's, such as --begin=uts999999999999, which no calendar has."""


def load_json(text: str, command: str) -> dict[str, Any]:
    """Parse the JSON object that `command` printed. Raises `SlurmReadError` for anything else.

    Control characters inside strings are accepted: any user can put them into a job's name.
    """
    try:
        content = parse_json(text, strict=False, parse_constant=_refuse_constant)
    except ValueError as error:
        raise SlurmReadError(f"{command}: the answer is cut or not JSON ({error})") from None
    if not isinstance(content, dict):
        raise SlurmReadError(f"{command}: the answer is not a JSON object")
    errors = content.get("errors")
    if errors:
        raise SlurmReadError(f"{command}: {_error_text(errors)}")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _error_text(errors: Any) -> str:
    first = errors[0] if isinstance(errors, list) else errors
    if isinstance(first, dict):
        parts = (first.get("error"), first.get("description"))
        return ": ".join(str(part) for part in parts if part) or "an error without a message"
    return str(first)


def release(content: Mapping[str, Any]) -> tuple[int, int]:
    """Return (major, minor) of the Slurm that wrote `content`."""
    meta = content.get("meta")
    about = (meta.get("Slurm") or meta.get("slurm")) if isinstance(meta, dict) else None
    version = about.get("version") if isinstance(about, dict) else None
    if isinstance(version, dict):
        try:  # numbers in 22.05, texts since 23.11
            return int(version["major"]), int(version["minor"])
        except (KeyError, TypeError, ValueError):
            pass
    raise SlurmReadError("Slurm's JSON lacks the release that wrote it (meta.slurm.version)")


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object with a label for messages, such as `job 12`."""

    content: Mapping[str, Any]
    label: str

    def bad(self, key: str) -> SlurmReadError:
        """Return the error for a value of `key` that cannot be parsed."""
        shown = repr(self.content[key])[:120] if key in self.content else "missing"
        return SlurmReadError(f"{self.label}: cannot parse {key}: {shown}")

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; `default` where it is null or missing."""
        value = self.content.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self.bad(key)
        return _clean(value)

    def number(self, key: str) -> int | None:
        """Return a whole number, None where it is not set, infinite, null or missing."""
        value = self.content.get(key)
        if isinstance(value, dict):
            if not isinstance(value.get("set"), bool):
                raise self.bad(key)
            value = value.get("number") if value["set"] and not value.get("infinite") else None
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or abs(value) >= 1 << 64:
            raise self.bad(key)
        return None if value in _NO_VALUE else value

    def count(self, key: str) -> int:
        """Return a required number that is not negative."""
        value = self.number(key)
        if value is None or value < 0:
            raise self.bad(key)
        return value

    def flag(self, key: str) -> bool:
        """Return a required boolean."""
        value = self.content.get(key)
        if not isinstance(value, bool):
            raise self.bad(key)
        return value

    def time(self, key: str) -> datetime | None:
        """Return seconds since 1970 as an aware UTC time, None for zero and unset."""
        value = self.number(key)
        if not value:
            return None
        try:
            return datetime.fromtimestamp(value, timezone.utc)
        except (OverflowError, ValueError, OSError):
            raise self.bad(key) from None

    def owners_time(self, key: str) -> datetime | None:
        """Return a time that the job's owner may choose: `LAST_SECOND` at most, None for one before 1970."""
        seconds = min(self.number(key) or 0, LAST_SECOND)
        return datetime.fromtimestamp(seconds, timezone.utc) if seconds > 0 else None

    def words(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; a single string counts as a list of one, null and missing as none."""
        value = self.content.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.bad(key)
        return tuple(value)

    def objects(self, key: str) -> tuple[Fields, ...]:
        """Return a list of objects, under this one's label."""
        value = self.content.get(key)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.bad(key)
        return tuple(Fields(item, self.label) for item in value)

    def object(self, key: str) -> Fields:
        """Return a required object."""
        value = self.content.get(key)
        if not isinstance(value, dict):
            raise self.bad(key)
        return Fields(value, self.label)


def objects_of(content: Mapping[str, Any], key: str, command: str) -> Sequence[Mapping[str, Any]]:
    """Return the top-level list of objects under `key`."""
    value = content.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise SlurmReadError(f"{command}: the answer lacks its list of {key}")
    return value


def _clean(text: str) -> str:
    """Return `text` without lone surrogates, which nothing can store or print."""
    return text.encode("utf-8", "replace").decode("utf-8")
