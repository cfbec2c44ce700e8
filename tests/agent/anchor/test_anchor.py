"""What follows when the processes of all wings have ended. Wings are threads here, with real connections."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.agent.anchor.anchor import RESTART_WAIT_S, Anchor
from pollux_slurm.agent.anchor.link import Link, Listener, connect
from pollux_slurm.agent.anchor.order import Starts
from pollux_slurm.agent.anchor.wing_jobs import SeenWing
from pollux_slurm.agent.submit.wing_request import WingRequest
from pollux_slurm.model import JobState

Act = Callable[[Link], None]


class Wings:
    """Takes the place of Slurm: each wing that is submitted connects at once and does what is next."""

    anchor_id = "1"

    def __init__(self, listener: Listener, acts: Sequence[Act]) -> None:
        self._listener, self._acts = listener, list(acts)
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.over: set[str] = set()

    def submit(self, request: Sequence[str], **more: Any) -> str:
        number = str(10 + len(self.submitted))
        self.submitted.append({"request": list(request), **more})
        act = self._acts.pop(0)
        threading.Thread(target=self._run, args=(number, act), daemon=True).start()
        return number

    def _run(self, number: str, act: Act) -> None:
        link = connect("127.0.0.1", self._listener.port, "s")
        link.send({"wing": number, "processes": {"n0": 2}})
        while "go" not in (link.receive() or {"go": None}):
            pass
        act(link)
        link.close()

    def look(self, job_ids: Iterable[str]) -> dict[str, SeenWing]:
        return {
            number: SeenWing(state=JobState.FAILED if number in self.over else JobState.RUNNING, reason="")
            for number in job_ids
        }

    def left_behind(self) -> list[str]:
        return ["7"]

    def cancel(self, job_ids: Iterable[str], warn: Callable[[str], None]) -> None:
        self.cancelled.extend(job_ids)


def ends(code: int) -> Act:
    return lambda link: (link.send({"exit": code}), None)[1]


def is_lost(_link: Link) -> None:
    return


def ends_when_stopped(link: Link) -> None:
    while "signal" not in (link.receive() or {"signal": 0}):
        pass
    link.send({"exit": 143})


def run_anchor(
    folder: Path, *acts: Act, limit_s: float | None = None, over: tuple[str, ...] = (), speed: float = 1.0
) -> tuple[int, Wings]:
    """Run an anchor whose clock is `speed` times as fast. Slurm shows the wings `over` as ended."""
    listener = Listener("s", beat_s=0.05)
    wings = Wings(listener, acts)
    wings.over = set(over)
    try:
        anchor = Anchor(
            jobs=wings,  # type: ignore[arg-type]
            listener=listener,
            watch=None,
            request=WingRequest(options=("--gpus=2",), time_limit_s=limit_s),
            starts_file=folder / "p.starts",
            kill_after_s=30.0,
            say=lambda _text: None,
            monotonic=lambda: speed * time.monotonic(),
        )
        return anchor.run(), wings
    finally:
        listener.close()


def test_that_a_training_that_is_over_ends_the_job(tmp_path: Path) -> None:
    code, wings = run_anchor(tmp_path, ends(0))
    assert code == 0
    assert [one["restart_count"] for one in wings.submitted] == [0]
    assert wings.submitted[0]["begin_s"] == 0
    assert wings.cancelled == ["7"]


def test_that_a_process_that_fails_fails_the_job(tmp_path: Path) -> None:
    code, wings = run_anchor(tmp_path, ends(3))
    assert (code, len(wings.submitted)) == (3, 1)


@pytest.mark.parametrize("act", [ends(143), is_lost])
def test_that_a_training_that_was_stopped_is_started_again(tmp_path: Path, act: Act) -> None:
    code, wings = run_anchor(tmp_path, act, ends(0))
    assert code == 0
    assert [(one["restart_count"], one["begin_s"], one["plan"]) for one in wings.submitted] == [
        (0, 0.0, 0),
        (1, RESTART_WAIT_S, 0),
    ]
    assert Starts.read(tmp_path / "p.starts").count == 2


def test_that_starts_are_counted_on_after_a_requeue_of_the_anchor(tmp_path: Path) -> None:
    Starts(count=4, trained_s=100.0).write(tmp_path / "p.starts")
    _, wings = run_anchor(tmp_path, ends(0), limit_s=3600.0)
    assert (wings.submitted[0]["restart_count"], wings.submitted[0]["time_limit_s"]) == (4, 3500.0)


def test_that_no_start_is_made_without_time(tmp_path: Path) -> None:
    Starts(count=1, trained_s=3590.0).write(tmp_path / "p.starts")
    code, wings = run_anchor(tmp_path, limit_s=3600.0)
    assert (code, wings.submitted) == (143, [])


def test_that_an_anchor_that_is_stopped_stops_its_wings_and_ends(tmp_path: Path) -> None:
    def stop_the_anchor(link: Link) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ends_when_stopped(link)

    code, wings = run_anchor(tmp_path, stop_the_anchor)
    assert (code, len(wings.submitted)) == (143, 1)


def test_that_a_wing_that_is_over_in_the_queue_is_lost_though_its_processes_go_on(tmp_path: Path) -> None:
    stopped = threading.Event()

    def trains_until_stopped(link: Link) -> None:
        while "signal" not in (link.receive() or {"signal": 0}):
            pass
        stopped.set()
        # As if on a machine whose network is slow: its last word comes too late to count.
        threading.Event().wait(0.5)
        link.send({"exit": 0})

    code, wings = run_anchor(tmp_path, trains_until_stopped, ends(0), over=("10",), speed=100.0)
    assert (code, len(wings.submitted)) == (0, 2)
    assert stopped.is_set()
