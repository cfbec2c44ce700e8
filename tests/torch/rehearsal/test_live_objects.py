"""What finds the objects of a process disturbs none of its threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from pollux_slurm.torch.rehearsal.live_objects import live_objects


class Sought:
    pass


class Special(Sought):
    pass


class Proxy:
    """Says that it is a `Sought`, as proxies do."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise AssertionError("it would have to load what it stands for")


def test_that_types_count_and_not_what_objects_say_of_themselves() -> None:
    kept = [Sought(), Special(), Proxy()]
    found = live_objects(Sought)
    assert {id(one) for one in found} == {id(one) for one in kept[:2]}
    assert [type(one) for one in live_objects(Special)] == [Special]


def test_that_tuples_which_another_thread_fills_stay_whole() -> None:
    """A tuple of an unknown length grows while it is filled, and must be referred to by nobody else.

    This one is always being filled: its numbers give way to other threads.
    """
    crowd = [[number] for number in range(200_000)]  # going through all objects takes several turns
    failures: list[BaseException] = []
    over = threading.Event()

    def numbers() -> Iterator[int]:
        for number in range(30):
            time.sleep(0)
            yield number

    def fill() -> None:
        try:
            while not over.is_set():
                assert len(tuple(numbers())) == 30
        except BaseException as error:  # SystemError, where the tuple had a second owner
            failures.append(error)

    filling = threading.Thread(target=fill)
    filling.start()
    for _ in range(10):
        live_objects(Sought)
    over.set()
    filling.join(timeout=60)
    assert (len(crowd), failures) == (200_000, [])
