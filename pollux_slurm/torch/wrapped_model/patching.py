"""Wrap methods of objects, so that optimizers and schedulers stay the user's own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any


def patch(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace one object's method by `wrapper(original, *args)`.

    It stays a bound method with the original's attributes: LR schedulers check for both.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(_owner: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, MethodType(method, owner))


def patch_class(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Like `patch`, but in a subclass of the object's own, because a scheduler's state is its `__dict__`."""
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
