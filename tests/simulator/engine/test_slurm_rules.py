"""The rules `slurm`, on the made-up application: a step a second on one GPU, 150.25 steps in all.

Of its delays, 2 s pass until an agent asks, 5 s for a checkpoint, 4 s for a requeue and 1 s for a first
start, 10 s for a launch and 1 s more to restore; a first start waits another 5 s for backfill.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError, TraceError
from pollux_slurm.simulator import Cluster, Delays, Failures, InPlace, Rules, UnmanagedJob, slurm_rules
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.engine.random_events import Outages, draw_adaptive, draw_unmanaged_jobs
from pollux_slurm.simulator.experiments.settings import RunSettings, SlurmSettings
from pollux_slurm.simulator.policies import SlurmPolicy, TiresiasPolicy
from tests.simulator.builders import made_job
from tests.simulator.scripted import Scripted, run

DELAYS = Delays(
    notice_s=2,
    checkpoint_s=3,
    write_bytes_per_s=50,
    requeue_s=4,
    start_s=1,
    launch_s=10,
    read_bytes_per_s=100,
    backfill_s=5,
    state_bytes={"made": 100},
)
SLURM = slurm_rules(delays=DELAYS, checkpoint_interval_s=None)
# A first start: backfill, Slurm, launch.
FIRST_S = 5 + 1 + 10


def with_adaptive(num_jobs: int, adaptive: set[int]) -> Rules:
    """Return the rules under which just these of the jobs, by their places, are adaptive."""
    share = len(adaptive) / num_jobs
    seed = next(seed for seed in range(5000) if draw_adaptive(num_jobs, share, seed=seed) == adaptive)
    return dataclasses.replace(SLURM, adaptive_share=share, seed=seed)


def one_gpu_each(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
    return {job.job.name: ((0, 1),) for job in jobs[:4]}


def test_that_a_first_start_waits_without_gpus_and_launches_with_them(tmp_path: Path) -> None:
    (job,) = run(tmp_path, one_gpu_each, made_job("a", at_s=5), rules=SLURM).jobs
    assert job.finished_s == pytest.approx(60 + FIRST_S + 150.25)
    assert job.first_started_s == 65
    assert job.gpu_seconds == pytest.approx(1 + 10 + 150.25)
    assert job.lost_gpu_seconds == pytest.approx(11)
    assert job.interrupted_s == {"wait": 5, "slurm": 1, "launch": 10}


def test_that_a_move_costs_its_parts_and_training_goes_on_until_the_checkpoint(tmp_path: Path) -> None:
    def moved(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1),) if now_s < 120 else ((1, 1),)}

    (job,) = run(tmp_path, moved, made_job("a"), rules=SLURM).jobs
    assert job.finished_s == pytest.approx(60 + FIRST_S + 150.25 + 5 + 4 + 11)
    assert job.interrupted_s == {"wait": 5, "slurm": 5, "launch": 21, "checkpoint": 5}
    assert job.num_restarts == 1
    assert job.expected_delay_s == pytest.approx(20), "what the policy reckons with from then on"


def test_that_a_job_waits_for_gpus_that_another_is_still_leaving(tmp_path: Path) -> None:
    def swapped(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 4),)} if now_s < 120 else {"a": ((1, 4),), "b": ((0, 4),)}

    _, second = run(tmp_path, swapped, made_job("a"), made_job("b", at_s=100), rules=SLURM).jobs
    assert second.interrupted_s["wait"] == pytest.approx(2 + 5 + 5), (
        "a's notice and checkpoint, then backfill"
    )


def test_that_a_job_trains_on_its_source_until_its_agent_polls(tmp_path: Path) -> None:
    """On one GPU from 76 to 122 s, then 20 s of pauses, then the rest at half a second a step."""

    def grown(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1),) if now_s < 120 else ((0, 4),)}

    (job,) = run(tmp_path, grown, made_job("a"), rules=SLURM).jobs
    assert job.finished_s == pytest.approx(142 + (150.25 - 46) * 0.5)


def test_that_jobs_that_swap_nodes_wait_for_each_other(tmp_path: Path) -> None:
    """b leaves first, after 7 s; a follows at 14 s; until then b waits in the queue."""

    def swapped(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        places = (0, 1) if now_s < 120 else (1, 0)
        return {job.job.name: ((node, 4),) for job, node in zip(jobs, places, strict=False)}

    a, b = run(tmp_path, swapped, made_job("a"), made_job("b"), rules=SLURM).jobs
    assert a.interrupted_s["wait"] == 5
    assert b.interrupted_s["wait"] == 5 + 7
    assert (a.num_restarts, b.num_restarts) == (1, 1)


def test_that_a_paused_job_keeps_its_progress(tmp_path: Path) -> None:
    def paused(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {} if now_s == 120 else {"a": ((0, 1),)}

    (job,) = run(tmp_path, paused, made_job("a"), rules=SLURM).jobs
    trained_s = 120 - 60 - FIRST_S
    assert job.finished_s == pytest.approx(180 + 1 + 11 + 150.25 - trained_s)
    assert job.interrupted_s["checkpoint"] == 5
    assert job.lost_progress == 0


def test_that_a_plain_requeue_may_last_longer_than_a_round(tmp_path: Path) -> None:
    def moved(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        in_flight.append(jobs[0].in_flight)
        return {"a": ((0, 1),) if now_s < 120 else ((1, 1),)}

    in_flight: list[bool] = []
    plain = dataclasses.replace(SLURM, delays=dataclasses.replace(DELAYS, requeue_s=121))
    (job,) = run(tmp_path, moved, made_job("a"), rules=plain).jobs
    assert job.finished_s == pytest.approx(60 + FIRST_S + 150.25 + 5 + 121 + 11)
    assert in_flight == [False, False, True, True, False, False]


def test_that_checkpoints_cost_time_at_their_interval(tmp_path: Path) -> None:
    """Due after 40, 80 and 120 s of training, before the end at 150.25."""
    rules = dataclasses.replace(SLURM, checkpoint_interval_s=40.0)
    (job,) = run(tmp_path, one_gpu_each, made_job("a"), rules=rules).jobs
    assert job.finished_s == pytest.approx(60 + FIRST_S + 150.25 + 3 * 5)


def test_that_a_failure_destroys_progress_since_the_last_checkpoint(tmp_path: Path) -> None:
    """Each 20 s of training end in a checkpoint of 5 s, which is worth what was done before it."""
    failures = Failures(mtbf_s=400, repair_s=30)
    seed, fails_s = next(
        (seed, fails_s) for seed in range(1000) for fails_s in single_failure(failures, seed) if fails_s > 110
    )
    rules = dataclasses.replace(SLURM, checkpoint_interval_s=20.0, failures=failures, seed=seed)
    one_node = Cluster(num_nodes=1)
    result = run(tmp_path, SlurmPolicy(), made_job("a"), cluster=one_node, rules=rules)
    (job,) = result.jobs
    whole, rest = divmod(fails_s - 60 - FIRST_S, 25)
    lost_s, saved_s = rest, 20 * whole
    assert (job.num_failures, job.num_restarts) == (1, 1)
    assert job.lost_progress == pytest.approx(lost_s)
    back_s = -(-(fails_s + 30) // 60) * 60
    left_s = 150.25 - saved_s
    assert job.finished_s == pytest.approx(back_s + 1 + 11 + left_s + 5 * (left_s // 20))
    down = [record for record in result.rounds if record.nodes_up == 0]
    assert [record.gpus_up for record in down] == [0] * len(down)
    assert job.gpu_seconds - job.lost_gpu_seconds == pytest.approx(150.25), "useful once"


def single_failure(failures: Failures, seed: int) -> list[float]:
    """Return when a node fails, if it is once in the first 1,000 s and while the job trains, unsaved."""
    outages = Outages(failures, 1, seed=seed)
    at_s = outages.between(0, 1e6)[0]
    is_lost = 2 < (at_s - 60 - FIRST_S) % 25 < 18
    return [at_s] if is_lost and at_s < 170 and not outages.between(at_s + 31, 1000) else []


def test_that_a_rigid_job_is_served_as_by_slurm(tmp_path: Path) -> None:
    jobs = [
        made_job(f"j{index}", at_s=20.0 * index, num_replicas=1 + index % 3, batch_size=8)
        for index in range(8)
    ]
    one_node = Cluster(num_nodes=1)
    rules = dataclasses.replace(SLURM, adaptive_share=0.0)
    rigid = run(tmp_path / "a", TiresiasPolicy(), *jobs, cluster=one_node, rules=rules)
    today = run(tmp_path / "b", SlurmPolicy(), *jobs, cluster=one_node, rules=SLURM)
    assert [job.finished_s for job in rigid.jobs] == [job.finished_s for job in today.jobs]
    assert not any(job.adaptive for job in rigid.jobs)
    assert {record.solve_s for record in rigid.rounds} == {0.0}, "nobody was asked"


@pytest.mark.parametrize("first", [True, False])
def test_that_adaptive_jobs_yield_to_rigid_ones_with_rigid_first(tmp_path: Path, first: bool) -> None:
    jobs = [made_job("a"), made_job("b", at_s=100, num_replicas=4)]
    rules = dataclasses.replace(with_adaptive(2, {0}), rigid_first=first)

    def greedy(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 2),)} if policy.seen[now_s] >= (2,) else {}

    policy = Scripted(greedy)
    a, b = run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1), rules=rules).jobs
    assert a.finished_s is not None
    assert b.finished_s is not None
    assert b.first_started_s is not None
    if first:
        assert b.first_started_s == 120 + 2 + 5 + 5, "after a's notice and checkpoint, and backfill"
        assert a.finished_s > b.finished_s
        assert policy.seen[120.0] == (0,)
    else:
        assert a.finished_s < b.first_started_s
        assert policy.seen[60.0] == (4,)
        assert policy.seen[120.0] == (4,), "what is free may be lent until b can start"


def test_that_a_large_rigid_job_starts_beside_adaptive_ones(tmp_path: Path) -> None:
    """a owns two of four GPUs. b requests all four; c, after it, would keep one of them beyond a's limit."""
    jobs = [
        made_job("a"),
        made_job("b", at_s=100, num_replicas=4),
        made_job("c", at_s=110, num_replicas=1),
    ]
    rules = with_adaptive(3, {0})
    policy = Scripted(lambda now_s, jobs: {"a": ((0, 2),)})
    result = run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1), rules=rules)
    a, b, c = (job.first_started_s for job in result.jobs)
    finished_s = result.jobs[0].finished_s
    assert a is not None
    assert b is not None
    assert c is not None
    assert finished_s is not None
    assert finished_s < b < c


