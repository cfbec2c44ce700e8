"""Digests of raw examples, by which replicas find out whether they read the same stream.

Equal content has equal digests in every process. What has no stable content (an object, a function, the path
of a node's own file) counts with its type only.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Of each field: a digest over the examples, and whether these differ in it.
FieldDigests = dict[str, tuple[str, bool]]

# So many examples of a stream are compared.
_NUM_COMPARED = 8
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None))


def field_digests(examples: Sequence[Any]) -> FieldDigests:
    """Return the digests of each field (key of a dict, place in a tuple) of the first few examples."""
    found: dict[str, list[tuple[int, bytes]]] = {}
    for index, example in enumerate(examples[:_NUM_COMPARED]):
        for name, value in _fields(example):
            found.setdefault(name, []).append((index, _digest(value)))
    return {
        name: (hashlib.sha256(repr(parts).encode()).hexdigest()[:16], len({part for _, part in parts}) > 1)
        for name, parts in found.items()
    }


def _fields(example: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(example, Mapping):
        yield from ((repr(key), value) for key, value in example.items())
    elif isinstance(example, tuple):
        yield from ((str(index), value) for index, value in enumerate(example))
    else:
        yield "", example


def _digest(value: Any) -> bytes:
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield what is stable of a value: its type, and its content where that has one."""
    kind = type(value)
    yield f"{kind.__module__}.{kind.__qualname__}".encode()
    if isinstance(value, str) and value.startswith("/"):
        return
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        if value.layout is torch.strided and not value.is_quantized:
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            yield plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _parts(value[key])
    elif isinstance(value, list | tuple):
        yield str(len(value)).encode()
        for item in value:
            yield from _parts(item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name))
    else:
        yield from _array_parts(value)


def _array_parts(value: Any) -> Iterator[bytes]:
    """Yield shape and content of an array or an image (numpy's, PIL's); nothing for other objects."""
    to_bytes, kind = getattr(value, "tobytes", None), getattr(value, "dtype", None)
    if callable(to_bytes) and not getattr(kind, "hasobject", False):
        yield f"{kind} {getattr(value, 'shape', None)} {getattr(value, 'size', None)}".encode()
        try:
            yield to_bytes()
        except (OSError, TypeError, ValueError):
            # An image whose file cannot be read here.
            return
