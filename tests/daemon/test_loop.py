"""Whole rounds under the admin's policy: decisions, records and logs."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
from pathlib import Path

import pytest

from pollux_slurm.config import DaemonConfig, KindsConfig, MovesConfig, PolicyConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.round import Settings
from pollux_slurm.errors import ConfigError, StoreUnavailable
from pollux_slurm.model import Allocation, Decision, JobState, Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.problem.json_format import problem_from_json
from pollux_slurm.store.contract.interface import Store
from tests.daemon.builders import MODEL
from tests.daemon.harness import CONFIG, Harness, running


def daemon_of(harness: Harness, policy: PolicyConfig, config: DaemonConfig = CONFIG) -> Daemon:
    """Return a daemon with the real solver."""
    return Daemon(
        slurm=harness.slurm,
        store=harness.store,
        settings=Settings(config=config, policy=policy, decide=decide),
        owner="d",
        wall_clock=harness.clock,
        monotonic=lambda: harness.clock.now.timestamp(),
        stop=harness.stop,
    )


def test_that_a_limit_of_the_admin_holds_and_is_the_explanation(harness: Harness) -> None:
    job_id = harness.submit()
    policy = PolicyConfig(user_limits=((harness.slurm.user_name, 2),))
    harness.run_until(daemon_of(harness, policy), seconds=44)
    assert harness.job(job_id).allocation.num_gpus == 2
    found = harness.store.rounds.decision(job_id)
    assert found is not None
    assert found.job.bound_by == "limit"
    assert found.explanation.startswith(f"job {job_id}: {harness.job(job_id).allocation} (t4); speedup ")
    assert "bound by limit" in found.explanation
    assert found.job.runner_up is not None
    assert found.gap is not None
    problem, _ = harness.store.rounds.problem()
    assert problem.jobs[0].models == (("t4", MODEL),)


def test_that_a_waiting_job_is_explained_before_it_has_reported(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4)
    harness.submit_unmanaged(gpus=4)
    harness.clock.advance(1)
    job_id = harness.submit()
    daemon_of(harness, PolicyConfig()).round()
    found = harness.store.rounds.decision(job_id)
    assert found is not None
    assert harness.job(job_id).state is JobState.PENDING
    assert (found.job.allocation, found.job.goodput) == (Allocation(), None)
    # Unmanaged jobs use all GPUs of the nodes.
    reason = "no configuration that adaptive jobs may use now fits its minimum of GPUs and its batch"
    assert found.excluded_reason == reason
    assert found.explanation == f"job {job_id} is left as it is: {found.excluded_reason}"


def test_that_an_excluded_job_is_logged_once(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    harness.submit_unmanaged(gpus=4)
    harness.submit_unmanaged(gpus=4)
    harness.clock.advance(1)
    harness.submit()
    daemon = daemon_of(harness, PolicyConfig())
    for _ in range(3):
        daemon.round()
    assert caplog.text.count("left as it is") == 1


def test_that_a_job_that_slurm_would_not_start_gets_nothing_until_it_would(harness: Harness) -> None:
    harness.submit_unmanaged(gpus=4), harness.submit_unmanaged(gpus=4)
    job_id, because = harness.submit(gpus=4), "Slurm does not start it now (PartitionDown)"
    harness.slurm.set_job(job_id, blocked_because=because)
    daemon = daemon_of(harness, PolicyConfig())
    assert daemon.round().num_jobs == 0
    assert harness.store.jobs.get(job_id).not_moved_reason == because
    harness.slurm.set_job(job_id, blocked_because=None)
    assert daemon.round().num_jobs == 1
    assert harness.store.jobs.get(job_id).not_moved_reason is None


def test_that_the_problems_of_the_last_rounds_are_files(harness: Harness, tmp_path: Path) -> None:
    job_id = harness.submit()
    folder = tmp_path / "problems"
    config = dataclasses.replace(CONFIG, problems_dir=str(folder), problems_kept=2)
    daemon = daemon_of(harness, PolicyConfig(seed=3), config)
    last = [daemon.round().round_id for _ in range(3)][-1]
    assert len(list(folder.iterdir())) == 2
    saved = problem_from_json((folder / f"round-{last:09d}.json").read_bytes())
    assert saved == harness.store.rounds.problem(last)[0]
    assert (saved.seed, [job.job_id for job in saved.jobs]) == (3, [job_id])


def test_that_a_problem_that_cannot_be_saved_costs_no_round(
    harness: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    config = dataclasses.replace(CONFIG, problems_dir=str(tmp_path / "file"))
    result = daemon_of(harness, PolicyConfig(), config).round()
    assert result.skipped is None
    assert "its problem was not saved" in caplog.text


def test_that_new_settings_hold_from_the_next_round_and_wrong_ones_do_not(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    asked = threading.Event()
    answers: list[Settings | ConfigError] = [
        ConfigError("pollux.toml: policy.seed: expected a whole number"),
        Settings(
            config=dataclasses.replace(CONFIG, interval_s=50, shadow=True, partitions=("test",)),
            policy=PolicyConfig(seed=9),
            moves=MovesConfig(),
            kinds=KindsConfig(),
            decide=harness.decide,
        ),
    ]
    seeds: list[int] = []
    intervals_s: list[float | None] = []

    def reload() -> Settings:
        answer = answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def then(passed_s: float) -> None:
        seeds.append(harness.store.rounds.problem()[0].seed)
        intervals_s.append(harness.store.lease.daemon_status().interval_s)
        if len(seeds) in (3, 6):
            asked.set()
        if len(seeds) > 40:
            harness.stop.set()

    daemon = running(
        harness, CONFIG, then, policy=PolicyConfig(seed=3), reload=reload, reload_requested=asked
    )
    caplog.set_level(logging.INFO)
    daemon.run()
    assert "the old ones stay in force: pollux.toml: policy.seed" in caplog.text
    assert (seeds[0], seeds[5], seeds[-1]) == (3, 3, 9)
    assert (intervals_s[0], intervals_s[-1]) == (CONFIG.interval_s, 50)
    assert "the settings were reloaded: in shadow mode, it moves nothing in test" in caplog.text
    assert daemon.metrics.registry.get_sample_value("pollux_shadow") == 1


def test_that_moves_go_on_where_a_round_takes_longer_than_the_interval(harness: Harness) -> None:
    job_id = harness.submit(gpus=1)
    harness.targets = {job_id: {"n1": 2}}

    plainly = harness.decide

    def slowly(problem: Problem) -> Decision:
        harness.clock.advance(2 * CONFIG.interval_s)
        then((harness.clock() - began).total_seconds())  # also if there is no time between two rounds
        return plainly(problem)

    def then(passed_s: float) -> None:
        harness.agents[job_id].act()
        if passed_s > 300 or harness.job(job_id).allocation == Allocation.of({"n1": 2}):
            harness.stop.set()

    began = harness.clock()
    harness.decide = slowly
    daemon = running(harness, dataclasses.replace(CONFIG, lease_ttl_s=60), then)
    daemon.run()
    assert harness.job(job_id).allocation == Allocation.of({"n1": 2})


@pytest.mark.parametrize(("kill_s", "longest"), [(0.2, 5.0), (60.0, 15.0)])
def test_that_a_round_that_is_due_waits_a_while_for_a_job_that_stands_still(
    store: Store, kill_s: float, longest: float
) -> None:
    """A round reads the whole queue, and no tick starts the job meanwhile. It is stopped for `kill_s`."""
    harness = Harness(store, kill_s=kill_s)
    job_id = harness.submit(gpus=1)
    harness.targets = {job_id: {"n1": 2}}
    rounds_s: list[float] = []

    def then(passed_s: float) -> None:
        harness.agents[job_id].act()
        rounds = sum(method == "snapshot" for method, _ in harness.slurm.calls)
        rounds_s.extend([passed_s] * (rounds - len(rounds_s)))
        assert passed_s < 120
        # A stop waits for a held job, in real time.
        if passed_s > 40 and not harness.open_moves():
            harness.stop.set()

    running(harness, CONFIG, then).run()
    gaps = [later - earlier for earlier, later in itertools.pairwise(rounds_s)]
    assert longest - 2 <= max(gaps) <= longest


def test_that_a_daemon_whose_store_is_away_when_a_round_is_due_goes_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = harness.submit(gpus=1)
    read = harness.store.journal.open_reallocations
    away = threading.Event()

    def open_reallocations() -> object:
        if away.is_set():
            raise StoreUnavailable("the database is stopped")
        return read()

    monkeypatch.setattr(harness.store.journal, "open_reallocations", open_reallocations)

    def then(passed_s: float) -> None:
        harness.agents[job_id].act()
        if passed_s > 20:
            away.clear()
            harness.stop.set()
        elif passed_s > 2:
            away.set()

    running(harness, CONFIG, then).run()
    assert harness.stop.is_set()