def test_that_nothing_is_reserved_on_the_gpus_of_an_adaptive_job_beyond_its_limit(tmp_path: Path) -> None:
    """a's user asked for two GPUs and 102 s, until 137; on one it takes 204 s. b waits for all four.

    Beyond that limit nobody knows when b's turn comes: c, which came later, starts on one of the idle GPUs.
    """
    jobs = [
        made_job("a", num_replicas=2, batch_size=32),
        made_job("b", at_s=40, num_replicas=4),
        made_job("c", at_s=50, num_replicas=1),
    ]
    rules = with_adaptive(3, {0})
    policy = Scripted(lambda now_s, jobs: {"a": ((0, 1),)})
    cluster = Cluster(num_nodes=1, interval_s=30)
    a, b, c = run(tmp_path, policy, *jobs, cluster=cluster, rules=rules).jobs
    assert a.finished_s is not None
    assert b.first_started_s is not None
    assert c.first_started_s is not None
    assert 137 < c.first_started_s < a.finished_s < b.first_started_s


@pytest.mark.parametrize("own", [1, 2, 3])
def test_that_a_rigid_job_gets_what_an_adaptive_job_has_beyond_its_users_size(
    tmp_path: Path, own: int
) -> None:
    """a has all four GPUs, where its user asked for `own`; b needs two."""
    jobs = [made_job("a", num_replicas=own), made_job("b", at_s=100, num_replicas=2)]
    rules = with_adaptive(2, {0})
    policy = Scripted(lambda now_s, jobs: {job.job.name: ((0, policy.seen[now_s][0]),) for job in jobs})
    a, b = run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1), rules=rules).jobs
    assert a.finished_s is not None
    assert b.first_started_s is not None
    if own == 3:
        assert policy.seen[120.0] == (4,)
        assert b.first_started_s > a.finished_s
    else:
        assert policy.seen[120.0] == (2,), "a trains on with the rest"
        assert b.first_started_s < a.finished_s


