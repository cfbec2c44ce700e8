"""Shares with memory: whoever used more than others gets less, until all have used as much."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from pollux_slurm.model import Problem
from pollux_slurm.policy import decide
from pollux_slurm.policy.participation.share_memory import ShareMemory, shares_by_usage
from tests.policy.builders import job, nodes, problem

DAY_S = 86400.0


def held(one: Problem) -> Counter[str]:
    """Return the GPUs of each user in the decision."""
    found: Counter[str] = Counter()
    for asked, given in zip(one.jobs, decide(one).jobs, strict=True):
        found[asked.user] += given.allocation.num_gpus
    return found


def of_users(*jobs: tuple[str, int], **objective: object) -> Problem:
    """Return a problem with a running job for each user and number of GPUs."""
    running = (job(f"{user}{i}", {"n0": gpus}, user=user) for i, (user, gpus) in enumerate(jobs))
    return problem(nodes(2, 8), *running, **{"between": "users", **objective})


def shares_of(one: Problem) -> dict[str, float]:
    return {job.user: job.share for job in one.jobs}


def test_that_shares_are_equal_until_anyone_used_a_gpu() -> None:
    assert shares_by_usage({"ada": 0.0, "bob": 0.0}) == {"ada": 1.0, "bob": 1.0}
    assert shares_by_usage({}) == {}


def test_that_a_newcomer_beside_many_gets_some_shares_and_not_all_gpus() -> None:
    others = dict.fromkeys([f"user{i}" for i in range(19)], 100.0)
    found = shares_by_usage({**others, "new": 0.0})
    # The mean is 95: q is 16/19 for each of the others, and 4 for the newcomer.
    assert found["new"] == pytest.approx(0.25 + 0.75 * 20 * 4 / 20)
    assert found["user0"] == pytest.approx(0.25 + 0.75 * 20 * 16 / 19 / 20)


@for_all(st.dictionaries(st.text(max_size=3), st.floats(0, 1e12), min_size=1, max_size=8))
def test_that_nobody_gets_less_than_a_quarter_of_an_equal_share(usage: dict[str, float]) -> None:
    found = shares_by_usage(usage)
    assert min(found.values()) >= 0.25
    assert sum(found.values()) == pytest.approx(len(usage))
    by_usage = sorted(usage, key=lambda name: usage[name])
    assert [found[name] for name in by_usage] == sorted(found.values(), reverse=True)


def test_that_usage_counts_half_after_each_half_life() -> None:
    memory = ShareMemory(7 * DAY_S)
    memory.with_shares(of_users(("ada", 2), ("bob", 1)), 0.0)
    memory.with_shares(of_users(("ada", 0), ("bob", 0)), 60.0)
    assert memory.usage_of(["ada", "bob"]) == {"ada": 120.0, "bob": 60.0}
    memory.with_shares(of_users(("ada", 0)), 60.0 + 14 * DAY_S)
    assert memory.usage_of(["ada", "bob"]) == pytest.approx({"ada": 30.0, "bob": 15.0})


def test_that_what_was_used_earlier_counts_as_if_it_had_been_seen() -> None:
    seen, told = ShareMemory(DAY_S), ShareMemory(DAY_S, at_s=5 * DAY_S)
    for minute in range(3 * 1440):
        seen.with_shares(of_users(("ada", 4)), 60.0 * minute)
    seen.with_shares(of_users(("ada", 0)), 3 * DAY_S)
    seen.with_shares(of_users(("ada", 0)), 5 * DAY_S)
    told.add("ada", 4 * 3 * DAY_S, since_s=0.0, until_s=3 * DAY_S)
    assert told.usage_of(["ada"])["ada"] == pytest.approx(seen.usage_of(["ada"])["ada"], rel=1e-3)


def test_that_accounts_may_share_and_only_those_with_jobs_count() -> None:
    memory = ShareMemory(7 * DAY_S)
    for user, used in (("x", 120.0), ("bob", 80.0), ("gone", 1e9)):
        memory.add(user, used, since_s=0.0, until_s=0.0)
    one = of_users(("ada", 1), ("bob", 1), between="accounts")
    one = dataclasses.replace(one, jobs=(dataclasses.replace(one.jobs[0], account="x"), one.jobs[1]))
    assert shares_of(memory.with_shares(one, 0.0)) == pytest.approx({"ada": 0.55, "bob": 1.45})
    jobs = of_users(("ada", 1), ("bob", 1), between="jobs")
    assert memory.with_shares(jobs, 0.0) == jobs


def test_that_users_who_used_as_much_have_no_reason_for_their_share() -> None:
    memory = ShareMemory(7 * DAY_S)
    for user in ("ada", "bob"):
        memory.add(user, 100.0, since_s=0.0, until_s=0.0)
    one = of_users(("ada", 1), ("bob", 1))
    assert memory.with_shares(one, 0.0) == one


@pytest.mark.parametrize("counts", [(1, 1), (1, 2), (2, 1), (20, 2)])
def test_that_gpus_are_divided_by_shares_however_many_jobs_a_user_has(counts: tuple[int, int]) -> None:
    ours = [job(f"a{i:02}", user="ada", share=0.5) for i in range(counts[0])]
    theirs = [job(f"b{i:02}", user="bob", share=1.5) for i in range(counts[1])]
    assert held(problem(nodes(1, 16), *ours, *theirs, between="users")) == {"ada": 4, "bob": 12}


@pytest.mark.parametrize("bias", [0.8, 1.0, 1.3])
def test_that_usage_becomes_equal_though_one_gets_more_than_the_share(bias: float) -> None:
    memory, gpus = ShareMemory(7 * DAY_S), {"ada": 8, "bob": 0}
    for hour in range(24 * 28):
        found = memory.with_shares(of_users(*gpus.items()), 3600.0 * hour)
        shares = shares_of(found)
        parts = {"ada": bias * shares["ada"], "bob": shares["bob"]}
        gpus = {user: round(1000 * part / sum(parts.values())) for user, part in parts.items()}
    used = memory.usage_of(["ada", "bob"])
    assert used["ada"] / used["bob"] == pytest.approx(bias ** (1 / 3.25), rel=0.01)


def test_that_a_job_is_bound_by_its_users_share_where_others_have_all_of_that() -> None:
    ours = [job(f"a{i}", user="ada", share=0.5) for i in range(2)]
    theirs = [job(f"b{i}", user="bob", share=1.5) for i in range(2)]
    found = decide(problem(nodes(2, 8), *ours, *theirs, between="users")).jobs
    assert [one.bound_by for one in found] == ["share"] * 4
