"""Which events trigger a round before its interval ends, how soon, and which do not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from itertools import pairwise

import pytest

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.daemon.observe.events import EventWatch, WatchedState
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.model import JobState, SlurmJob, SlurmNode
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import Reallocation, TrainingRun
from tests.daemon.builders import job, node, reallocation, snapshot
from tests.daemon.harness import CONFIG, Harness, running

SLOW = dataclasses.replace(CONFIG, interval_s=600, watch_s=10, tick_s=2)
LOGGED = "the next round starts now: "


def state(
    nodes: list[SlurmNode],
    jobs: list[SlurmJob],
    *moves: Reallocation,
    training_runs: frozenset[TrainingRun] = frozenset(),
) -> WatchedState:
    seen = snapshot(nodes, jobs)
    return WatchedState.of(seen, cluster_picture.registrations(seen), moves, training_runs)


RUNS = job("1", on={"n0": 1})
WAITS = job("2", JobState.PENDING)
FULL, HALF = node("n0", used=4), node("n0", used=2)
LARGE = job("1", on={"n0": 4})
RIGID = job("9", JobState.PENDING, comment="", reason="Resources")
GROWS = reallocation(1, "1", Step.CHECKPOINT_REQUESTED, source={"n0": 4}, target={"n0": 4, "n1": 4})
PLACES = reallocation(1, "2", Step.PLANNED, source={}, target={"n0": 2})
STARTS = dataclasses.replace(GROWS, step=Step.RELEASED)


@pytest.mark.parametrize(
    ("before", "now", "event"),
    [
        (state([HALF], []), state([HALF], [RUNS]), "job 1 came"),
        (state([HALF], [RUNS]), state([HALF], []), "job 1 ended"),
        (state([HALF], [RUNS]), state([HALF], [job("1", JobState.COMPLETED)]), "job 1 ended"),
        (state([HALF], [job("1", on={"n0": 1})]), state([HALF], [job("1", JobState.PENDING)]), "job 1 waits"),
        (state([FULL], [RUNS]), state([HALF], [RUNS]), "2 GPUs are free on n0"),
        (state([HALF], [WAITS]), state([FULL], [job("2", on={"n0": 2})]), "job 2 started"),
        # The round has placed it itself: until another one sees it running, its reports are refused.
        (state([HALF], [WAITS], PLACES), state([FULL], [job("2", on={"n0": 2})]), "job 2 started"),
        (
            state([FULL, node("n1", available=False)], [RUNS]),
            state([FULL, node("n1")], [RUNS]),
            "4 GPUs are free on n1",
        ),
        # Jobs that move may give way, and again once they run in their targets.
        (
            state([FULL], [LARGE], GROWS),
            state([FULL], [LARGE, RIGID], GROWS),
            "job 9 waits for resources",
        ),
        (
            state([FULL], [job("1", JobState.PENDING, requested_gpus=4), RIGID], STARTS),
            state([FULL], [LARGE, RIGID], dataclasses.replace(GROWS, step=Step.RUNNING)),
            "job 1 may make room now",
        ),
        # No event.
        (state([HALF], [RUNS, WAITS]), state([HALF], [RUNS, WAITS]), None),
        (state([HALF], [RUNS]), state([FULL], [RUNS]), None),
        (state([FULL], []), state([HALF], []), None),
        (state([FULL], [job("1", on={"n0": 8})]), state([HALF], [job("1", on={"n0": 8})]), None),
        (
            state([HALF], [job("2", JobState.PENDING, held=True)]),
            state([HALF], [job("2", JobState.PENDING, held=True)]),
            None,
        ),
    ],
)
def test_that_changes_that_a_round_can_use_are_events(
    before: WatchedState, now: WatchedState, event: str | None
) -> None:
    assert now.slurm_event_since(before) == event


def test_that_the_steps_of_a_move_are_no_events() -> None:
    other = job("2", on={"n0": 2})
    shrinks = reallocation(1, "1", Step.CHECKPOINTED, source={"n0": 2}, target={"n1": 1})
    nodes = [FULL, node("n1")]
    planned = state(nodes, [job("1", on={"n0": 2}), other], shrinks)
    assert dict(planned.free) == {"n0": 2, "n1": 3}
    requeued = state([HALF, node("n1")], [job("1", JobState.PENDING, held=True), other], shrinks)
    arrived = state([HALF, node("n1", used=1)], [job("1", on={"n1": 1}), other])
    assert requeued.slurm_event_since(planned) is None
    assert arrived.slurm_event_since(planned) is None
    # A move that ends with another allocation is an event: its target's GPUs are free.
    back = state([FULL, node("n1")], [job("1", on={"n0": 2}), other])
    assert back.slurm_event_since(planned) == "1 GPUs are free on n1"


def test_that_a_report_is_an_event_only_where_there_is_something_to_give() -> None:
    steps = frozenset({TrainingRun("1", 0, False)})
    measured = steps | {TrainingRun("1", 0, True)}
    assert state([HALF], [RUNS]).store_event_since(steps) == "job 1 reported"
    assert state([HALF], [RUNS], training_runs=steps).store_event_since(measured) == "job 1 reported"
    assert state([HALF], [RUNS], training_runs=measured).store_event_since(steps) is None
    assert state([FULL], [RUNS]).store_event_since(steps) is None
    assert state([FULL], [RUNS, WAITS]).store_event_since(steps) == "job 1 reported"


# ------------------------------------------------------------------------------------- on the harness's clock


def acting(harness: Harness, then: Callable[[float], None]) -> Callable[[float], None]:
    """Let agents report, every thirty seconds and at once where a checkpoint is requested, before `then`."""
    reported_at: dict[tuple[str, int], float] = {}

    def step(passed_s: float) -> None:
        for job_id, agent in harness.agents.items():
            run = job_id, harness.job(job_id).restart_count
            if harness.open_moves() or passed_s - reported_at.get(run, -100.0) >= 30:
                agent.act()
                reported_at[run] = passed_s
        then(passed_s)

    return step


def run_until(
    harness: Harness, config: DaemonConfig, happens: Callable[[float], object], *, most_s: float = 300.0
) -> float:
    """Run a daemon until `happens` returns something true; return when that was, in seconds."""

    def then(passed_s: float) -> None:
        if happens(passed_s) or passed_s > most_s:
            ended.append(passed_s)
            harness.stop.set()

    def read() -> None:
        harness.slurm.before["snapshot"] = read
        if next(reads) > 5000:  # endless rounds at one instant
            harness.stop.set()

    ended: list[float] = []
    reads = itertools.count()
    harness.slurm.before["snapshot"] = read
    daemon = running(harness, config, acting(harness, then))
    daemon.run()
    return ended[0]


def gpus(harness: Harness, job_id: str) -> int:
    held = harness.job(job_id)
    return held.allocation.num_gpus if held.state is JobState.RUNNING else 0


def test_that_a_job_that_comes_between_two_rounds_does_not_wait_for_the_next(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=1)
    harness.submit_unmanaged(gpus=1)
    came: list[str] = []

    def happens(passed_s: float) -> bool:
        if passed_s > 20 and not came:
            came.append(harness.submit(gpus=8))  # more than any node has free: Slurm cannot start it so
            harness.targets = {came[0]: {"n1": 3}}
        return bool(came) and harness.job(came[0]).state is JobState.RUNNING

    assert run_until(harness, SLOW, happens) < 20 + 10 + 5


def test_that_a_first_report_brings_a_second_gpu_long_before_the_interval(harness: Harness) -> None:
    job_id = harness.submit()
    harness.targets = {job_id: {"n0": 2}}
    assert run_until(harness, SLOW, lambda _s: gpus(harness, job_id) == 2) < 60


def test_that_a_job_that_ends_and_a_node_that_comes_back_bring_a_round(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    harness.slurm.set_node("n1", available=False)
    first, second = harness.submit(gpus=2), harness.submit(gpus=2)

    def happens(passed_s: float) -> bool:
        # Long after the last round that the new jobs triggered.
        if passed_s > 60 and f"job {first} ended" not in caplog.text and gpus(harness, first):
            harness.slurm.finish(first)
            harness.targets = {second: {"n0": 4}}
        if gpus(harness, second) == 4 and not harness.slurm.nodes["n1"].available:
            harness.slurm.set_node("n1", available=True)
            harness.targets = {second: {"n0": 4, "n1": 4}}
        return gpus(harness, second) == 8

    assert run_until(harness, SLOW, happens) < 200
    assert f"{LOGGED}job {first} ended" in caplog.text
    assert f"{LOGGED}4 GPUs are free on n1" in caplog.text


# -------------------------------------------------------------------------------------- the watch alone


class SimulatedRounds:
    """A watch on a simulated clock, with an instant round whenever one is due. `shown` is by time."""

    def __init__(
        self, shown: Callable[[float], WatchedState], *, interval_s: float = 60, fails: bool = False
    ) -> None:
        self.now_s = 0.0
        self.rounds: list[float] = []
        self.slurm_reads: list[float] = []
        self.store_reads: list[float] = []
        self._shown, self._fails = shown, fails
        self._config = DaemonConfig(interval_s=interval_s, watch_s=10)

    def _read_state(self) -> WatchedState:
        self.slurm_reads.append(self.now_s)
        if self._fails:
            raise SlurmUnavailable("no answer")
        return self._shown(self.now_s)

    def _read_training_runs(self) -> frozenset[TrainingRun]:
        self.store_reads.append(self.now_s)
        return self._shown(self.now_s).training_runs

    def run(self, seconds: float) -> SimulatedRounds:
        watch = EventWatch(
            read_state=self._read_state,
            read_training_runs=self._read_training_runs,
            monotonic=lambda: self.now_s,
        )
        while self.now_s < seconds:
            began_ago = self.now_s - self.rounds[-1] if self.rounds else self._config.interval_s
            if began_ago >= self._config.interval_s or watch.is_due():
                self.rounds.append(self.now_s)
                watch.begin(self._shown(self.now_s), self._config)
            self.now_s += 0.5
        return self

    def between(self, first_s: float, last_s: float) -> int:
        return sum(first_s < at <= last_s for at in self.rounds)


BUSY = state([FULL], [job("1", on={"n0": 4})])
IDLE = state([HALF], [job("1", on={"n0": 2})])


def test_that_where_nothing_happens_rounds_come_at_the_interval_and_slurm_is_read_every_ten_seconds() -> None:
    rounds = SimulatedRounds(lambda _s: BUSY).run(600)
    assert rounds.rounds == [60.0 * number for number in range(10)]
    assert len(rounds.slurm_reads) == 10 * 5  # the sixth is the round itself
    assert len(rounds.store_reads) == 10 * 59


def test_that_a_rigid_job_that_waits_is_an_event_where_an_adaptive_one_may_shrink() -> None:
    large, least = job("1", on={"n0": 4}), job("1", on={"n0": 1})
    rigid = job("9", JobState.PENDING, comment="", reason="Resources", priority=1)
    before = state([FULL], [large])
    assert state([FULL], [large, rigid]).slurm_event_since(before) == "job 9 waits for resources"
    assert state([FULL], [least, rigid]).slurm_event_since(state([FULL], [least])) is None
    for other in ({"reason": "Dependency"}, {"held": True}):
        assert state([FULL], [large, dataclasses.replace(rigid, **other)]).slurm_event_since(before) is None


def test_that_the_end_of_a_move_is_an_event_where_a_rigid_job_came_meanwhile() -> None:
    rigid = job("9", JobState.PENDING, comment="", reason="Resources", priority=1)
    moves, other = job("1", on={"n0": 4}), job("2", on={"n1": 1})
    nodes = [FULL, node("n1", used=1)]
    open_move = reallocation(1, "1", Step.RUNNING, source={"n0": 2}, target={"n0": 4})
    # A round has seen the rigid job, and could take nothing from the job that moved.
    seen = state(nodes, [moves, other, rigid], open_move)
    assert state(nodes, [moves, other, rigid], open_move).slurm_event_since(seen) is None
    assert state(nodes, [moves, other, rigid]).slurm_event_since(seen) == "job 1 may make room now"
    assert state(nodes, [moves, other]).slurm_event_since(seen) is None
    held = dataclasses.replace(rigid, held=True)
    assert state(nodes, [moves, other, held]).slurm_event_since(seen) is None


def test_that_the_start_of_a_rigid_job_is_an_event_for_an_adaptive_one_behind_it() -> None:
    rigid = job("9", JobState.PENDING, comment="", reason="Resources", priority=1)
    started = dataclasses.replace(rigid, state=JobState.RUNNING)
    before = state([FULL], [RUNS, WAITS, rigid])
    assert state([FULL], [RUNS, WAITS, started]).slurm_event_since(before) == (
        "job 9 no longer waits for resources"
    )
    before = state([FULL], [RUNS, rigid])
    assert state([FULL], [RUNS, started]).slurm_event_since(before) is None


def test_that_the_pause_between_reads_is_four_times_what_the_last_one_took() -> None:
    now_s, reads = 0.0, []

    def read_state() -> WatchedState:
        nonlocal now_s
        reads.append(now_s)
        now_s += 5
        return BUSY

    watch = EventWatch(read_state=read_state, read_training_runs=frozenset, monotonic=lambda: now_s)
    watch.begin(BUSY, DaemonConfig(interval_s=600, watch_s=10), read_s=5.0)
    while now_s < 100:
        assert not watch.is_due()
        now_s += 1
    assert reads == [20, 45, 70, 95]


def test_that_a_burst_is_one_round_and_rounds_keep_their_distance() -> None:
    def shown(now_s: float) -> WatchedState:
        """A job comes each half second for a minute."""
        num_jobs = int(min(max(now_s - 100, 0), 60) * 2)
        return state([FULL], [job(str(number), on={"n0": 4}) for number in range(1, num_jobs + 2)])

    rounds = SimulatedRounds(shown, interval_s=600).run(200)
    gaps = [later - earlier for earlier, later in pairwise(rounds.rounds)]
    assert min(gaps) >= 10
    assert 6 <= rounds.between(100, 165) <= 7


def test_that_where_gpus_are_idle_rounds_follow_for_an_interval_and_then_slow_down() -> None:
    def shown(now_s: float) -> WatchedState:
        return BUSY if now_s < 300 else IDLE

    rounds = SimulatedRounds(shown).run(900)
    assert rounds.between(0, 295) == 4
    assert rounds.between(295, 375) == 6
    assert rounds.between(420, 900) == 8


def test_that_a_full_cluster_is_not_asked_again_and_again() -> None:
    other = state([FULL], [job("1", on={"n0": 2}), job("2", on={"n0": 2})])
    assert SimulatedRounds(lambda now_s: BUSY if now_s < 75 else other).run(150).between(60, 130) == 1


def test_that_a_report_starts_a_round_sooner_than_what_slurm_shows() -> None:
    def shown(now_s: float) -> WatchedState:
        """A run reports its first step at 61 s, and its model at 63 s."""
        step, model = TrainingRun("1", 0, False), TrainingRun("1", 0, True)
        reported = [step] * (now_s >= 61) + [model] * (now_s >= 63)
        return state([HALF], [job("1", on={"n0": 2})], training_runs=frozenset(reported[-1:]))

    rounds = SimulatedRounds(shown).run(70)
    assert rounds.rounds == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 61.0, 63.0]


def test_that_reports_start_no_round_within_four_times_what_the_last_read_of_slurm_took() -> None:
    now_s = 0.0
    watch = EventWatch(
        read_state=lambda: IDLE,
        read_training_runs=lambda: frozenset({TrainingRun("1", 0, True)}),
        monotonic=lambda: now_s,
    )
    watch.begin(IDLE, DaemonConfig(interval_s=600, watch_s=10), read_s=1.5)
    due = []
    for second in range(1, 9):
        now_s = float(second)
        due.append(watch.is_due())
    assert due == [False] * 5 + [True] * 3


def test_that_what_cannot_be_read_is_no_event() -> None:
    rounds = SimulatedRounds(lambda now_s: BUSY if now_s < 75 else IDLE, fails=True).run(119)
    assert rounds.rounds == [0.0, 60.0]
    assert len(rounds.slurm_reads) > 5


def test_that_a_slurm_that_does_not_answer_is_asked_no_more_often() -> None:
    asked: list[float] = []
    now = 0.0

    def read_state() -> WatchedState:
        asked.append(now)
        raise SlurmUnavailable("busy")

    watch = EventWatch(read_state=read_state, read_training_runs=frozenset, monotonic=lambda: now)
    watch.begin(WatchedState(), SLOW)
    for second in range(50):
        now = float(second)
        watch.is_due()
    assert asked == [10.0, 20.0, 30.0, 40.0]
