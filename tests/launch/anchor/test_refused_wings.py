"""Nodes that may not submit jobs, and limits on jobs in the queue: an sbatch that refuses."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import LaunchError, SlurmCommandError, SlurmUnavailable
from pollux_slurm.launch.anchor.anchor import Anchor
from pollux_slurm.launch.anchor.generation_watch import GenerationWatch
from pollux_slurm.launch.anchor.link import Link, LinkListener, connect
from pollux_slurm.launch.submit.wing_request import WingRequest
from pollux_slurm.resources import CODE_REPLACED
from pollux_slurm.store.contract.membership import GenerationMember, GenerationRecord, GenerationState
from tests.launch.anchor.site import TOKEN_SHA256, ScriptedSlurm
from tests.launch.anchor.test_anchor import Act, Wings, ends_when_stopped

ROOT = Path(__file__).resolve().parents[3]
DENIED = "sbatch: error: Batch job submission failed: Access/permission denied"
LIMIT = "sbatch: error: AssocMaxSubmitJobLimit"
AWAY = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"


def run(folder: Path, listener: LinkListener, jobs: Any, watch: Any, **more: Any) -> int | None:
    """Run an anchor with `more` arguments, and return its exit code."""
    given: dict[str, Any] = {"kill_after_s": 30.0, "say": lambda _text: None, **more}
    try:
        return Anchor(
            jobs=jobs,
            listener=listener,
            watch=watch,
            request=WingRequest(options=("--gpus=2",)),
            starts_file=folder / "p.starts",
            **given,
        ).run()
    finally:
        listener.close()


class Site(ScriptedSlurm):
    """An anchor whose commands are scripts, and whose time passes ten seconds at each look."""

    def __init__(self, folder: Path, sbatch: str) -> None:
        super().__init__(folder)
        self.command("sbatch", sbatch)
        ticks = itertools.count(step=10)
        self.monotonic: Callable[[], float] = lambda: float(next(ticks))

    def run(self, watch: Any = None) -> int | None:
        more = {"say": self.said.append, "monotonic": self.monotonic}
        return run(self.folder, LinkListener("s"), self.jobs(), watch, **more)


def test_that_a_node_that_may_not_submit_ends_the_job_with_one_plain_line(tmp_path: Path) -> None:
    site = Site(tmp_path, f"echo '{DENIED}' >&2; exit 1")
    with pytest.raises(LaunchError) as failed:
        site.run()
    assert str(failed.value) == (
        "job 1: no wing of it can be submitted on this node, so that it cannot train: sbatch: Batch job "
        "submission failed: Access/permission denied; if it is only that nodes may not submit, use pollux "
        "sbatch --no-in-place"
    )
    assert 1 < len(site.asked("sbatch")) < 10
    assert len(site.said) == 1, "the same refusal is said once"
    assert site.said[0].startswith("job 1: its wing cannot be submitted, and is tried again: ")
    assert site.asked("scontrol") == []


def test_that_a_limit_on_jobs_in_the_queue_sends_the_anchor_back_into_it(tmp_path: Path) -> None:
    site = Site(tmp_path, f"echo '{LIMIT}' >&2; exit 1")
    assert site.run() == 143
    assert "a limit on the number of jobs keeps its wing out of the queue: it goes back" in site.said[-1]
    assert site.asked("scontrol")[0] == "scontrol requeue 1"


def test_that_an_anchor_that_cannot_go_back_into_the_queue_goes_on_trying(tmp_path: Path) -> None:
    site = Site(tmp_path, f"""
        [ $(grep -c sbatch {tmp_path}/asked) -lt 12 ] && {{ echo '{LIMIT}' >&2; exit 1; }}
        echo '{DENIED}' >&2; exit 1""")  # fmt: skip
    site.command("scontrol", "echo 'Requested operation is presently disabled for job 1' >&2; exit 1")
    with pytest.raises(LaunchError, match="permission denied"):
        site.run()
    assert len(site.asked("sbatch")) == 12
    assert len(site.asked("scontrol requeue")) >= 1


def test_that_a_wing_whose_number_was_lost_is_cancelled_before_the_next_is_submitted(tmp_path: Path) -> None:
    """slurmctld had accepted it."""
    mine = f"pollux-wing/1:anchor=1,restart=0,plan=0,sha256={TOKEN_SHA256}"
    site = Site(tmp_path, f"""
        grep -q scancel {tmp_path}/asked && {{ echo '{DENIED}' >&2; exit 1; }}
        echo '{AWAY}' >&2; touch {tmp_path}/accepted; exit 1""")  # fmt: skip
    site.command("squeue", f"""
        [ -e {tmp_path}/accepted ] || exit 0
        case "$*" in
            *Comment*) printf '%s\n' '40 PENDING {mine}' '41 PENDING {mine.replace("anchor=1", "anchor=2")}';;
            *) echo 40 40 N/A PENDING 42 1 0 0;;
        esac""")  # fmt: skip
    with pytest.raises(LaunchError, match="permission denied"):
        site.run()
    asked = [line.split()[0] for line in site.asked("s")]
    assert asked[:5] == ["squeue", "sbatch", "squeue", "squeue", "scancel"]
    assert site.asked("scancel") == ["scancel 40"]


def test_that_slurmctld_may_be_away_for_minutes(tmp_path: Path) -> None:
    site = Site(tmp_path, f"echo '{AWAY}' >&2; exit 1")
    with pytest.raises(LaunchError, match="Unable to contact slurm controller"):
        site.run()
    assert len(site.asked("sbatch")) > 10


STOPPED = """
import os, signal, sys, time
from pathlib import Path
from tests.launch.anchor.test_refused_wings import DENIED, Site
site = Site(Path(sys.argv[1]), f"kill -TERM {os.getpid()}; echo '{DENIED}' >&2; exit 1")
site.monotonic = time.monotonic
assert site.run() == 143
assert len(site.asked("sbatch")) == 1
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""


