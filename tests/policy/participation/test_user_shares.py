"""Equal shares of users: nobody gains by submitting more jobs."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.errors import InvalidProblemError
from pollux_slurm.model import Decision, GoodputModel, MovingRules, Objective, Problem, ProblemJob
from pollux_slurm.policy import OBJECTIVES, decide, explanation, fitness_of
from pollux_slurm.policy.decide import build_candidates_of_participants
from pollux_slurm.policy.participation.longest_wait import restrict_newcomers
from pollux_slurm.policy.participation.user_shares import divide_gpus
from pollux_slurm.policy.problem.node_facts import NodeFacts
from tests.policy.builders import job, linear_model, nodes, sizes
from tests.policy.problems import random_problem
from tests.policy.rules import violations

PAUSING = {"price-rank", "attained-work"}
# A job that gains by few GPUs only, as most do.
POOR = linear_model(seen=64, sync_s=1.0, network_s=1.0)


def shared(
    cluster, *jobs: ProblemJob, between: str = "users", name: str = "generalized-mean", **changes
) -> Problem:
    return Problem(
        nodes=cluster,
        jobs=jobs,
        objective=Objective(name=name, between=between),
        moving=MovingRules(pauses=name in PAUSING),
        **changes,
    )


def of_users(one: Problem, found: Decision) -> Counter[str]:
    held: Counter[str] = Counter()
    for asked, given in zip(one.jobs, found.jobs, strict=True):
        held[asked.user] += given.allocation.num_gpus
    return held


def attack(
    *,
    between: str = "users",
    name: str = "generalized-mean",
    model: GoodputModel | None,
    num_nodes: int = 16,
    num_others: int = 15,
    num_jobs: int = 400,
) -> Counter[str]:
    """Return the GPUs of each user after a round on nodes of 8: one has `num_jobs`, the others one each."""
    new = {"age_s": 60.0, "waiting_s": 60.0, "model": model}
    ours = [job(f"a{i:02}", user=f"user{i:02}", **new) for i in range(num_others)]
    theirs = [job(f"m{i:04}", user="mallory", **new) for i in range(num_jobs)]
    one = shared(nodes(num_nodes, 8), *ours, *theirs, between=between, name=name)
    return of_users(one, decide(one))


WHOLE = {"num_nodes": 64, "num_others": 60, "num_jobs": 1940}


def test_that_between_jobs_1940_of_one_user_get_452_of_512_gpus() -> None:
    held = attack(between="jobs", model=POOR, **WHOLE)
    assert held.pop("mallory") == 452
    assert set(held.values()) == {1}


def test_that_between_users_1940_jobs_of_one_get_what_sixty_others_leave() -> None:
    held = attack(model=POOR, **WHOLE)
    # Each other user has a node of 8 GPUs and would gain nothing by more: 60 nodes of 64.
    assert held.pop("mallory") == 4 * 8
    assert set(held.values()) == {8}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_400_pending_jobs_get_a_users_share_under_every_objective(name: str) -> None:
    held = attack(name=name, model=POOR)
    assert held.pop("mallory") == 8
    assert set(held.values()) == {8}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_new_jobs_of_others_find_room_to_grow_beside_400_of_one_user(name: str) -> None:
    held = attack(name=name, model=None)
    # Unmeasured jobs get one GPU each: the rest is not given to jobs that cannot give it back.
    assert held.pop("mallory") == 8
    assert set(held.values()) == {1}


def test_that_what_others_cannot_use_goes_to_who_has_more_jobs() -> None:
    ours = [job(f"a{i}", user=f"user{i}", max_gpus=1) for i in range(6)]
    theirs = [job(f"m{i:02}", user="mallory", model=None) for i in range(40)]
    one = shared(nodes(4), *ours, *theirs)
    assert of_users(one, decide(one))["mallory"] == 10


def test_that_gpus_that_would_speed_up_nobody_else_go_to_the_user_with_more_jobs() -> None:
    alone = linear_model(sync_s=1e3)
    ours = [job(f"a{i}", user=f"user{i}", model=alone) for i in range(3)]
    theirs = [job(f"m{i:02}", user="mallory", model=alone) for i in range(20)]
    one = shared(nodes(4), *ours, *theirs)
    assert of_users(one, decide(one))["mallory"] == 13


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_nobody_has_less_because_another_user_has_a_hundred_jobs_instead_of_one(name: str) -> None:
    one = attack(name=name, model=POOR, num_jobs=1)
    many = attack(name=name, model=POOR, num_jobs=100)
    del one["mallory"], many["mallory"]
    assert many == one


@pytest.mark.parametrize("num_jobs", [1, 2, 4, 8])
def test_that_two_users_have_equal_parts_however_many_jobs_the_one_has(num_jobs: int) -> None:
    alone, theirs = job("a", user="ann"), [job(f"b{i}", user="bob") for i in range(num_jobs)]
    one = shared(nodes(1, 16), alone, *theirs)
    assert of_users(one, decide(one)) == {"ann": 8, "bob": 8}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_that_a_user_alone_has_what_jobs_would_share(name: str, seed: int) -> None:
    plain = random_problem(random.Random(seed), num_nodes=3, num_gpus=4, num_jobs=9)
    jobs = tuple(dataclasses.replace(one, user="ann") for one in plain.jobs)
    plain = dataclasses.replace(plain, jobs=jobs, objective=Objective(name=name))
    between = dataclasses.replace(plain, objective=Objective(name=name, between="users"))
    assert decide(between) == decide(plain)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_that_users_with_a_job_each_have_what_jobs_would_share(name: str, seed: int) -> None:
    plain = random_problem(random.Random(seed), num_nodes=3, num_gpus=4, num_jobs=9)
    jobs = tuple(dataclasses.replace(one, user=f"u{row}") for row, one in enumerate(plain.jobs))
    plain = dataclasses.replace(plain, jobs=jobs, objective=Objective(name=name))
    between = dataclasses.replace(plain, objective=Objective(name=name, between="users"))
    assert decide(between) == decide(plain)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_rigid_jobs_of_unknown_users_take_no_share(name: str) -> None:
    ours = [job(f"a{i}", {f"n{i}": 2}, user="ann", model=POOR) for i in range(3)]
    turn = [job(f"t{i}", min_gpus=2, max_gpus=2, rigid=True, model=None) for i in range(4)]
    one = shared(nodes(4), *ours, *turn, name=name)
    assert decide(one) == decide(shared(nodes(4), *ours, *turn, name=name, between="jobs"))
    also = shared(nodes(5), *ours, *turn, job("b", user="bob", model=POOR), name=name)
    assert sum(sizes(decide(also))[f"t{i}"] for i in range(4)) == 8


def test_that_a_cluster_without_gpus_has_nothing_to_share() -> None:
    one = shared(nodes(2, 0), job("a", user="ann"), job("b", user="bob"))
    assert of_users(one, decide(one)) == {"ann": 0, "bob": 0}


def test_that_a_job_without_a_user_counts_as_a_user() -> None:
    unnamed = [job(f"a{i}") for i in range(3)]
    assert sizes(decide(shared(nodes(1, 4), job("b", user="bob"), *unnamed))) == {
        "b": 1, "a0": 1, "a1": 1, "a2": 1,
    }  # fmt: skip


def test_that_waiting_jobs_take_nothing_from_running_jobs_of_their_user() -> None:
    running = [job("a", {"n0": 4}, user="ann"), job("b", {"n1": 4}, user="bob")]
    pending = [job(f"p{i:03}", user="bob") for i in range(300)]
    found = sizes(decide(shared(nodes(2), *running, *pending)))
    # Bob's jobs have his four GPUs: the one that ran, and three more.
    assert found["a"] == 4
    assert found["b"] == 1
    assert sum(found.values()) == 8
    cramped = [dataclasses.replace(one, min_gpus=4) for one in running]
    assert sizes(decide(shared(nodes(2), *cramped, *pending)))["b"] == 4


@pytest.mark.parametrize("name", sorted(PAUSING))
def test_that_running_jobs_beyond_a_users_share_are_paused_for_others(name: str) -> None:
    running = [job(f"b{i}", {f"n{i // 4}": 1}, user="bob", model=POOR, age_s=1e4) for i in range(8)]
    new = [job(f"a{i}", user=f"user{i}", model=None) for i in range(3)]
    one = shared(nodes(2), *running, *new, name=name)
    held = of_users(one, decide(one))
    assert [held[f"user{i}"] for i in range(3)] == [1, 1, 1]
    assert held["bob"] >= 2


def test_that_a_running_job_beyond_its_users_part_weighs_less() -> None:
    # Bob's part of eight GPUs is four: three jobs, of which the third is one too many.
    running = [job(f"b{i}", {"n0": 2}, user="bob", min_gpus=2) for i in range(3)]
    one = shared(nodes(1, 10), *running, job("a", {"n0": 4}, user="ann", min_gpus=4, max_gpus=4))
    weights = build_candidates_of_participants(one, list(one.jobs)).scores.weight
    assert weights[0] == weights[1] == weights[2] < weights[3]
    crowded = shared(nodes(1, 8), *running[:3], job("a", {"n0": 2}, user="ann", min_gpus=2))
    weights = build_candidates_of_participants(crowded, list(crowded.jobs)).scores.weight
    assert weights[2] == pytest.approx(weights[0] * (2 / 3) ** 2)
    held = {asked.job_id: asked.current for asked in crowded.jobs}
    assert decide(crowded).fitness == pytest.approx(fitness_of(crowded, held))


def test_that_a_weight_counts_between_users_and_within_one() -> None:
    heavy = [job("a", user="ann", weight=9.0), job("b", user="bob")]
    # At p = −1 shares follow the roots of weights.
    assert sizes(decide(shared(nodes(1, 16), *heavy))) == {"a": 12, "b": 4}
    within = [job("a", user="ann"), job("b", user="bob", weight=9.0), job("c", user="bob")]
    found = sizes(decide(shared(nodes(1, 16), *within)))
    assert found["b"] > found["c"]


def test_that_shares_of_users_are_in_proportion_to_their_weights() -> None:
    jobs = [job(f"a{i}", user="a", max_gpus=1, weight=3.0) for i in range(9)]
    jobs += [job(f"b{i}", user="b", max_gpus=1) for i in range(9)]
    one = shared(nodes(1, 8), *jobs)
    assert of_users(one, decide(one)) == {"a": 6, "b": 2}


def test_that_a_partition_that_others_do_not_use_is_not_shared_with_them() -> None:
    theirs = frozenset({"n1"})
    jobs = [job(f"b{i}", user="bob", partition_nodes=theirs, model=None) for i in range(6)]
    ours = [job(f"a{i}", user=f"user{i}", partition_nodes=frozenset({"n0"})) for i in range(4)]
    one = shared(nodes(2), *jobs, *ours)
    assert of_users(one, decide(one))["bob"] == 4


def test_that_jobs_that_fit_nowhere_take_nothing_from_others_of_their_user() -> None:
    huge = [job(f"h{i}", user="bob", min_gpus=64, waiting_s=1e4) for i in range(5)]
    small = [job(f"b{i}", user="bob", max_gpus=1) for i in range(5)]
    found = decide(shared(nodes(1, 8), job("a", user="ann"), *huge, *small))
    held = sizes(found)
    assert [held[f"b{i}"] for i in range(5)].count(1) == 4
    assert {job_id for job_id, _ in found.excluded} == {f"h{i}" for i in range(5)}


def test_that_jobs_that_fit_nowhere_do_not_count_among_their_users() -> None:
    odd = [job(f"o{i}", user="bob", cpus_per_gpu=1000) for i in range(3)]
    jobs = [job("a0", user="ann"), job("a1", user="ann"), job("b", user="bob")]
    found = decide(shared(nodes(1, 8), *jobs, *odd))
    assert sizes(found)["b"] == 4
    assert len(found.excluded) == 3


def test_that_a_job_above_its_users_share_is_served_where_it_is_the_only_one() -> None:
    others = [job(f"a{i}", user=f"user{i}", max_gpus=1) for i in range(3)]
    found = sizes(decide(shared(nodes(2), job("big", user="bob", min_gpus=4), *others)))
    assert found["big"] == 4


def participant_ids(one: Problem, useful: dict[str, int] | None = None) -> list[str]:
    most = [(useful or {}).get(asked.job_id, asked.max_gpus or 10**6) for asked in one.jobs]
    taking_part, _, _ = divide_gpus(one, list(one.jobs), np.array(most), NodeFacts(one.nodes))
    return [asked.job_id for asked in taking_part]


def test_that_all_gpus_are_divided_and_the_longest_waiting_come_first() -> None:
    single = [
        job(f"{user}{i}", user=user, max_gpus=1, waiting_s=waited)
        for user, waited in (("a", 10.0), ("b", 30.0), ("c", 20.0))
        for i in range(5)
    ]
    assert participant_ids(shared(nodes(1, 8), *single)) == ["a0", "a1", "b0", "b1", "b2", "c0", "c1", "c2"]


def test_that_a_user_gets_no_more_gpus_than_his_jobs_can_use() -> None:
    jobs = [job("a", user="ann"), *(job(f"b{i}", user="bob", max_gpus=1) for i in range(8))]
    assert len(participant_ids(shared(nodes(1, 8), *jobs), {"a": 2})) == 1 + 6
    assert len(participant_ids(shared(nodes(1, 8), *jobs), {"a": 100})) == 1 + 4


def test_that_gpus_of_pinned_jobs_count_for_their_users() -> None:
    held = [job("c", {"n0": 4}, user="carl", pinned=True), job("c1", user="carl", max_gpus=1)]
    jobs = [job(f"{user}{i}", user=user, max_gpus=1) for user in ("a", "b") for i in range(4)]
    assert participant_ids(shared(nodes(1, 8), *held, *jobs)) == ["c", "a0", "a1", "b0", "b1"]


def test_that_one_job_of_each_user_takes_part_even_if_no_gpus_are_left() -> None:
    jobs = [job("a0", user="ann"), job("a1", user="ann", min_gpus=2)]
    jobs += [job(f"b{i}", user=f"user{i}", min_gpus=2) for i in range(4)]
    assert participant_ids(shared(nodes(1, 4), *jobs)) == ["a0", "b0", "b1", "b2", "b3"]


def test_that_a_job_that_waited_for_too_long_comes_before_others_of_its_user() -> None:
    running = [job(f"b{i}", {"n0": 1}, user="bob", max_gpus=1) for i in range(4)]
    big = job("big", user="bob", min_gpus=4, waiting_s=900.0)
    rest = [job("a", {"n1": 4}, user="ann"), big, job("small", user="bob", waiting_s=500.0)]
    assert "big" not in participant_ids(shared(nodes(2), *running, *rest))
    assert "big" in participant_ids(shared(nodes(2), *running, *rest, max_wait_s=600.0))


def test_that_nodes_are_kept_for_each_user_in_turn() -> None:
    hungry = [job(f"b{i}", user="bob", min_gpus=4, waiting_s=2000.0) for i in range(40)]
    one = shared(nodes(4), *hungry, job("a", user="ann", min_gpus=4, waiting_s=1000.0), max_wait_s=600.0)
    served = [kept.job_id for kept in restrict_newcomers(one, one.jobs) if kept.partition_nodes is None]
    assert served == ["b0", "a"]


def test_that_accounts_share_and_jobs_without_one_by_their_users() -> None:
    jobs = [job(f"a{i}", user=f"u{i}", account="vision") for i in range(3)]
    jobs += [job(f"b{i}", user="bob") for i in range(4)]
    one = shared(nodes(1, 12), *jobs, job("c", user="carl", account="speech"), between="accounts")
    held = sizes(decide(one))
    assert [sum(held[f"{name}{i}"] for i in range(num)) for name, num in (("a", 3), ("b", 4))] == [4, 4]
    assert held["c"] == 4


def test_that_a_job_is_bound_by_the_share_that_other_jobs_of_its_user_take_up() -> None:
    ours, theirs = job("a", user="ann"), [job(f"b{i}", user="bob") for i in range(9)]
    found = {one.job_id: one for one in decide(shared(nodes(1, 8), ours, *theirs)).jobs}
    assert found["a"].bound_by == "capacity"
    assert {found[f"b{i}"].bound_by for i in range(9)} == {"share"}
    assert "take up the share" in explanation(found["b8"])
    assert "b8" not in dict(decide(shared(nodes(1, 8), ours, *theirs)).excluded)


def test_that_the_fitness_of_an_answer_counts_the_jobs_that_take_part() -> None:
    jobs = [job("a", user="ann"), *(job(f"b{i}", user="bob") for i in range(20))]
    one = shared(nodes(1, 8), *jobs)
    found = decide(one)
    fitness = fitness_of(one, {given.job_id: given.allocation for given in found.jobs})
    assert fitness == pytest.approx(found.fitness)


def test_that_an_unknown_kind_of_share_is_rejected() -> None:
    with pytest.raises(InvalidProblemError, match="users, accounts, jobs"):
        decide(shared(nodes(1), job("a"), between="friends"))


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@for_all(st.randoms(use_true_random=False), st.sampled_from(sorted(OBJECTIVES)), st.integers(1, 12))
def test_that_no_rule_is_broken_whichever_users_have_the_jobs(
    rng: random.Random, name: str, num_jobs: int
) -> None:
    plain = random_problem(rng, num_nodes=3, num_gpus=4, num_jobs=num_jobs)
    jobs = tuple(
        dataclasses.replace(one, user=rng.choice("abc"), weight=rng.choice([0.1, 1.0, 7.0]))
        for one in plain.jobs
    )
    goal = Objective(name=name, between="users")
    one = dataclasses.replace(plain, jobs=jobs, objective=goal, uneven=False)
    found = {given.job_id: given.allocation for given in decide(one).jobs}
    assert violations(one, found) == []