def test_that_unused_gpus_are_taken_first_and_then_those_of_jobs_that_have_lent_ones(tmp_path: Path) -> None:
    """a has four GPUs where its user asked for two; b, the last adaptive job, has its own two of four.

    c gets the two that nobody uses. d, which needs two as well, gets those of a, and b is left alone.
    """
    jobs = [
        made_job("a", num_replicas=2, batch_size=32),
        made_job("b", at_s=10, num_replicas=2, batch_size=32),
        made_job("c", at_s=30, num_replicas=2, batch_size=32),
        made_job("d", at_s=50, num_replicas=2, batch_size=32),
    ]
    rules = with_adaptive(4, {0, 1})
    seen: dict[float, dict[str, GpusByNode]] = {}

    def keep(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        begin = {"a": ((0, 4),), "b": ((1, 2),)}
        seen[now_s] = {job.job.name: job.allocation for job in jobs}
        return {job.job.name: job.allocation or begin[job.job.name] for job in jobs}

    done = run(tmp_path, keep, *jobs, cluster=Cluster(num_nodes=2, interval_s=20), rules=rules)
    assert (seen[40.0], seen[60.0]) == (
        {"a": ((0, 4),), "b": ((1, 2),)},
        {"a": ((0, 2),), "b": ((1, 2),)},
    )
    used = next(record.allocations for record in done.rounds if record.at_s == 60.0)
    assert (used["c"], used["d"]) == (((1, 2),), ((0, 2),))
    assert [job.num_restarts for job in done.jobs[:2]] == [1, 0]


def test_that_a_job_in_place_gives_back_what_is_lent_without_a_restart(tmp_path: Path) -> None:
    """a has a wing on each of two nodes, and one GPU of its own; another job needs all others."""
    other = UnmanagedJob(submitted_s=70, duration_s=1000, num_gpus=7)
    rules = dataclasses.replace(SLURM, unmanaged_jobs=(other,), in_place=InPlace())

    def spread(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        wide = ((0, 1),) if now_s < 40 else ((0, 1), (1, 1))
        return {"a": tuple(part for part in wide if policy.seen[now_s][part[0]])}

    policy = Scripted(spread)
    cluster = Cluster(num_nodes=2, interval_s=20)
    (a,) = run(tmp_path, policy, made_job("a", batch_size=32), cluster=cluster, rules=rules).jobs
    assert (policy.seen[60.0], policy.seen[80.0]) == ((4, 4), (1, 0))
    assert (a.num_restarts, a.num_regroups) == (0, 2)


def test_that_only_jobs_behind_a_rigid_one_that_backfill_does_not_start_wait(tmp_path: Path) -> None:
    """p has one of four GPUs for up to 408 s; b waits for all four. q came before b, r and s after it.

    r has a limit of 300 s, and is done before b can start; s of 408 s is not.
    """
    jobs = [
        made_job("p", batch_size=32),
        made_job("q", at_s=5),
        made_job("b", at_s=30, num_replicas=4),
        made_job("r", at_s=35),
        made_job("s", at_s=36, batch_size=32),
    ]
    rules = with_adaptive(5, {0, 1, 3, 4})
    asked: dict[float, set[str]] = {}

    def one_each(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        asked[now_s] = {job.job.name for job in jobs}
        most = min(policy.seen[now_s][0], 1 if now_s < 60 else 4)
        return {job.job.name: ((0, 1),) for job in jobs[:most]}

    policy = Scripted(one_each)
    run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1, interval_s=20), rules=rules)
    assert (asked[20.0], asked[40.0]) == ({"p", "q"}, {"p", "q", "r"})


def test_that_a_job_before_a_rigid_one_takes_part_where_no_gpu_is_free(tmp_path: Path) -> None:
    """p has its own four GPUs. It may shrink for q, which came before b, and not for r, which came after."""
    jobs = [
        made_job("p", num_replicas=4, batch_size=32),
        made_job("q", at_s=25),
        made_job("b", at_s=30, num_replicas=4),
        made_job("r", at_s=35),
    ]
    rules = with_adaptive(4, {0, 1, 3})
    asked: dict[float, set[str]] = {}

    def share(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        asked[now_s] = {job.job.name for job in jobs}
        gpus = policy.seen[now_s][0] // max(len(jobs), 1)
        return {job.job.name: ((0, gpus),) for job in jobs} if gpus else {}

    policy = Scripted(share)
    run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1, interval_s=20), rules=rules)
    assert asked[40.0] == {"p", "q"}


