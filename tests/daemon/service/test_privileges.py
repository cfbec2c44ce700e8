"""Whose jobs a daemon may move, by its user's rights in Slurm."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.daemon.service.privileges import MayPrioritise, Scope
from pollux_slurm.errors import ConfigError, SlurmReadError, SlurmUnavailable
from pollux_slurm.model import JobTerms
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from tests.daemon.builders import job, node, record, snapshot

SITE = {"SlurmUser": "slurm(64030)", "AccountingStorageType": "accounting_storage/none"}
WITH_DBD = {**SITE, "AccountingStorageType": "accounting_storage/slurmdbd"}


def refuse(_name: str) -> str:
    raise AssertionError("slurmdbd is not to be asked")


def scope(
    wanted: str = "auto", *, user_id: int = 1001, site: Mapping[str, str] = SITE, level: str | None = None
) -> int | None:
    ask = refuse if level is None else lambda _name: level
    return Scope(wanted, user_id=user_id, user_name="ada", settings=lambda: site, admin_level=ask)()


def test_that_root_and_slurm_user_serve_everybody() -> None:
    assert scope(user_id=0) is None
    assert scope(user_id=64030) is None
    assert scope("all", user_id=64030) is None


def test_that_an_ordinary_user_serves_their_own_jobs() -> None:
    assert scope() == 1001
    assert scope(site=WITH_DBD, level="None") == 1001
    assert scope(site=WITH_DBD, level="") == 1001
    assert scope(site={}) == 1001


def test_that_an_operator_serves_everybody() -> None:
    assert scope(site=WITH_DBD, level="Operator") is None
    assert scope("all", site=WITH_DBD, level="Administrator") is None


def test_that_own_is_what_was_asked_for_whatever_the_rights() -> None:
    assert scope("own", user_id=0) == 0
    assert scope("own", user_id=64030) == 64030


def test_that_all_without_the_right_is_an_error_with_the_setting_to_change() -> None:
    with pytest.raises(ConfigError, match=r'ada is none of them.*daemon\.jobs = "own"'):
        scope("all")


def test_that_rights_are_asked_for_again_until_slurm_answers_and_then_no_more() -> None:
    answers = iter([SlurmUnavailable("away"), SITE])

    def settings() -> Mapping[str, str]:
        answer = next(answers)
        if isinstance(answer, SlurmUnavailable):
            raise answer
        return answer

    asked = Scope("auto", user_id=1001, user_name="ada", settings=settings, admin_level=refuse)
    with pytest.raises(SlurmUnavailable):
        asked()
    assert [asked(), asked()] == [1001, 1001]


def test_that_an_unreachable_slurmdbd_is_an_error() -> None:
    def silent(_name: str) -> str:
        raise SlurmReadError("slurmdbd does not answer")

    asked = Scope("auto", user_id=1001, user_name="ada", settings=lambda: WITH_DBD, admin_level=silent)
    with pytest.raises(SlurmReadError):
        asked()


def test_that_others_jobs_are_neither_registered_nor_served() -> None:
    jobs = [
        job(
            name,
            user_id=user_id,
            comment=encode_comment("", JobTerms(token_sha256="a" * 64, user_id=user_id)),
        )
        for name, user_id in (("1", 1001), ("2", 1002))
    ]
    seen = snapshot([node("n0")], jobs)
    assert [one.slurm_job_id for one in cluster_picture.registrations(seen, only_user_id=1001)] == ["1"]
    assert len(cluster_picture.registrations(seen)) == 2
    records = [record("1"), record("2"), record("3")]
    assert [one.slurm_job_id for one in cluster_picture.records_of_user(seen, records, 1001)] == ["1", "3"]
    assert len(cluster_picture.records_of_user(seen, records, None)) == 3


@pytest.mark.parametrize(
    ("served", "parameters", "may"),
    [
        (None, "(null)", True),
        (None, "bf_interval=5,enable_user_topology", True),
        (None, "bf_interval=5,enable_user_top", False),
        (1001, "(null)", False),
    ],
)
def test_that_jobs_go_before_others_where_no_owner_can_hand_that_on(
    served: int | None, parameters: str, may: bool
) -> None:
    answers = iter([SlurmUnavailable("away"), {**SITE, "SchedulerParameters": parameters}])

    def settings() -> Mapping[str, str]:
        answer = next(answers)
        if isinstance(answer, SlurmUnavailable):
            raise answer
        return answer

    may_prioritise = MayPrioritise(lambda: served, settings)
    if served is None:
        with pytest.raises(SlurmUnavailable):
            may_prioritise()
    assert may_prioritise() is may
    assert may_prioritise() is may
