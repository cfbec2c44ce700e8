"""A job that has waited for too long cannot be overtaken."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.model import GpuLimit, Problem, ProblemJob
from pollux_slurm.policy import OBJECTIVES, decide, explanation
from pollux_slurm.policy.participation.longest_wait import restrict_newcomers
from tests.policy.builders import job, linear_model, node, nodes, problem, sizes

BIG = {"min_gpus": 8, "model": linear_model(seen=8)}


def bounded(*jobs: ProblemJob, cluster=None, **changes) -> Problem:
    one = problem(cluster or nodes(2), *jobs)
    return dataclasses.replace(one, max_wait_s=600.0, **changes)


def nodes_of(one: Problem) -> dict[str, set[str] | None]:
    found = {}
    for kept in restrict_newcomers(one, one.jobs):
        found[kept.job_id] = None if kept.partition_nodes is None else set(kept.partition_nodes)
    return found


def simulated(one: Problem, *, rounds: int) -> int | None:
    """Return the round in which `big` is served, if in each a running job ends and a small one arrives."""
    running = {f"r{i}": f"n{i // 4}" for i in range(8)}
    waited = 0.0
    for number in range(rounds):
        jobs = [job(name, {place: 1}, max_gpus=1) for name, place in running.items()]
        jobs += [job(f"s{number}", max_gpus=1), job("big", waiting_s=waited, **BIG)]
        found = decide(dataclasses.replace(one, jobs=tuple(jobs)))
        given = {d.job_id: d.allocation for d in found.jobs}
        if given["big"]:
            return number
        running = {name: a.nodes[0] for name, a in given.items() if a and name != "big"}
        running.pop(next(iter(running)), None)
        waited += 60.0
    return None


def test_that_small_newcomers_overtake_a_big_job_for_a_bounded_time_only() -> None:
    one = problem(nodes(2))
    assert simulated(one, rounds=40) is None  # each GPU that becomes free goes to the next newcomer
    bound = dataclasses.replace(one, max_wait_s=300.0)
    served = simulated(bound, rounds=40)
    assert served is not None
    assert 5 <= served <= 5 + 8  # from then on every end of a job counts for it


def test_that_only_the_nodes_it_needs_are_kept_and_for_it_alone() -> None:
    starving = job("a", min_gpus=2, waiting_s=600.0)
    late, holder = job("b", waiting_s=599.0), job("c", {"n1": 1})
    assert nodes_of(bounded(starving, late, holder)) == {"a": None, "b": {"n1"}, "c": {"n1"}}


def test_that_a_job_on_a_kept_node_can_still_give_way_there() -> None:
    one = bounded(job("a", min_gpus=2, waiting_s=1e4), job("b", {"n0": 4}), cluster=nodes(1))
    assert nodes_of(one)["b"] is None
    assert sizes(decide(one)) == {"a": 2, "b": 2}


def test_that_at_most_half_of_the_nodes_are_kept_but_enough_for_one() -> None:
    hungry = [job(str(i), min_gpus=4, waiting_s=1e4 + i) for i in range(4)]
    found = nodes_of(bounded(*hungry, job("late"), cluster=nodes(4)))
    assert found["late"] == {"n2", "n3"}
    big = bounded(job("a", waiting_s=1e4, min_gpus=12), job("late"), cluster=nodes(3))
    assert nodes_of(big)["late"] == set()


def test_that_those_who_wait_longest_come_first() -> None:
    two = [job("a", min_gpus=4, waiting_s=700.0), job("b", min_gpus=4, waiting_s=800.0)]
    one = bounded(*two, job("late", min_gpus=4), cluster=nodes(1))
    assert sizes(decide(one)) == {"a": 0, "b": 4, "late": 0}


def test_that_nothing_is_kept_for_a_job_that_fits_nowhere() -> None:
    huge = job("a", waiting_s=1e4, min_gpus=64)
    greedy = job("b", waiting_s=1e4, cpus_per_gpu=100)
    closed = job("c", waiting_s=1e4, partition_nodes=frozenset({"n9"}))
    one = bounded(huge, greedy, closed, job("late"), cluster=(node("n0"), node("n1", accepts_new=False)))
    assert nodes_of(one)["late"] is None


def test_that_a_full_limit_restricts_the_jobs_under_it_and_keeps_no_node() -> None:
    limit = GpuLimit(kind="account", name="x", max_gpus=4)
    jobs = [
        job("a", account="x", min_gpus=4, waiting_s=1e4),
        job("b", {"n0": 2}, account="x", max_gpus=2),
        job("c", account="x"),
        job("d", account="y"),
    ]
    found = nodes_of(bounded(*jobs, limits=(limit,)))
    assert found == {"a": None, "b": None, "c": set(), "d": None}


def test_that_a_limit_of_named_jobs_restricts_these_and_no_others() -> None:
    limit = GpuLimit(kind="account", name="lab", max_gpus=4, job_ids=("a", "b", "c"))
    jobs = [
        job("a", account="x", min_gpus=4, waiting_s=1e4),
        job("b", {"n0": 2}, account="y", max_gpus=2),
        job("c", account="z"),
        job("d", account="x"),
    ]
    found = nodes_of(bounded(*jobs, limits=(limit,)))
    assert found == {"a": None, "b": None, "c": set(), "d": None}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_every_objective_serves_a_starving_job_before_newcomers(name: str) -> None:
    jobs = [job("a", min_gpus=4, waiting_s=1e4), *(job(f"s{i}", age_s=1e3) for i in range(4))]
    one = bounded(*jobs, cluster=nodes(1))
    one = dataclasses.replace(one, objective=dataclasses.replace(one.objective, name=name))
    found = decide(one)
    assert sizes(found) == {"a": 4, "s0": 0, "s1": 0, "s2": 0, "s3": 0}
    assert {d.bound_by for d in found.jobs[1:]} == {"waiting"}
    assert "kept for a job that has waited for too long" in explanation(found.jobs[1])
    unbounded = dataclasses.replace(one, max_wait_s=None)
    assert sizes(decide(unbounded))["a"] == 0


def test_that_nothing_is_kept_for_a_job_that_could_never_use_it() -> None:
    # With at most four examples in a micro-batch, it cannot have its batch on 16 GPUs.
    limits = dataclasses.replace(linear_model().limits, initial_batch_size=128, max_atomic=4)
    hopeless = dataclasses.replace(linear_model(), limits=limits)
    starving = job("hopeless", model=hopeless, min_gpus=16, waiting_s=1e4)
    found = decide(bounded(starving, *(job(str(i)) for i in range(4)), cluster=nodes(4)))
    assert [job_id for job_id, _ in found.excluded] == ["hopeless"]
    assert all(found.allocation(str(i)).num_gpus == 4 for i in range(4))


def test_that_a_wide_job_counts_on_no_node_that_a_pinned_wide_one_has() -> None:
    pinned = job("p", {"n0": 1, "n1": 1}, pinned=True)
    starving = job("a", min_gpus=6, waiting_s=600.0, model=linear_model(seen=8))
    late, small = job("b"), {"n2": {"n2": 3}, "n3": {"n3": 3}}
    held = [job(name, place, max_gpus=3) for name, place in small.items()]
    found = nodes_of(bounded(pinned, starving, late, *held, cluster=nodes(4)))
    assert found["b"] == {"n0", "n1"}  # the emptier two, of no use to a second job over several nodes


def test_that_two_wide_jobs_do_not_count_on_the_same_nodes() -> None:
    wide = {"min_gpus": 4, "model": linear_model(seen=8), "cpus_per_gpu": 2}
    starving = [job(name, waiting_s=600.0, **wide) for name in ("a", "b")]
    cluster = tuple(node(f"n{index}", num_cpus=5) for index in range(8))  # two of its four GPUs for each
    assert nodes_of(bounded(*starving, job("c"), cluster=cluster))["c"] == {"n4", "n5", "n6", "n7"}