def test_that_an_anchor_that_is_stopped_submits_no_more(tmp_path: Path) -> None:
    # In a process of its own: any other thread of this one, such as a test worker's, could get the signal.
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


class Generations:
    """A store with one planned generation; what is said of it is in `said`."""

    def __init__(self) -> None:
        self.said: list[tuple[int, GenerationState, str | None]] = []
        self.came = threading.Event()

    def generation(self, token: str, *, after: int, restart_count: int) -> GenerationRecord | None:
        return None

    def advance_generation(
        self,
        token: str,
        number: int,
        state: GenerationState,
        *,
        restart_count: int,
        at: datetime,
        meeting: str | None = None,
        standstill_s: float | None = None,
        reason: str | None = None,
    ) -> bool:
        self.said.append((number, state, reason))
        self.came.set()
        return True

    def close(self) -> None:
        return


RECORD = GenerationRecord(
    slurm_job_id="1",
    number=4,
    state=GenerationState.PLANNED,
    at=datetime(2026, 1, 1, tzinfo=timezone.utc),
    restart_count=0,
    members=(
        GenerationMember(id="0.0.n0.0", node_name="n0", is_ready=True),
        GenerationMember(id="0.9.n1.0", node_name="n1"),
    ),
)


def test_that_a_refusal_of_a_generation_reaches_the_store() -> None:
    store = Generations()
    watch = GenerationWatch(lambda: store, "token", poll_interval_s=0.01)  # type: ignore[arg-type,return-value]
    try:
        watch.refuse(RECORD, "no wing on n1: no")
        assert store.came.wait(60)
        assert store.said == [(4, GenerationState.REFUSED, "no wing on n1: no")]
    finally:
        watch.close()


class Watch:
    """A store that has planned `RECORD` for the first start."""

    latest = RECORD

    def __init__(self) -> None:
        self.refused: list[tuple[int, str]] = []
        self.came = threading.Event()

    def begin(self, restart_count: int) -> None:
        return

    def read_now(self, *, timeout_s: float) -> bool:
        return True

    def refuse(self, record: GenerationRecord, reason: str) -> None:
        self.refused.append((record.number, reason))
        self.came.set()


@pytest.mark.parametrize("num_times_away", [0, 3])
def test_that_a_newcomers_wing_that_is_refused_refuses_the_generation_and_training_goes_on(
    tmp_path: Path, num_times_away: int
) -> None:
    """While slurmctld does not answer, it is only tried again."""
    watch, listener, tried = Watch(), LinkListener("s", beat_s=0.05), list[list[str]]()

    class OneWing(Wings):
        def submit(self, request: Sequence[str], **more: Any) -> str:
            if not more["plan"]:
                return super().submit(request, **more)
            tried.append(list(request))
            if len(tried) <= num_times_away:
                raise SlurmUnavailable(f"sbatch: {AWAY}")
            raise SlurmCommandError(f"sbatch: {DENIED}\n")

    def trains_until_refused(link: Link) -> None:
        watch.came.wait(60)
        link.send({"exit": 0})

    wings = OneWing(listener, [trains_until_refused])
    assert run(tmp_path, listener, wings, watch, monotonic=lambda: 50 * time.monotonic()) == 0
    assert len(tried) == num_times_away + 1
    assert all("--nodelist=n1" in request for request in tried)
    assert watch.refused == [(4, "no wing on n1: " + DENIED.replace("error: ", ""))]


