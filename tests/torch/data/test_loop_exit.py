"""How a loop's generator distinguishes `break` from an error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from pollux_slurm.torch.data.loop_exit import is_left_by_break

Wrap = Callable[[Iterable[int]], Iterable[Any]]


class Loop:
    """Three numbers, and how the loop over them was left: None unless early."""

    def __init__(self) -> None:
        self.by_break: bool | None = None

    def __iter__(self) -> Iterator[int]:
        try:
            yield from (0, 1, 2)
        except GeneratorExit:
            self.by_break = is_left_by_break()
            raise


def wrapped(numbers: Iterable[int]) -> Iterator[int]:
    """Yield the items of an iterator, as a progress bar does."""
    for number in numbers:  # noqa: UP028
        yield number


def breaks(loop: Loop, wrap: Wrap) -> None:
    for _ in wrap(loop):
        break


def breaks_out_of_two(loop: Loop, wrap: Wrap) -> None:
    for _ in range(1):
        with contextlib.nullcontext():
            for _ in wrap(loop):
                try:
                    break
                finally:
                    pass
        break


def returns(loop: Loop, wrap: Wrap) -> int:
    for _ in wrap(loop):
        return 1
    return 0


def calls(loop: Loop, wrap: Wrap) -> None:
    for _ in wrap(loop):
        int("no number")


def subscripts(loop: Loop, wrap: Wrap) -> None:
    for _ in wrap(loop):
        _ = [][1]


def catches_itself(loop: Loop, wrap: Wrap) -> None:
    with contextlib.suppress(ValueError):
        for _ in wrap(loop):
            int("no number")


def fails_below(loop: Loop, wrap: Wrap) -> None:
    for _ in wrap(loop):
        calls(Loop(), iter)


def interrupted(loop: Loop, wrap: Wrap) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        for _ in wrap(loop):
            raise KeyboardInterrupt


@pytest.mark.parametrize("wrap", [iter, enumerate, wrapped, lambda loop: wrapped(wrapped(loop))])
@pytest.mark.parametrize(
    ("leave", "expected"),
    [
        (breaks, True),
        (breaks_out_of_two, True),
        (returns, True),
        (calls, False),
        (subscripts, False),
        (catches_itself, False),
        (fails_below, False),
        (interrupted, False),
    ],
)
def test_that_break_and_errors_are_distinguished(
    leave: Callable[[Loop, Wrap], object], expected: bool, wrap: Wrap
) -> None:
    loop = Loop()
    with contextlib.suppress(ValueError, IndexError):
        leave(loop, wrap)
    assert loop.by_break is (expected and sys.version_info >= (3, 11))


def test_that_a_loop_that_runs_to_its_end_was_not_left() -> None:
    loop = Loop()
    for _ in loop:
        pass
    assert loop.by_break is None


def test_that_deleting_a_kept_iterator_is_not_a_break() -> None:
    loop = Loop()
    kept = iter(loop)
    next(kept)
    del kept
    assert loop.by_break is False