def test_that_a_job_on_several_nodes_keeps_its_own_where_it_has_most(tmp_path: Path) -> None:
    other = UnmanagedJob(submitted_s=30, duration_s=1000, num_gpus=6)
    rules = dataclasses.replace(SLURM, unmanaged_jobs=(other,))

    def spread(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 1), (1, 3)) if now_s < 40 else ((1, 2),)}

    policy = Scripted(spread)
    jobs = [made_job("a", num_replicas=2, batch_size=32)]
    run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=2, interval_s=20), rules=rules)
    assert (policy.seen[20.0], policy.seen[40.0]) == ((4, 4), (0, 2))


def test_that_slurm_starts_no_adaptive_job_on_gpus_that_are_reserved(tmp_path: Path) -> None:
    """b waits for four GPUs, of which a has three; c, submitted with one, would keep it for longer."""
    jobs = [
        made_job("a", num_replicas=3),
        made_job("b", at_s=70, num_replicas=4),
        dataclasses.replace(made_job("c", at_s=130, batch_size=32), start_gpus=1),
    ]
    rules = with_adaptive(3, {2})
    policy = Scripted(lambda now_s, jobs: {job.job.name: ((0, 1),) for job in jobs if policy.seen[now_s][0]})
    a, b, c = run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1), rules=rules).jobs
    assert a.finished_s is not None
    assert b.first_started_s is not None
    assert c.first_started_s is not None
    assert a.finished_s < b.first_started_s < a.finished_s + 60
    assert b.first_started_s < c.first_started_s


