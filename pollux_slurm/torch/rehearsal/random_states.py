"""Read and set the states of random generators: the process's own, and those within some objects.

States are plain values, which JSON can hold. A generator is named by where it was found.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

Root = tuple[str, Any]
"""A name, and the object that has it."""
States = dict[str, Any]

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_OPAQUE = (
    *(torch.Tensor, torch.nn.Module, np.ndarray, str, bytes, int, float, type(None), type),
    *(ModuleType, FunctionType, MethodType),
)
_DEPTH, _MAX_OBJECTS, _MAX_PARTS = 5, 2000, 100


def read_states(roots: Iterable[Root] = ()) -> States:
    """Return the states of the process's generators and of those within `roots`."""
    states: States = {
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "numpy": _state_of(np.random.mtrand._rand),
        "random": _encoded(random.getstate()),
    }
    if torch.cuda.is_initialized():
        states["torch.cuda"] = torch.cuda.get_rng_state().numpy().tobytes().hex()
    for name, generator in generators_in(roots).items():
        states.setdefault(name, _state_of(generator))
    return states


def set_states(states: Mapping[str, Any], roots: Iterable[Root] = ()) -> None:
    """Set the generators that `read_states` has read, as far as they are there."""
    torch.set_rng_state(_tensor(states["torch"]))
    _set_state(np.random.mtrand._rand, states["numpy"])
    random.setstate(_tuples(states["random"]))
    if "torch.cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(states["torch.cuda"]))
    for name, generator in generators_in(roots).items():
        if name in states:
            _set_state(generator, states[name])


def seed_generators(seed: int, generators: Iterable[Any]) -> None:
    """Seed the process's generators, and some others."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    for generator in generators:
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(seed).state
        else:
            generator.seed(seed)


def generators_in(roots: Iterable[Root]) -> dict[str, Any]:
    """Return the generators in attributes, lists and dicts of some objects, by the way to them."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    left = deque((name, value, _DEPTH) for name, value in roots)
    while left and len(seen) < _MAX_OBJECTS:
        name, value, depth = left.popleft()
        kind = type(value)
        if id(value) in seen or issubclass(kind, _OPAQUE):
            continue
        seen.add(id(value))
        if issubclass(kind, _KINDS):
            if _has_state(value):
                found.setdefault(name, value)
        elif depth > 0:
            left.extend((f"{name}{way}", part, depth - 1) for way, part in _parts(value))
    return found


def _has_state(generator: Any) -> bool:
    """Return whether its state can be read here: the system's has none, a device's none in a worker."""
    if isinstance(generator, torch.Generator):
        return generator.device.type == "cpu" or get_worker_info() is None
    return not isinstance(generator, random.SystemRandom)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if issubclass(kind, dict):
        yield from ((f"[{key!r}]", part) for key, part in list(islice(value.items(), _MAX_PARTS)))
    elif issubclass(kind, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value[:_MAX_PARTS]))
    else:
        try:
            # Not `vars`: a proxy would load what it stands for.
            attributes = object.__getattribute__(value, "__dict__")
        except AttributeError:
            return
        yield from ((f".{key}", part) for key, part in list(islice(attributes.items(), _MAX_PARTS)))


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes().hex()
    if isinstance(generator, random.Random):
        return _encoded(generator.getstate())
    if isinstance(generator, np.random.Generator):
        return _encoded(generator.bit_generator.state)
    return _encoded(generator.get_state(legacy=False))


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(_tensor(state))
    elif isinstance(generator, random.Random):
        generator.setstate(_tuples(state))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _decoded(state)
    else:
        generator.set_state(_decoded(state))


def _tensor(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: _encoded(part) for key, part in value.items()}
    return [_encoded(part) for part in value] if isinstance(value, list | tuple) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, Mapping):
        if value.keys() == {"array", "dtype"}:
            return np.array(value["array"], dtype=value["dtype"])
        return {key: _decoded(part) for key, part in value.items()}
    return value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
