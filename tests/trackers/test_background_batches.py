"""Values are sent in order, and a server that does not answer holds up neither training nor its end."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from pollux_slurm.trackers.background_batches import BackgroundBatches

pytestmark = pytest.mark.torch

TIMEOUT_S = 60.0


class Server:
    """Takes what it gets once it is `answering`; calls with a negative value fail."""

    def __init__(self) -> None:
        self.answering, self.called = threading.Event(), threading.Event()
        self.calls: list[list[int]] = []

    def take(self, values: Sequence[int]) -> None:
        self.called.set()
        assert self.answering.wait(TIMEOUT_S)
        self.calls.append(list(values))
        if min(values) < 0:
            raise ConnectionError("no route")


def test_that_what_waits_is_sent_in_order_by_few_calls_and_a_failed_call_is_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Server()
    batches = BackgroundBatches(server.take)
    with caplog.at_level(logging.WARNING, "pollux_slurm"):
        batches.put(-1)
        assert server.called.wait(TIMEOUT_S)
        for value in range(1200):
            batches.put(value)
        server.answering.set()
        batches.flush()
        assert server.calls == [[-1], [*range(500)], [*range(500, 1000)], [*range(1000, 1200)]]
        batches.put(-2)
        batches.flush()
    assert server.calls[-1] == [-2]
    assert [record.getMessage() for record in caplog.records] == [
        "values have not reached the tracker's server: ConnectionError('no route')"
    ]


def test_that_memory_is_bounded_and_the_newest_values_are_kept() -> None:
    server = Server()
    batches = BackgroundBatches(server.take)
    batches.put(-1)
    assert server.called.wait(TIMEOUT_S)
    batches.put(*range(100_500))
    server.answering.set()
    batches.flush()
    assert [value for call in server.calls[1:] for value in call] == [*range(500, 100_500)]


SILENT_SERVER = """
import threading
from pollux_slurm.trackers.background_batches import BackgroundBatches
batches = BackgroundBatches(lambda values: threading.Event().wait(), timeout_s=0.1)
for value in range(10):
    batches.put(value)
print("trained")
"""


def test_that_a_process_ends_though_its_server_never_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SILENT_SERVER],
        timeout=TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    assert "it has not answered for 0.1 s" in done.stderr