def test_that_a_new_adaptive_job_waits_behind_a_rigid_one_also_where_a_running_one_would_shrink(
    tmp_path: Path,
) -> None:
    """a has all four GPUs and keeps three of them. b waits for all. So c may not take what a lends."""
    jobs = [made_job("a", num_replicas=3), made_job("b", at_s=70, num_replicas=4), made_job("c", at_s=80)]
    rules = with_adaptive(3, {0, 2})
    asked: dict[float, set[str]] = {}

    def share(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        asked[now_s] = {job.job.name for job in jobs}
        gpus = policy.seen[now_s][0] // max(len(jobs), 1)
        return {job.job.name: ((0, gpus),) for job in jobs} if gpus else {}

    policy = Scripted(share)
    _, b, c = run(tmp_path, policy, *jobs, cluster=Cluster(num_nodes=1), rules=rules).jobs
    assert asked[120.0] == {"a"}
    assert b.first_started_s is not None
    assert c.first_started_s is not None
    assert c.first_started_s > b.first_started_s


def test_that_a_new_adaptive_job_starts_before_a_large_job_only_without_delaying_it(tmp_path: Path) -> None:
    """b waits for all four GPUs, three of which a owns for up to 300 s; a new job requests one."""

    def one_each(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        free = policy.seen[now_s][0] - sum(job.num_gpus for job in jobs)
        new = [job.job.name for job in jobs if not job.allocation][: max(free, 0)]
        return {job.job.name: job.allocation for job in jobs if job.allocation} | dict.fromkeys(
            new, ((0, 1),)
        )

    rigid = [made_job("a", num_replicas=3), made_job("b", at_s=70, num_replicas=4)]
    jobs = [*rigid, made_job("new", at_s=80)]
    rules = with_adaptive(3, {2})
    policy = Scripted(one_each)
    _, b, new = run(tmp_path / "1", policy, *jobs, cluster=Cluster(num_nodes=1), rules=rules).jobs
    assert b.first_started_s is not None
    assert new.first_started_s is not None
    assert new.first_started_s > b.first_started_s
    policy = Scripted(one_each)
    earlier = [rigid[0], made_job("new", at_s=65), rigid[1]]
    rules = with_adaptive(3, {1})
    _, new, b = run(tmp_path / "2", policy, *earlier, cluster=Cluster(num_nodes=1), rules=rules).jobs
    assert new.first_started_s == 125, "it is its turn"


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_that_all_jobs_are_rigid_under_policy_slurm(share: float) -> None:
    others = SlurmSettings(adaptive_share=share, unmanaged_share=0.3, unmanaged_hours=1.0)
    settings = RunSettings(policy="slurm", rules="slurm", num_nodes=1, slurm=others)
    assert settings.make_rules().adaptive_share == 0.0
    adapting = RunSettings(policy="pollux", rules="slurm", num_nodes=1, slurm=others)
    assert adapting.make_rules().adaptive_share == share


def test_that_unmanaged_jobs_own_gpus_for_their_duration(tmp_path: Path) -> None:
    """From the round at 60 s for 100 s: the GPUs are back at the round at 180 s."""
    rules = dataclasses.replace(
        SLURM, unmanaged_jobs=(UnmanagedJob(submitted_s=0, duration_s=100, num_gpus=3),)
    )
    policy = Scripted(lambda now_s, jobs: {"a": ((0, 2),)} if policy.seen[now_s][0] >= 2 else {})
    result = run(tmp_path, policy, made_job("a"), cluster=Cluster(num_nodes=1), rules=rules)
    assert result.jobs[0].first_started_s == 185
    assert [record.gpus_unmanaged for record in result.rounds[:3]] == [3, 3, 0]
    assert policy.seen[60.0] == (1,)


def test_that_unmanaged_jobs_run_without_other_jobs(tmp_path: Path) -> None:
    """The first is over long before the job comes, and so is the second, which had to wait for it."""
    others = tuple(UnmanagedJob(submitted_s=0, duration_s=100, num_gpus=4) for _ in range(2))
    rules = dataclasses.replace(SLURM, unmanaged_jobs=others)
    one_node = Cluster(num_nodes=1)
    (job,) = run(tmp_path, one_gpu_each, made_job("a", at_s=900), cluster=one_node, rules=rules).jobs
    assert job.first_started_s == 905


def test_that_jobs_over_several_nodes_slow_each_other_down(tmp_path: Path) -> None:
    """Half a second a step, at a quarter less speed while both are there; a third on one node is not."""
    rules = Rules(interference=0.25)
    jobs = [made_job(name, num_replicas=2) for name in "abc"]
    across = {"a": ((0, 1), (1, 1)), "b": ((0, 1), (1, 1)), "c": ((0, 2),)}
    a, b, c = run(tmp_path, lambda *_: across, *jobs, rules=rules).jobs
    assert a.finished_s == pytest.approx(90 + 150.25 / 2 / 0.75, abs=1)
    assert b.finished_s == a.finished_s
    assert c.finished_s == pytest.approx(90 + 150.25 / 2, abs=1)


def test_that_a_simulation_is_reproducible(tmp_path: Path) -> None:
    others = draw_unmanaged_jobs(seed=3, share=0.3, num_gpus=8, hours=2, mean_duration_s=600)
    rules = slurm_rules(
        delays=DELAYS,
        unmanaged_jobs=others,
        failures=Failures(mtbf_s=2000, repair_s=100),
        checkpoint_interval_s=60,
        adaptive_share=0.5,
        interference=0.1,
        seed=5,
    )
    jobs = [made_job(f"j{i}", at_s=30.0 * i, num_replicas=1 + i % 4, batch_size=32) for i in range(20)]
    results = [run(tmp_path / str(again), TiresiasPolicy(), *jobs, rules=rules) for again in range(2)]
    first, second = ([job.finished_s for job in result.jobs] for result in results)
    assert first == second
    result = results[0]
    assert sum(job.num_failures for job in result.jobs) > 0
    assert max(record.gpus_unmanaged for record in result.rounds) > 0
    made = sum(sum(record.goodput.values()) for record in result.rounds) * 60
    assert made == pytest.approx(sum(job.total_useful_progress for job in result.jobs) * 8)
    for record in result.rounds:
        assert record.gpus_used + record.gpus_unmanaged <= record.gpus_up
    for job in result.jobs:
        assert 0 < job.lost_gpu_seconds < job.gpu_seconds


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Delays, {"requeue_s": -1}),
        (Delays, {"launch_s": float("nan")}),
        (Delays, {"write_bytes_per_s": 0}),
        (Delays, {"launch_s_by_application": {"made": -1}}),
        (Failures, {"mtbf_s": 0}),
        (UnmanagedJob, {"submitted_s": 0, "duration_s": 1, "num_gpus": 0}),
        (Rules, {"name": "pbs"}),
        (Rules, {"adaptive_share": 1.1}),
        (Rules, {"interference": 1.0}),
        (Rules, {"checkpoint_interval_s": 0}),
        (Rules, {"estimate_factor": 0.5}),
    ],
)
def test_that_impossible_rules_are_refused(kind: type, options: dict[str, object]) -> None:
    with pytest.raises(SimulationError):
        kind(**options)


