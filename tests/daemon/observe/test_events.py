"""What makes a round come before its interval, how soon, and what does not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from itertools import pairwise

import pytest

from pollux_slurm.config import DaemonConfig
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.daemon.observe.events import Sight, Watch
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.model import JobState, SlurmJob, SlurmNode
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import Reallocation, TrainingRun
from tests.daemon.builders import job, node, reallocation, snapshot
from tests.daemon.world import CONFIG, World, running

SLOW = dataclasses.replace(CONFIG, interval_s=600, watch_s=10, tick_s=2)
TOLD = "the next round comes at once: "


def sight(
    nodes: list[SlurmNode],
    jobs: list[SlurmJob],
    *moves: Reallocation,
    training_runs: frozenset[TrainingRun] = frozenset(),
) -> Sight:
    seen = snapshot(nodes, jobs)
    return Sight.of(seen, cluster_picture.registrations(seen), moves, training_runs)


RUNS = job("1", on={"n0": 1})
WAITS = job("2", JobState.PENDING)
FULL, HALF = node("n0", used=4), node("n0", used=2)


@pytest.mark.parametrize(
    ("before", "now", "news"),
    [
        (sight([HALF], []), sight([HALF], [RUNS]), "job 1 came"),
        (sight([HALF], [RUNS]), sight([HALF], []), "job 1 ended"),
        (sight([HALF], [RUNS]), sight([HALF], [job("1", JobState.COMPLETED)]), "job 1 ended"),
        (sight([HALF], [job("1", on={"n0": 1})]), sight([HALF], [job("1", JobState.PENDING)]), "job 1 waits"),
        (sight([FULL], [RUNS]), sight([HALF], [RUNS]), "2 GPUs are free on n0"),
        (sight([HALF], [WAITS]), sight([FULL], [job("2", on={"n0": 2})]), "job 2 started"),
        (
            sight([FULL, node("n1", available=False)], [RUNS]),
            sight([FULL, node("n1")], [RUNS]),
            "4 GPUs are free on n1",
        ),
        # Nothing that a round could answer.
        (sight([HALF], [RUNS, WAITS]), sight([HALF], [RUNS, WAITS]), None),
        (sight([HALF], [RUNS]), sight([FULL], [RUNS]), None),
        (sight([FULL], []), sight([HALF], []), None),
        (sight([FULL], [job("1", on={"n0": 8})]), sight([HALF], [job("1", on={"n0": 8})]), None),
        (
            sight([HALF], [job("2", JobState.PENDING, held=True)]),
            sight([HALF], [job("2", JobState.PENDING, held=True)]),
            None,
        ),
    ],
)
def test_that_what_a_round_can_answer_is_news(before: Sight, now: Sight, news: str | None) -> None:
    assert now.news_of_slurm(before) == news


def test_that_the_steps_of_a_move_are_no_news() -> None:
    other = job("2", on={"n0": 2})
    shrinks = reallocation(1, "1", Step.CHECKPOINTED, source={"n0": 2}, target={"n1": 1})
    nodes = [FULL, node("n1")]
    planned = sight(nodes, [job("1", on={"n0": 2}), other], shrinks)
    assert dict(planned.free) == {"n0": 2, "n1": 3}
    requeued = sight([HALF, node("n1")], [job("1", JobState.PENDING, held=True), other], shrinks)
    arrived = sight([HALF, node("n1", used=1)], [job("1", on={"n1": 1}), other])
    assert requeued.news_of_slurm(planned) is None
    assert arrived.news_of_slurm(planned) is None
    # One that ends elsewhere than it should is: the GPUs that it was to take are free.
    back = sight([FULL, node("n1")], [job("1", on={"n0": 2}), other])
    assert back.news_of_slurm(planned) == "1 GPUs are free on n1"


def test_that_a_report_is_news_only_where_there_is_something_to_give() -> None:
    steps = frozenset({TrainingRun("1", 0, False)})
    measured = steps | {TrainingRun("1", 0, True)}
    assert sight([HALF], [RUNS]).news_of_store(steps) == "job 1 reported"
    assert sight([HALF], [RUNS], training_runs=steps).news_of_store(measured) == "job 1 reported"
    assert sight([HALF], [RUNS], training_runs=measured).news_of_store(steps) is None
    assert sight([FULL], [RUNS]).news_of_store(steps) is None
    assert sight([FULL], [RUNS, WAITS]).news_of_store(steps) == "job 1 reported"


# ------------------------------------------------------------------------------------- on the world's clock


def acting(world: World, then: Callable[[float], None]) -> Callable[[float], None]:
    """Let agents report, every thirty seconds and at once where a checkpoint is asked for, before `then`."""
    told: dict[tuple[str, int], float] = {}

    def step(passed_s: float) -> None:
        for job_id, agent in world.agents.items():
            run = job_id, world.job(job_id).restart_count
            if world.open_moves() or passed_s - told.get(run, -100.0) >= 30:
                agent.act()
                told[run] = passed_s
        then(passed_s)

    return step


def run_until(
    world: World, config: DaemonConfig, happens: Callable[[float], object], *, most_s: float = 300.0
) -> float:
    """Run a daemon until `happens` returns something true; return when that was, in seconds."""

    def then(passed_s: float) -> None:
        if happens(passed_s) or passed_s > most_s:
            ended.append(passed_s)
            daemon._stop.set()

    def read() -> None:
        world.slurm.before["snapshot"] = read
        if next(reads) > 5000:  # rounds without end in one instant
            daemon._stop.set()

    ended: list[float] = []
    reads = itertools.count()
    world.slurm.before["snapshot"] = read
    daemon = running(world, config, acting(world, then))
    daemon.run()
    return ended[0]


def gpus(world: World, job_id: str) -> int:
    held = world.job(job_id)
    return held.allocation.num_gpus if held.state is JobState.RUNNING else 0


def test_that_a_job_that_comes_between_two_rounds_does_not_wait_for_the_next(world: World) -> None:
    world.neighbour(gpus=1)
    world.neighbour(gpus=1)
    came: list[str] = []

    def happens(passed_s: float) -> bool:
        if passed_s > 20 and not came:
            came.append(world.submit(gpus=8))  # more than any node has free: Slurm cannot start it so
            world.targets = {came[0]: {"n1": 3}}
        return bool(came) and world.job(came[0]).state is JobState.RUNNING

    assert run_until(world, SLOW, happens) < 20 + 10 + 5


def test_that_a_first_report_brings_a_second_gpu_long_before_the_interval(world: World) -> None:
    job_id = world.submit()
    world.targets = {job_id: {"n0": 2}}
    assert run_until(world, SLOW, lambda _s: gpus(world, job_id) == 2) < 60


def test_that_a_job_that_ends_and_a_node_that_comes_back_bring_a_round(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    world.slurm.set_node("n1", available=False)
    first, second = world.submit(gpus=2), world.submit(gpus=2)

    def happens(passed_s: float) -> bool:
        # Long after the last round that followed the jobs' coming.
        if passed_s > 60 and f"job {first} ended" not in caplog.text and gpus(world, first):
            world.slurm.finish(first)
            world.targets = {second: {"n0": 4}}
        if gpus(world, second) == 4 and not world.slurm.nodes["n1"].available:
            world.slurm.set_node("n1", available=True)
            world.targets = {second: {"n0": 4, "n1": 4}}
        return gpus(world, second) == 8

    assert run_until(world, SLOW, happens) < 200
    assert f"{TOLD}job {first} ended" in caplog.text
    assert f"{TOLD}4 GPUs are free on n1" in caplog.text


# --------------------------------------------------------------------------------------------- the pace alone


class Pace:
    """A watch on a clock of its own, with a round of no time whenever one is due. `shown` is by time."""

    def __init__(
        self, shown: Callable[[float], Sight], *, interval_s: float = 60, fails: bool = False
    ) -> None:
        self.now_s = 0.0
        self.rounds: list[float] = []
        self.looks: list[float] = []
        self.glances: list[float] = []
        self._shown, self._fails = shown, fails
        self._config = DaemonConfig(interval_s=interval_s, watch_s=10)

    def _look(self) -> Sight:
        self.looks.append(self.now_s)
        if self._fails:
            raise SlurmUnavailable("no answer")
        return self._shown(self.now_s)

    def _glance(self) -> frozenset[TrainingRun]:
        self.glances.append(self.now_s)
        return self._shown(self.now_s).training_runs

    def over(self, seconds: float) -> Pace:
        watch = Watch(look=self._look, glance=self._glance, monotonic=lambda: self.now_s)
        while self.now_s < seconds:
            began_ago = self.now_s - self.rounds[-1] if self.rounds else self._config.interval_s
            if began_ago >= self._config.interval_s or watch.is_due():
                self.rounds.append(self.now_s)
                watch.begin(self._shown(self.now_s), self._config)
            self.now_s += 0.5
        return self

    def between(self, first_s: float, last_s: float) -> int:
        return sum(first_s < at <= last_s for at in self.rounds)


BUSY = sight([FULL], [job("1", on={"n0": 4})])
IDLE = sight([HALF], [job("1", on={"n0": 2})])


def test_that_where_nothing_happens_rounds_come_at_the_interval_and_slurm_is_read_every_ten_seconds() -> None:
    pace = Pace(lambda _s: BUSY).over(600)
    assert pace.rounds == [60.0 * number for number in range(10)]
    assert len(pace.looks) == 10 * 5  # the sixth is the round itself
    assert len(pace.glances) == 10 * 50


def test_that_a_burst_is_one_round_and_rounds_keep_their_distance() -> None:
    def shown(now_s: float) -> Sight:
        """A job comes each half second for a minute."""
        num_jobs = int(min(max(now_s - 100, 0), 60) * 2)
        return sight([FULL], [job(str(number), on={"n0": 4}) for number in range(1, num_jobs + 2)])

    pace = Pace(shown, interval_s=600).over(200)
    gaps = [later - earlier for earlier, later in pairwise(pace.rounds)]
    assert min(gaps) >= 10
    assert 6 <= pace.between(100, 165) <= 7


def test_that_where_gpus_are_idle_rounds_follow_for_an_interval_and_then_slow_down() -> None:
    def shown(now_s: float) -> Sight:
        return BUSY if now_s < 300 else IDLE

    pace = Pace(shown).over(900)
    assert pace.between(0, 295) == 4
    assert pace.between(295, 375) == 6
    assert pace.between(420, 900) == 8


def test_that_a_full_cluster_is_not_asked_again_and_again() -> None:
    other = sight([FULL], [job("1", on={"n0": 2}), job("2", on={"n0": 2})])
    assert Pace(lambda now_s: BUSY if now_s < 75 else other).over(150).between(60, 130) == 1


def test_that_what_cannot_be_read_is_no_news() -> None:
    pace = Pace(lambda now_s: BUSY if now_s < 75 else IDLE, fails=True).over(119)
    assert pace.rounds == [0.0, 60.0]
    assert len(pace.looks) > 5
