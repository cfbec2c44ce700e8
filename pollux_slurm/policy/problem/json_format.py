"""Read and write a scheduling problem and its decision as versioned JSON text, exactly. Pure.

    {"format": "pollux-problem", "version": 1, "problem": {"nodes": [...], "jobs": [...], ...}}
    {"format": "pollux-decision", "version": 1, "decision": {...}}

The fields are those of `pollux_slurm.model`, by name; an `Allocation` is an object of GPUs by node. Numbers
are written so that reading gives the same number; NaN and infinities, which JSON does not have, are the
strings "NaN", "Infinity" and "-Infinity" in jobs, and rejected elsewhere. Reading is strict: an unknown or
missing field or a wrong type raises an `InvalidProblemError` that names the place. A field with a default may
be absent, so that older files stay readable.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import numbers
import types
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from pollux_slurm.errors import InvalidProblemError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.model import Allocation, Decision, Problem

VERSION = 1

# A job with a number that is not finite is excluded from its round, which is recorded and replayed with it.
# JSON has no such numbers, so they are written as strings.
_JOBS = "problem.jobs["
_NOT_FINITE: Mapping[str, float] = MappingProxyType(
    {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
)
# Not their subclasses, such as numpy's.
_PLAIN = frozenset({bool, str, int})

T = TypeVar("T")


def problem_to_json(problem: Problem) -> str:
    """Return the problem as JSON text; raises `InvalidProblemError` for what JSON cannot express."""
    return _to_text("problem", problem)


def problem_from_json(text: str | bytes) -> Problem:
    """Return the problem that `problem_to_json` wrote; raises `InvalidProblemError` for anything else."""
    return _from_text("problem", Problem, text)


def decision_to_json(decision: Decision) -> str:
    """Return the decision as JSON text; raises `InvalidProblemError` for what JSON cannot express."""
    return _to_text("decision", decision)


def decision_from_json(text: str | bytes) -> Decision:
    """Return the decision that `decision_to_json` wrote; raises `InvalidProblemError` for anything else."""
    return _from_text("decision", Decision, text)


def document_to_json(kind: str, value: Any) -> str:
    """Return any frozen dataclass of such fields as the JSON text of a `pollux-KIND`."""
    return _to_text(kind, value)


def document_from_json(kind: str, target: type[T], text: str | bytes) -> T:
    """Return the `target` that `document_to_json` wrote; raises `InvalidProblemError` for anything else."""
    return _from_text(kind, target, text)


# ------------------------------------------------------------------------------------------------- to JSON


def _to_text(kind: str, value: Any) -> str:
    document = {"format": f"pollux-{kind}", "version": VERSION, kind: _encode(value, kind)}
    return json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _encode(value: Any, place: str) -> Any:
    # The most frequent first: encoding is much of the time that a round with thousands of jobs takes.
    if isinstance(value, Allocation):
        return {
            node: gpus if type(gpus) is int else _encode(gpus, f"{place}.{node}")
            for node, gpus in value.gpus_by_node
        }
    if names := getattr(type(value), "__dataclass_fields__", None):
        found = {}
        for name in names:
            item = getattr(value, name)
            kind = type(item)
            is_plain = item is None or kind in _PLAIN or (kind is float and math.isfinite(item))
            found[name] = item if is_plain else _encode(item, f"{place}.{name}")
        return found
    if isinstance(value, tuple | list):
        return [_encode(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Integral):  # numpy's as well
        return int(value)
    if isinstance(value, numbers.Real):
        if not math.isfinite(value):
            if not place.startswith(_JOBS):
                _refuse(place, f"{value} is not finite")
            return next(text for text, number in _NOT_FINITE.items() if repr(number) == repr(float(value)))
        return float(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, frozenset):
        return [_encode(item, place) for item in sorted(value)]
    return _refuse(place, f"a {type(value).__name__} has no JSON form")


# ----------------------------------------------------------------------------------------------- from JSON


def _from_text(kind: str, target: type[T], text: str | bytes) -> T:
    try:
        document = parse_json(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except ValueError as error:
        raise InvalidProblemError(f"{kind}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != f"pollux-{kind}":
        _refuse(kind, f'expected an object with "format": "pollux-{kind}"')
    if document.get("version") != VERSION:
        _refuse(
            kind, f"version {_shown(document.get('version'))} is not one that this release reads ({VERSION})"
        )
    if set(document) != {"format", "version", kind}:
        _refuse(kind, f"expected format, version and {kind}, found {_shown(', '.join(sorted(document)))}")
    return typing.cast(T, _decode(document[kind], target, kind))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a name twice")
    return found


def _decode(value: Any, kind: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        (kind,) = (argument for argument in arguments if argument is not type(None))
        return _decode(value, kind, place)
    if origin is tuple:
        return _decode_tuple(value, arguments, place)
    if origin is frozenset:
        items = tuple(_decode_tuple(value, (arguments[0], ...), place))
        if len(set(items)) != len(items):
            _refuse(place, "a value stands there twice")
        return frozenset(items)
    if kind is Allocation:
        return _decode_allocation(value, place)
    if dataclasses.is_dataclass(kind):
        return _decode_object(value, typing.cast(type, kind), place)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        known = {member.value: member for member in kind}
        if not isinstance(value, str) or value not in known:
            _refuse(place, f"expected one of {', '.join(known)}, found {_shown(value)}")
        return known[value]
    return _decode_scalar(value, kind, place)


def _decode_scalar(value: Any, kind: Any, place: str) -> Any:
    if kind is float:
        if isinstance(value, str) and value in _NOT_FINITE and place.startswith(_JOBS):
            return _NOT_FINITE[value]
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(place, f"expected a number, found {_shown(value)}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            _refuse(place, "the number is beyond what can be computed with")
        return number
    if type(value) is not kind:
        _refuse(place, f"expected {_NAMES[kind]}, found {_shown(value)}")
    return value


_NAMES = {int: "a whole number", str: "a string", bool: "true or false"}


def _decode_tuple(value: Any, arguments: tuple[Any, ...], place: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _refuse(place, f"expected a list, found {_shown(value)}")
    if len(arguments) == 2 and arguments[1] is ...:
        return tuple(_decode(item, arguments[0], f"{place}[{i}]") for i, item in enumerate(value))
    if len(value) != len(arguments):
        _refuse(place, f"expected {len(arguments)} values, found {len(value)}")
    return tuple(
        _decode(item, kind, f"{place}[{i}]")
        for i, (item, kind) in enumerate(zip(value, arguments, strict=True))
    )


def _decode_allocation(value: Any, place: str) -> Allocation:
    if not isinstance(value, dict):
        _refuse(place, f"expected GPUs by node, found {_shown(value)}")
    for node, gpus in value.items():
        if type(gpus) is not int or gpus < 1:
            _refuse(f"{place}.{node}", f"expected at least one GPU, found {_shown(gpus)}")
    return Allocation.of(value)


def _decode_object(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, dict):
        _refuse(place, f"expected an object, found {_shown(value)}")
    hints, fields = _fields(kind)
    unknown = sorted(set(value) - set(fields))
    if unknown:
        _refuse(place, f"unknown field {_shown(unknown[0])}")
    for name, field in fields.items():
        if name not in value and field.default is field.default_factory is dataclasses.MISSING:
            _refuse(place, f"field {name!r} is missing")
    return kind(**{name: _decode(item, hints[name], f"{place}.{name}") for name, item in value.items()})


@functools.cache
def _fields(kind: type) -> tuple[Mapping[str, Any], Mapping[str, dataclasses.Field[Any]]]:
    """Return the types and the fields of a dataclass by name. Cached: evaluating the types takes long."""
    return typing.get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}


def _shown(value: Any) -> str:
    # A number of a million digits from an untrusted client is not printed.
    if isinstance(value, int) and abs(value) > 10**18:
        return "a number beyond 1e18"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse(place: str, problem: str) -> NoReturn:
    raise InvalidProblemError(f"{place}: {problem}")