def test_that_a_rigid_job_too_large_for_the_cluster_is_refused(tmp_path: Path) -> None:
    rules = dataclasses.replace(SLURM, adaptive_share=0.0)
    with pytest.raises(SimulationError, match="job a asks for 9 GPUs, but the cluster has at most 8"):
        run(tmp_path, one_gpu_each, made_job("a", num_replicas=9, batch_size=32), rules=rules)


def test_that_jobs_submitted_after_the_longest_simulation_are_refused(tmp_path: Path) -> None:
    """As with times in seconds since 1970, which no cluster is too small for."""
    with pytest.raises(SimulationError, match=r"job late is submitted at 1768000000 s.* first submission"):
        run(tmp_path, one_gpu_each, made_job("a"), made_job("late", at_s=1768000000))


def test_that_an_unmeasured_size_raises_with_the_jobs_name(tmp_path: Path) -> None:
    odd = made_job("odd", num_replicas=2, batch_size=2)
    with pytest.raises(TraceError, match="job odd: made: the traces have no step time on 2 GPUs with 1 "):
        run(tmp_path / "a", lambda *_: {"odd": ((0, 2),)}, odd)
    with pytest.raises(TraceError, match="job odd: made: the traces have no step time"):
        run(tmp_path / "b", SlurmPolicy(), odd, rules=dataclasses.replace(SLURM, adaptive_share=0.0))
