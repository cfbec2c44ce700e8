"""Slurm's own GPU limits become limits of the problem."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.daemon.observe.association_limits import (
    REFRESH_S,
    LimitsReader,
    SiteLimits,
    apply_limits,
    are_enforced,
)
from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import GpuLimit, JobState, Problem, ProblemJob
from pollux_slurm.policy import decide
from pollux_slurm.slurm.commands.accounting import Association, QosLimits
from tests.daemon.builders import job, node, record, snapshot

ENFORCED = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageEnforce": "limits,qos"}


def bounded(site: SiteLimits, *jobs: tuple[str, str, str], others: tuple[str, ...] = ()) -> Problem:
    """Return the problem of running managed jobs (user, account, QOS) with two GPUs each.

    Each of `others` is the account of an unmanaged job with one GPU, of user "eve" and QOS "long".
    """
    shown, records = [], []
    for number, (user, account, qos) in enumerate(jobs, start=1):
        found = job(str(number), on={f"n{number}": 2}, user_name=user, account=account)
        shown.append(dataclasses.replace(found, qos=qos))
        records.append(record(str(number), account=account, user_name=user))
    for number, account in enumerate(others, start=100):
        found = job(str(number), on={"n9": 1}, user_name="eve", account=account, comment="")
        shown.append(dataclasses.replace(found, qos="long"))
    seen = snapshot([node(f"n{number}") for number in range(1, 10)], shown)
    picture = cluster_picture.build_picture(seen, records)
    problem = Problem(
        nodes=picture.nodes,
        jobs=tuple(
            ProblemJob(
                job_id=one.slurm.job_id,
                account=one.slurm.account,
                user=one.slurm.user_name,
                current=one.slurm.allocation,
            )
            for one in picture.managed
        ),
    )
    return apply_limits(problem, picture, site)


def limits(problem: Problem) -> dict[tuple[str, str], int]:
    return {(limit.kind, limit.name): limit.max_gpus for limit in problem.limits}


def test_that_the_accounts_below_one_hold_together_to_its_bound() -> None:
    site = SiteLimits(
        associations=(
            Association(account="root"),
            Association(account="lab", parent="root", gpus=6),
            Association(account="vision", parent="lab", gpus=9),
            Association(account="physics", parent="lab", gpus=3),
        )
    )
    jobs = (("ada", "vision", ""), ("bob", "physics", ""), ("cy", "free", ""))
    found = bounded(site, *jobs, others=("lab", "physics"))
    assert limits(found) == {("account", "lab"): 4, ("account", "vision"): 9, ("account", "physics"): 2}
    assert {limit.name: limit.job_ids for limit in found.limits} == {
        "lab": ("1", "2"),
        "vision": ("1",),
        "physics": ("2",),
    }
    given = {one.job_id: one.allocation.num_gpus for one in decide(found).jobs}
    assert given["1"] + given["2"] == 4, "they hold four, and get nothing on top"


def test_that_an_accounts_tree_that_is_a_circle_ends() -> None:
    site = SiteLimits(
        associations=(
            Association(account="a", parent="b", gpus=3),
            Association(account="b", parent="a", gpus=5),
        )
    )
    assert limits(bounded(site, ("ada", "a", ""))) == {("account", "a"): 3, ("account", "b"): 5}


def test_that_what_jobs_beside_ours_hold_is_taken_off() -> None:
    site = SiteLimits(
        associations=(Association(account="vision", gpus=4),),
        qos_limits=(QosLimits(name="long", gpus_per_user=2),),
    )
    found = limits(bounded(site, ("eve", "vision", "long"), others=("vision", "vision", "vision")))
    assert found == {("account", "vision"): 1, ("user", "eve in QOS long"): 0}


def test_that_a_user_is_bounded_in_each_account_on_their_own() -> None:
    site = SiteLimits(
        associations=(
            Association(account="vision", user="ada", gpus=2),
            Association(account="physics", user="ada", gpus=3),
            Association(account="physics", user="ada", partition="main", gpus=1),
            Association(account="physics", user="ada", partition="other", gpus=7),
        )
    )
    found = bounded(site, ("ada", "vision", ""), ("ada", "physics", ""), ("bob", "physics", ""))
    assert limits(found) == {
        ("user", "ada in account vision"): 2,
        ("user", "ada in account physics in partition main"): 1,
    }
    assert [limit.job_ids for limit in found.limits] == [("2",), ("1",)]


def test_that_limits_of_a_qos_override_those_of_accounts() -> None:
    """As on Slurm 22.05.8: an exempt job is not limited, but counts."""
    site = SiteLimits(
        associations=(Association(account="vision", gpus=3, gpus_per_job=1),),
        qos_limits=(QosLimits(name="big", gpus=8, gpus_per_job=4), QosLimits(name="other", gpus_per_user=9)),
    )
    found = bounded(site, ("ada", "vision", "big"), ("bob", "vision", "other"))
    assert limits(found) == {("qos", "big"): 8, ("account", "vision"): 1, ("user", "bob in QOS other"): 9}
    assert next(limit.job_ids for limit in found.limits if limit.kind == "account") == ("2",)


def test_that_the_qos_of_a_partition_comes_first_unless_the_jobs_is_over_it() -> None:
    mine = QosLimits(name="big", gpus=2, gpus_per_job=3)
    partitions = QosLimits(name="pq", gpus=5, gpus_per_job=4)
    site = SiteLimits(qos_limits=(mine, partitions), partitions={"main": "pq"})
    found = bounded(site, ("ada", "vision", "big"))
    assert limits(found) == {("qos", "pq"): 5}
    assert found.jobs[0].max_gpus == 4
    over = dataclasses.replace(site, qos_limits=(dataclasses.replace(mine, over_partition=True), partitions))
    found = bounded(over, ("ada", "vision", "big"))
    assert limits(found) == {("qos", "big"): 2}
    assert found.jobs[0].max_gpus == 3


def test_that_a_qos_bounds_its_jobs_its_users_and_its_accounts() -> None:
    site = SiteLimits(qos_limits=(QosLimits(name="short", gpus=8, gpus_per_user=4, gpus_per_account=5),))
    found = bounded(site, ("ada", "vision", "short"), ("bob", "vision", "normal"))
    assert limits(found) == {
        ("qos", "short"): 8,
        ("user", "ada in QOS short"): 4,
        ("account", "vision in QOS short"): 5,
    }
    assert {limit.job_ids for limit in found.limits} == {("1",)}
    assert [one.qos for one in found.jobs] == ["short", "normal"]


def test_that_one_job_is_capped_but_keeps_what_it_holds() -> None:
    site = SiteLimits(
        associations=(
            Association(account="vision", user="ada", gpus_per_job=3),
            Association(account="vision", user="bob", partition="other", gpus_per_job=1),
        ),
        qos_limits=(QosLimits(name="tiny", gpus_per_job=1),),
    )
    found = bounded(site, ("ada", "vision", ""), ("bob", "vision", ""), ("cy", "vision", "tiny"))
    assert [one.max_gpus for one in found.jobs] == [3, None, 2]


def test_that_a_decision_keeps_to_a_qos() -> None:
    site = SiteLimits(qos_limits=(QosLimits(name="short", gpus=3),))
    problem = bounded(site, ("ada", "vision", "short"), ("bob", "physics", "short"))
    decision = decide(problem)
    assert sum(one.allocation.num_gpus for one in decision.jobs) <= 4, "what they hold stays, no more comes"


def test_that_the_admins_own_limits_hold_as_well() -> None:
    site = SiteLimits(associations=(Association(account="vision", gpus=4),))
    seen = snapshot([node("n1")], [job("1", JobState.PENDING, account="vision")])
    picture = cluster_picture.build_picture(seen, [record("1", account="vision")])
    own = GpuLimit(kind="account", name="vision", max_gpus=2)
    problem = dataclasses.replace(bounded(SiteLimits(), ("ada", "vision", "")), limits=(own,))
    theirs = GpuLimit(kind="account", name="vision", max_gpus=4, job_ids=("1",))
    assert apply_limits(problem, picture, site).limits == (own, theirs)


def test_that_without_limits_a_problem_is_left_as_it_is() -> None:
    problem = bounded(SiteLimits(), ("ada", "vision", ""))
    assert problem.limits == ()
    assert problem.jobs[0].max_gpus is None


@pytest.mark.parametrize(
    ("changes", "enforced"),
    [
        ({}, True),
        ({"AccountingStorageEnforce": "associations,safe"}, True),
        ({"AccountingStorageEnforce": "associations"}, False),
        ({"AccountingStorageEnforce": "none"}, False),
        ({"AccountingStorageType": "accounting_storage/none"}, False),
    ],
)
def test_that_limits_count_where_slurm_enforces_them(changes: dict[str, str], enforced: bool) -> None:
    assert are_enforced({**ENFORCED, **changes}) is enforced


def test_that_limits_are_read_rarely_and_the_last_known_stay() -> None:
    known = SiteLimits(qos_limits=(QosLimits(name="short", gpus=5),))
    answers = iter([known, SlurmReadError("slurmdbd is away"), SiteLimits()])
    now = [100.0]

    def read() -> SiteLimits:
        answer = next(answers)
        if isinstance(answer, SlurmReadError):
            raise answer
        return answer

    reader = LimitsReader(read, monotonic=lambda: now[0])
    assert [reader(), reader()] == [known, known]
    now[0] += REFRESH_S
    assert reader() == known
    now[0] += REFRESH_S
    assert reader() == SiteLimits()
