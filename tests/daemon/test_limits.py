"""Slurm's own limits on GPUs become limits of the problem."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.daemon import observe
from pollux_slurm.daemon.limits import REFRESH_S, LimitsReader, SiteLimits, applied, are_enforced
from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import GpuLimit, JobState, Problem, ProblemJob
from pollux_slurm.policy import decide
from pollux_slurm.slurm.accounting import Association, Quality
from tests.daemon.builders import job, node, record, snapshot

ENFORCED = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageEnforce": "limits,qos"}


def bounded(site: SiteLimits, *jobs: tuple[str, str, str], others: tuple[str, ...] = ()) -> Problem:
    """Return the problem of running managed jobs (user, account, QOS) with two GPUs each.

    Each of `others` is the account of a neighbour with one GPU, of user "eve" and QOS "long".
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
    picture = observe.picture(seen, records)
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
    return applied(problem, picture, site)


def limits(problem: Problem) -> dict[tuple[str, str], int]:
    return {(limit.kind, limit.name): limit.max_gpus for limit in problem.limits}


def test_that_an_account_has_the_least_bound_of_those_above_it() -> None:
    site = SiteLimits(
        associations=(
            Association(account="root"),
            Association(account="lab", parent="root", gpus=6),
            Association(account="vision", parent="lab", gpus=9),
            Association(account="physics", parent="lab", gpus=3),
        )
    )
    found = limits(bounded(site, ("ada", "vision", ""), ("bob", "physics", ""), ("cy", "free", "")))
    assert found == {("account", "vision"): 6, ("account", "physics"): 3}


def test_that_what_jobs_beside_ours_hold_is_taken_off() -> None:
    site = SiteLimits(
        associations=(Association(account="vision", gpus=4),), qualities=(Quality(name="long", gpus=2),)
    )
    found = limits(bounded(site, ("ada", "vision", "long"), others=("vision", "vision", "vision")))
    assert found == {("account", "vision"): 1, ("qos", "long"): 0}


def test_that_a_user_is_bounded_where_every_account_bounds_them() -> None:
    both = (
        Association(account="vision", user="ada", gpus=2),
        Association(account="physics", user="ada", gpus=3),
    )
    jobs = (("ada", "vision", ""), ("ada", "physics", ""))
    assert limits(bounded(SiteLimits(associations=both), *jobs)) == {("user", "ada"): 5}
    assert limits(bounded(SiteLimits(associations=both[:1]), *jobs)) == {}
    assert limits(bounded(SiteLimits(associations=both), jobs[0])) == {("user", "ada"): 2}


def test_that_a_qos_bounds_its_jobs_its_users_and_its_accounts() -> None:
    site = SiteLimits(qualities=(Quality(name="short", gpus=8, gpus_per_user=4, gpus_per_account=5),))
    found = bounded(site, ("ada", "vision", "short"), ("bob", "vision", "normal"))
    assert limits(found) == {("qos", "short"): 8, ("user", "ada"): 4}
    assert [one.qos for one in found.jobs] == ["short", "normal"]
    alone = limits(bounded(site, ("ada", "vision", "short")))
    assert alone == {("qos", "short"): 8, ("user", "ada"): 4, ("account", "vision"): 5}


def test_that_one_job_is_capped_but_keeps_what_it_holds() -> None:
    site = SiteLimits(
        associations=(
            Association(account="vision", user="ada", gpus_per_job=3),
            Association(account="vision", user="bob", partition="other", gpus_per_job=1),
        ),
        qualities=(Quality(name="tiny", gpus_per_job=1),),
    )
    found = bounded(site, ("ada", "vision", ""), ("bob", "vision", ""), ("cy", "vision", "tiny"))
    assert [one.max_gpus for one in found.jobs] == [3, None, 2]


def test_that_a_decision_keeps_to_a_qos() -> None:
    site = SiteLimits(qualities=(Quality(name="short", gpus=3),))
    problem = bounded(site, ("ada", "vision", "short"), ("bob", "physics", "short"))
    decision = decide(problem)
    assert sum(one.allocation.num_gpus for one in decision.jobs) <= 4, "what they hold stays, no more comes"


def test_that_the_admins_own_limit_holds_where_it_is_less() -> None:
    site = SiteLimits(associations=(Association(account="vision", gpus=4),))
    found = bounded(site, ("ada", "vision", ""))
    seen = snapshot([node("n1")], [job("1", JobState.PENDING, account="vision")])
    picture = observe.picture(seen, [record("1", account="vision")])
    for own, least in ((2, 2), (9, 4)):
        theirs = GpuLimit(kind="account", name="vision", max_gpus=own)
        again = applied(dataclasses.replace(found, limits=(theirs,)), picture, site)
        assert limits(again) == {("account", "vision"): least}


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
    known = SiteLimits(qualities=(Quality(name="short", gpus=5),))
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