def test_that_no_newcomer_is_started_after_an_upgrade_and_training_goes_on(tmp_path: Path) -> None:
    watch, listener = Watch(), LinkListener("s", beat_s=0.05)

    def trains_until_refused(link: Link) -> None:
        watch.came.wait(60)
        link.send({"exit": 0})

    wings = Wings(listener, [trains_until_refused, ends_when_stopped])
    assert run(tmp_path, listener, wings, watch, is_replaced=lambda: True) == 0
    assert [one["plan"] for one in wings.submitted] == [0]
    assert watch.refused == [(4, CODE_REPLACED)]


def test_that_processes_that_were_to_join_a_training_that_is_over_are_stopped_and_the_log_says_so(
    tmp_path: Path,
) -> None:
    listener, has_come, said = LinkListener("s", beat_s=0.05), threading.Event(), list[str]()

    def ends_when_the_other_has_come(link: Link) -> None:
        has_come.wait(60)
        link.send({"exit": 0})

    def is_about_to_join(link: Link) -> None:
        has_come.set()
        ends_when_stopped(link)

    wings = Wings(listener, [ends_when_the_other_has_come, is_about_to_join])
    wings.processes["11"] = {"n1": 1}
    assert run(tmp_path, listener, wings, Watch(), say=said.append) == 0
    assert said[-1] == "job 1: the training is over; job 11, which was to join, ends"


def test_that_a_generation_whose_wing_does_not_come_is_refused(tmp_path: Path) -> None:
    """Also where no daemon gives it up, and before the store has the refusal."""
    watch, listener, cancelled = Watch(), LinkListener("s", beat_s=0.05), list[str]()

    class OneWing(Wings):
        def submit(self, request: Sequence[str], **more: Any) -> str:
            if not more["plan"]:
                return super().submit(request, **more)
            self.launched["77"] = waits
            return "77"

    def waits(_link: Link) -> None:
        raise AssertionError("it does not start")

    def trains_until_refused(link: Link) -> None:
        watch.came.wait(60)
        cancelled.extend(wings.cancelled)
        link.send({"exit": 0})

    wings = OneWing(listener, [trains_until_refused])
    times = {"monotonic": lambda: 1000 * time.monotonic(), "kill_after_s": 1e9}
    assert run(tmp_path, listener, wings, watch, **times) == 0
    assert watch.refused == [(4, "wing 77 has not come within 10 minutes")]
    assert "77" in cancelled


def answer(link: Link, key: str) -> Any:
    """Return what the anchor says under a key; None once it says no more."""
    while (message := link.receive()) is not None:
        if key in message:
            return message[key]
    return None


@pytest.mark.parametrize("state", [GenerationState.PLANNED, GenerationState.COMMITTED])
def test_that_newcomers_do_not_outlive_a_training_that_ends_without_them(
    tmp_path: Path, state: GenerationState
) -> None:
    """Once committed, they may be the ones that go on: then nobody stops them."""
    watch, listener, has_come = Watch(), LinkListener("s", beat_s=0.05), threading.Event()
    signals = list[int]()

    def trains_until_another_has_come(link: Link) -> None:
        assert has_come.wait(60)
        watch.latest = replace(RECORD, state=state)
        link.send({"exit": 0})

    def waits_to_join(link: Link) -> None:
        has_come.set()
        if state is GenerationState.PLANNED:
            too_late = threading.Timer(60.0, link.close)
            too_late.start()
            signals.append(answer(link, "signal"))
            too_late.cancel()
        link.send({"exit": 143 if signals else 0})

    class TwoWings(Wings):
        def _run(self, number: str, act: Act) -> None:
            link = connect("127.0.0.1", self._listener.port, "s")
            link.send({"wing": number, "processes": {"n0" if number == "10" else "n1": 1}})
            assert answer(link, "go") is not None
            act(link)
            link.close()

    wings = TwoWings(listener, [trains_until_another_has_come, waits_to_join])
    # Nothing else ends them after a while.
    assert run(tmp_path, listener, wings, watch, monotonic=lambda: 0.0, kill_after_s=1e9) == 0
    assert signals == ([signal.SIGTERM] if state is GenerationState.PLANNED else [])
    assert len(wings.submitted) == 2, "nothing is started again"
