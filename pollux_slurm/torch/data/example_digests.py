"""Digests of raw examples, by which replicas find out whether they read the same stream.

Equal content has equal digests in every process. What has no stable content (an object, a function, the path
of a node's own file) counts with its type only. Arrays of floats count with a few sums, because processors
round differently.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Of each field: a digest over the examples, the sums of its floats, and whether the examples differ in it.
FieldDigests = dict[str, tuple[str, list[float], bool]]

# So many examples of a stream are compared.
_NUM_COMPARED = 8
_PLAIN = (bool, int, float, complex, str, bytes, bytearray, type(None))


def field_digests(examples: Sequence[Any]) -> FieldDigests:
    """Return the digests of each field (key of a dict, place in a tuple) of the first few examples."""
    found: dict[str, list[tuple[int, str, list[float]]]] = {}
    for index, example in enumerate(examples[:_NUM_COMPARED]):
        for name, value in _fields(example):
            sums: list[float] = []
            found.setdefault(name, []).append((index, _digest(value, sums), sums))
    return {name: _joined(parts) for name, parts in found.items()}


def _joined(parts: Sequence[tuple[int, str, list[float]]]) -> tuple[str, list[float], bool]:
    text = repr([(index, digest) for index, digest, _ in parts])
    return (
        hashlib.sha256(text.encode()).hexdigest()[:16],
        [number for _, _, sums in parts for number in sums],
        len({(digest, *sums) for _, digest, sums in parts}) > 1,
    )


def _fields(example: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(example, Mapping):
        yield from ((repr(key), value) for key, value in example.items())
    elif isinstance(example, tuple):
        yield from ((str(index), value) for index, value in enumerate(example))
    else:
        yield "", example


def _digest(value: Any, sums: list[float]) -> str:
    try:
        parts = list(_parts(value, sums))
    except Exception:
        # An object of another's code may raise anything; comparing must not end the training.
        sums.clear()
        parts = [_type_name(value)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _type_name(value: Any) -> bytes:
    return f"{type(value).__module__}.{type(value).__qualname__}".encode()


def _parts(value: Any, sums: list[float]) -> Iterator[bytes]:
    """Yield what is stable of a value: its type, and its content where that has one; add to `sums`."""
    yield _type_name(value)
    if isinstance(value, str) and value.startswith("/"):
        return
    if isinstance(value, _PLAIN):
        yield repr(value).encode()
    elif isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        if value.layout is torch.strided and not value.is_quantized:
            plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            if value.is_floating_point():
                sums += _sums(plain)
            else:
                yield plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            yield repr(key).encode()
            yield from _parts(value[key], sums)
    elif isinstance(value, list | tuple):
        yield str(len(value)).encode()
        for item in value:
            yield from _parts(item, sums)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name), sums)
    else:
        yield from _array_parts(value, sums)


def _array_parts(value: Any, sums: list[float]) -> Iterator[bytes]:
    """Yield shape and content of an array or an image (numpy's, PIL's); nothing for other objects."""
    to_bytes, kind = getattr(value, "tobytes", None), getattr(value, "dtype", None)
    if not callable(to_bytes) or getattr(kind, "hasobject", False):
        return
    described = f"{kind} {getattr(value, 'shape', None)} {getattr(value, 'size', None)}".encode()
    if getattr(kind, "kind", None) == "f":
        yield described
        sums += _sums(torch.as_tensor(value.astype("float64")))
        return
    try:
        content = to_bytes()
    except (OSError, TypeError, ValueError):
        # An image whose file cannot be read here.
        return
    # An object that answers to any name has no such content, and its description differs in each process.
    if isinstance(content, bytes):
        yield described
        yield content


def _sums(values: torch.Tensor) -> list[float]:
    """Return means of the values, of their sizes, and of their sizes by place."""
    flat = torch.nan_to_num(values.reshape(-1).double(), nan=1.0, posinf=2.0, neginf=3.0)
    if not len(flat):
        return [0.0, 0.0, 0.0]
    places = torch.linspace(0.0, 1.0, len(flat), dtype=torch.float64)
    return [flat.mean().item(), flat.abs().mean().item(), (flat.abs() * places).mean().item()]
