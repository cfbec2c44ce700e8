"""Put a wrapper around one method of one object: optimizers and schedulers stay the user's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any


def patch(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Put `wrapper(original, *args)` in place of one object's method.

    It stays a bound method that carries the original's attributes: LR schedulers look for both.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(_owner: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, MethodType(method, owner))


def patch_class(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Like `patch`, but in a subclass for this one object: a scheduler's state is its `__dict__`."""
    kind = type(owner)
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original, self), *args, **kwargs)

    owner.__class__ = type(kind.__name__, (kind,), {name: method, "__module__": kind.__module__})


def patch_everywhere(kind: type, name: str, wrapper: Callable[..., Any]) -> None:
    """Like `patch`, but for all objects of a class."""
    original = getattr(kind, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original, self), *args, **kwargs)

    setattr(kind, name, method)
