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

from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.anchor.anchor import RESTART_WAIT_S, Anchor
from pollux_slurm.launch.anchor.link import Link, LinkListener, connect
from pollux_slurm.launch.anchor.order import Starts
from pollux_slurm.launch.anchor.seen_job import SeenJob
from pollux_slurm.launch.submit.wing_request import WingRequest
from pollux_slurm.model import JobState

Act = Callable[[Link], None]


class Wings:
    """Takes the place of Slurm: each wing that is submitted connects at once and does what is next.

    The program of one that `fails_to_start` or `is_cancelled` never runs, that of one that `meets_no_anchor`
    has ended. `own` is the anchor in the queue.
    """

    anchor_id, node = "1", "n0"

    def __init__(self, listener: LinkListener, acts: Sequence[Act]) -> None:
        self._listener, self._acts = listener, list(acts)
        self.submitted: list[dict[str, Any]] = []
        self.cancelled: list[str] = []
        self.over: set[str] = set()
        self.processes = dict[str, dict[str, int]]()
        self.launched = dict[str, Act]()
        self.own = SeenJob(state=JobState.RUNNING, node="n0")

    def submit(self, request: Sequence[str], **more: Any) -> str:
        number = str(10 + len(self.submitted))
        self.submitted.append({"request": list(request), **more})
        self.launched[number] = act = self._acts.pop(0)
        if act in (fails_to_start, is_cancelled, meets_no_anchor):
            return number
        threading.Thread(target=self._run, args=(number, act), daemon=True).start()
        return number

    def _run(self, number: str, act: Act) -> None:
        link = connect("127.0.0.1", self._listener.port, "s")
        link.send({"wing": number, "processes": self.processes.get(number, {"n0": 2})})
        while "go" not in (link.receive() or {"go": None}):
            pass
        act(link)
        link.close()

    def look(self, job_ids: Iterable[str]) -> dict[str, SeenJob]:
        return {"1": self.own, **{number: self._seen(number) for number in job_ids}}

    def _seen(self, number: str) -> SeenJob:
        act = self.launched[number]
        if act is is_cancelled:
            return SeenJob(state=JobState.CANCELLED)
        if act is meets_no_anchor:
            return SeenJob(state=JobState.COMPLETED)
        has_failed = act is fails_to_start or number in self.over
        return SeenJob(state=JobState.FAILED if has_failed else JobState.RUNNING, has_failed=has_failed)

    def left_behind(self) -> list[str]:
        return ["7"]

    def cancel(self, job_ids: Iterable[str], warn: Callable[[str], None]) -> None:
        self.cancelled.extend(job_ids)


def ends(code: int) -> Act:
    return lambda link: (link.send({"exit": code}), None)[1]


def is_lost(_link: Link) -> None:
    return


def fails_to_start(_link: Link) -> None:
    raise AssertionError("its program does not run")


def is_cancelled(_link: Link) -> None:
    raise AssertionError("its program does not run")


def meets_no_anchor(_link: Link) -> None:
    raise AssertionError("it is not connected")


def ends_when_stopped(link: Link) -> None:
    while "signal" not in (link.receive() or {"signal": 0}):
        pass
    link.send({"exit": 143})


def run_anchor(
    folder: Path, *acts: Act, limit_s: float | None = None, over: tuple[str, ...] = (), speed: float = 1.0
) -> tuple[int | None, Wings]:
    """Run an anchor whose clock is `speed` times as fast. Slurm shows the wings `over` as ended."""
    listener = LinkListener("s", beat_s=0.05)
    wings = Wings(listener, acts)
    wings.over = set(over)
    try:
        return anchor_of(wings, listener, folder, limit_s=limit_s, speed=speed).run(), wings
    finally:
        listener.close()


def anchor_of(
    wings: Wings,
    listener: LinkListener,
    folder: Path,
    *,
    limit_s: float | None = None,
    speed: float,
    is_replaced: Callable[[], bool] = lambda: False,
) -> Anchor:
    return Anchor(
        jobs=wings,  # type: ignore[arg-type]
        listener=listener,
        watch=None,
        request=WingRequest(options=("--gpus=2",), time_limit_s=limit_s),
        starts_file=folder / "p.starts",
        kill_after_s=30.0,
        say=lambda _text: None,
        is_replaced=is_replaced,
        monotonic=lambda: speed * time.monotonic(),
    )


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


def test_that_the_code_on_disk_makes_the_next_start_after_an_upgrade(tmp_path: Path) -> None:
    listener = LinkListener("s", beat_s=0.05)
    wings = Wings(listener, [ends(143), ends(0)])
    answers = [True]
    try:
        first = anchor_of(wings, listener, tmp_path, speed=1.0, is_replaced=lambda: answers.pop())
        assert first.run() is None
    finally:
        listener.close()
    assert (len(wings.submitted), wings.cancelled) == (1, ["7"])
    assert Starts.read(tmp_path / "p.starts").count == 1


def test_that_starts_are_counted_on_after_a_requeue_of_the_anchor(tmp_path: Path) -> None:
    Starts(count=4, trained_s=100.0).write(tmp_path / "p.starts")
    _, wings = run_anchor(tmp_path, ends(0), limit_s=3600.0)
    assert (wings.submitted[0]["restart_count"], wings.submitted[0]["time_limit_s"]) == (4, 3500.0)


@pytest.mark.parametrize(
    ("limit_s", "trained_s", "is_started"),
    [
        (3600.0, 3421.0, False),  # SIGTERM comes 120 to 180 s before the end
        (3600.0, 3419.0, True),
        (600.0, 481.0, False),  # 60 to 120 s
        (60.0, 0.0, True),
        (60.0, 1.0, False),
    ],
)
def test_that_no_start_is_made_that_would_be_stopped_at_once(
    tmp_path: Path, limit_s: float, trained_s: float, is_started: bool
) -> None:
    Starts(count=1, trained_s=trained_s).write(tmp_path / "p.starts")
    code, wings = run_anchor(tmp_path, ends(0), limit_s=limit_s)
    assert (code, len(wings.submitted)) == ((0, 1) if is_started else (143, 0))


def test_that_three_starts_in_a_row_whose_program_fails_fail_the_job(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="its wings 12, 14, 15 failed before their processes started"):
        run_anchor(
            tmp_path,
            *(fails_to_start, is_lost, fails_to_start, is_cancelled, fails_to_start, fails_to_start),
            speed=100.0,
        )


def test_that_wings_that_are_cancelled_or_lost_or_meet_no_anchor_are_submitted_again(tmp_path: Path) -> None:
    acts = (*(is_cancelled,) * 3, *(meets_no_anchor,) * 3, fails_to_start, is_lost, ends(0))
    code, wings = run_anchor(tmp_path, *acts, speed=100.0)
    assert (code, len(wings.submitted)) == (0, 9)


def test_that_a_run_whose_job_is_on_another_node_stops_its_wings_and_counts_nothing(tmp_path: Path) -> None:
    def is_requeued_elsewhere(link: Link) -> None:
        wings.own = SeenJob(state=JobState.RUNNING, node="n7")
        ends_when_stopped(link)

    listener = LinkListener("s", beat_s=0.05)
    wings = Wings(listener, [is_requeued_elsewhere])
    try:
        assert anchor_of(wings, listener, tmp_path, speed=100.0).run() == 143
    finally:
        listener.close()
    assert len(wings.submitted) == 1
    assert Starts.read(tmp_path / "p.starts") == Starts(count=1, trained_s=0.0)


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
