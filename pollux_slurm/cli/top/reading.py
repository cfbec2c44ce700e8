"""A thread for reads that may be slow, for which the end of the process does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TypeVar

_Result = TypeVar("_Result")


async def in_daemon_thread(call: Callable[[], _Result]) -> _Result:
    """Return what `call` returns, or raise what it raises; what it does after a cancellation is ignored.

    The event loop's own threads are joined when it closes: it would not end before `call` does.
    """
    future: Future[_Result] = Future()
    future.set_running_or_notify_cancel()  # so that a result is accepted after a cancellation, too

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)
