"""Whole rounds under the admin's policy: what is decided, recorded, and left for people to look at."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from pollux_slurm.config import DaemonConfig, PolicyConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.round import Settings
from pollux_slurm.errors import ConfigError
from pollux_slurm.model import Allocation, Decision, JobState, Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem.json_format import problem_from_json
from tests.daemon.builders import MODEL
from tests.daemon.world import CONFIG, World, running


def daemon_of(world: World, policy: PolicyConfig, config: DaemonConfig = CONFIG) -> Daemon:
    """A daemon that really decides."""
    return Daemon(
        slurm=world.slurm,
        store=world.store,
        config=config,
        owner="d",
        wall_clock=world.clock,
        monotonic=lambda: world.clock.now.timestamp(),
        stop=world.stop,
        decide=decide,
        policy=policy,
    )


def test_that_a_limit_of_the_admin_holds_and_is_the_explanation(world: World) -> None:
    job_id = world.submit()
    policy = PolicyConfig(user_limits=((world.slurm.user_name, 2),))
    world.settle(daemon_of(world, policy), seconds=40)
    assert world.job(job_id).allocation.num_gpus == 2
    found = world.store.decision(job_id)
    assert found is not None
    assert found.job.bound_by == "limit"
    assert found.explanation.startswith(f"job {job_id}: {world.job(job_id).allocation} (t4); speedup ")
    assert "bound by limit" in found.explanation
    assert found.job.runner_up is not None
    assert found.gap is not None
    problem, _ = world.store.round_problem()
    assert problem.jobs[0].models == (("t4", MODEL),)


def test_that_a_waiting_job_is_explained_before_it_has_reported(world: World) -> None:
    world.neighbour(gpus=4)
    world.neighbour(gpus=4)
    world.clock.advance(1)
    job_id = world.submit()
    daemon_of(world, PolicyConfig()).round()
    found = world.store.decision(job_id)
    assert found is not None
    assert world.job(job_id).state is JobState.PENDING
    assert (found.job.allocation, found.job.goodput) == (Allocation(), None)
    # Nothing is left of the nodes, whatever they have in all.
    reason = "no configuration that adaptive jobs may use now fits its minimum of GPUs and its batch"
    assert found.excluded == reason
    assert found.explanation == f"job {job_id} is left as it is: {found.excluded}"


def test_that_a_job_is_that_is_left_out_is_complained_about_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.neighbour(gpus=4)
    world.neighbour(gpus=4)
    world.clock.advance(1)
    world.submit()
    daemon = daemon_of(world, PolicyConfig())
    for _ in range(3):
        daemon.round()
    assert caplog.text.count("left as it is") == 1


def test_that_a_job_that_slurm_would_not_start_gets_nothing_until_it_would(world: World) -> None:
    world.neighbour(gpus=4), world.neighbour(gpus=4)
    job_id, because = world.submit(gpus=4), "Slurm does not start it now (PartitionDown)"
    world.slurm.set_job(job_id, blocked_because=because)
    daemon = daemon_of(world, PolicyConfig())
    assert daemon.round().num_jobs == 0
    assert world.store.job(job_id).excluded_reason == because
    world.slurm.set_job(job_id, blocked_because=None)
    assert daemon.round().num_jobs == 1
    assert world.store.job(job_id).excluded_reason is None


def test_that_the_problems_of_the_last_rounds_are_files(world: World, tmp_path: Path) -> None:
    job_id = world.submit()
    folder = tmp_path / "problems"
    config = dataclasses.replace(CONFIG, problems_dir=str(folder), problems_kept=2)
    daemon = daemon_of(world, PolicyConfig(seed=3), config)
    last = [daemon.round().round_id for _ in range(3)][-1]
    assert len(list(folder.iterdir())) == 2
    saved = problem_from_json((folder / f"round-{last:09d}.json").read_bytes())
    assert saved == world.store.round_problem(last)[0]
    assert (saved.seed, [job.job_id for job in saved.jobs]) == (3, [job_id])


def test_that_a_problem_that_cannot_be_saved_costs_no_round(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    config = dataclasses.replace(CONFIG, problems_dir=str(tmp_path / "file"))
    result = daemon_of(world, PolicyConfig(), config).round()
    assert result.skipped is None
    assert "its problem was not saved" in caplog.text


def test_that_new_settings_hold_from_the_next_round_and_wrong_ones_do_not(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()
    answers: list[Settings | ConfigError] = [
        ConfigError("pollux.toml: policy.seed: expected a whole number"),
        Settings(
            config=dataclasses.replace(CONFIG, interval_s=50),
            policy=PolicyConfig(seed=9),
            decide=world.decide,
        ),
    ]
    seeds: list[int] = []

    def reload() -> Settings:
        answer = answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def then(passed_s: float) -> None:
        seeds.append(world.store.round_problem()[0].seed)
        if len(seeds) in (3, 6):
            asked.set()
        if len(seeds) > 40:
            daemon._stop.set()

    daemon = running(world, CONFIG, then, policy=PolicyConfig(seed=3), reload=reload, reload_asked=asked)
    daemon.run()
    assert "the old ones hold: pollux.toml: policy.seed" in caplog.text
    assert (seeds[0], seeds[5], seeds[-1]) == (3, 3, 9)
    assert daemon._config.interval_s == 50


def test_that_moves_go_on_where_a_round_takes_longer_than_the_interval(world: World) -> None:
    job_id = world.submit(gpus=1)
    world.targets = {job_id: {"n1": 2}}

    plainly = world.decide

    def slowly(problem: Problem) -> Decision:
        world.clock.advance(2 * CONFIG.interval_s)
        then((world.clock() - began).total_seconds())  # whether there is any time between two rounds or not
        return plainly(problem)

    def then(passed_s: float) -> None:
        world.agents[job_id].act()
        if passed_s > 300 or world.job(job_id).allocation == Allocation.of({"n1": 2}):
            daemon._stop.set()

    began = world.clock()
    world.decide = slowly
    daemon = running(world, dataclasses.replace(CONFIG, lease_ttl_s=60), then)
    daemon.run()
    assert world.job(job_id).allocation == Allocation.of({"n1": 2})
