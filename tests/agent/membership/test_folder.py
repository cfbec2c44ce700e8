"""The membership in a folder: a plan is withdrawn or committed, never both."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.agent.membership.folder import FolderMembership, MembershipFolder
from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.errors import StoreUnavailable
from tests.waiting import wait_until


def generation(number: int, *ids: str) -> Generation:
    return Generation(number=number, members=tuple(Member(id=one, node="localhost") for one in ids))


def test_that_a_plan_can_be_committed_once_it_is_written(tmp_path: Path) -> None:
    folder, member = MembershipFolder(tmp_path), FolderMembership(tmp_path, "0", joins=None)
    assert member.planned(0) is None
    assert not member.commit(1)
    plan = generation(1, "0", "2")
    folder.write_plan(plan)
    assert wait_until(lambda: member.planned(0), timeout_s=60, what="the plan") == plan
    assert member.committed(1) is None
    assert member.commit(1)
    assert member.committed(1) == replace(plan, meeting=str(tmp_path / "meeting-000001"))
    assert member.planned(1) is None
    assert folder.newest_generation() == 1


def test_that_a_withdrawn_plan_cannot_be_committed_nor_a_committed_one_withdrawn(tmp_path: Path) -> None:
    folder, member = MembershipFolder(tmp_path), FolderMembership(tmp_path, "0", joins=None)
    folder.write_plan(generation(1, "0", "2"))
    assert folder.withdraw(1)
    assert member.is_given_up(1)
    assert member.planned(0) is None
    assert not member.commit(1)
    assert folder.newest_generation() == 0
    # The next plan has another number, so what was said of the first one does not count.
    folder.write_plan(generation(2, "0", "3"))
    planned = wait_until(lambda: member.planned(0), timeout_s=60, what="the next plan")
    assert planned == generation(2, "0", "3")
    assert not member.commit(1)
    assert member.commit(2)
    assert not folder.withdraw(2)
    assert not member.is_given_up(2)
    # Rank 0 asks again where it has not heard the answer.
    assert member.commit(2)


def test_that_it_is_unknown_whether_a_plan_is_committed_where_the_folder_cannot_be_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        FolderMembership(tmp_path / "file", "0", joins=None).commit(1)


def test_that_without_its_folder_nothing_is_planned_and_no_report_fails(tmp_path: Path) -> None:
    folder, member = MembershipFolder(tmp_path / "x"), FolderMembership(tmp_path / "x", "2", joins=1)
    (tmp_path / "x").mkdir()
    folder.write_plan(generation(1, "0", "2"))
    shutil.rmtree(tmp_path / "x")
    assert member.planned(0) is member.committed(1) is None
    assert not member.commit(1)
    member.report_ready()
    member.refuse(1, "no")
    member.report_regrouped(1, standstill_s=0.5)
    assert folder.refusal(1) is folder.standstill_s(1) is None
    assert not folder.is_ready(1, "2")
    assert folder.withdraw(1)


@pytest.mark.parametrize(
    "content", ["[]", "{}", "[" * 100_000, '{"number": Infinity, "members": [], "standstill_s": "x"}']
)
def test_that_a_file_of_another_form_counts_as_none(tmp_path: Path, content: str) -> None:
    folder = MembershipFolder(tmp_path)
    for kind in ("plan", "generation", "regrouped"):
        (tmp_path / f"{kind}-000001.json").write_text(content)
    assert folder.plan_after(0) is folder.committed(1) is folder.standstill_s(1) is None
    (tmp_path / "refused-000001.json").write_text("[]")
    assert folder.refusal(1) is None


def test_that_where_others_may_write_nothing_counts_and_no_report_fails(tmp_path: Path) -> None:
    folder, member = MembershipFolder(tmp_path), FolderMembership(tmp_path, "2", joins=1)
    folder.write_plan(generation(1, "0", "2"))
    assert member.commit(1)
    before = sorted(tmp_path.iterdir())
    tmp_path.chmod(0o777)
    assert folder.plan_after(0) is folder.committed(1) is None
    member.report_ready()
    member.refuse(1, "no")
    member.report_regrouped(1, standstill_s=0.5)
    folder.give_up(1)
    assert sorted(tmp_path.iterdir()) == before


def test_that_what_is_reported_of_one_generation_does_not_count_for_another(tmp_path: Path) -> None:
    folder, member = MembershipFolder(tmp_path), FolderMembership(tmp_path, "2", joins=1)
    member.report_ready()
    member.refuse(1, "it has groups of its own")
    member.report_regrouped(1, standstill_s=0.5)
    assert [folder.is_ready(number, "2") for number in (1, 2)] == [True, False]
    assert [folder.refusal(number) for number in (1, 2)] == ["it has groups of its own", None]
    assert [folder.standstill_s(number) for number in (1, 2)] == [0.5, None]
    member.refuse(0, "it does not ask for it")
    assert folder.refusal(2) == "it does not ask for it"


def test_that_files_of_former_generations_are_deleted_and_no_other(tmp_path: Path) -> None:
    folder = MembershipFolder(tmp_path)
    for name in ("run.json", "ranks", "refused-000000.json"):
        (tmp_path / name).touch()
    for number in (1, 2, 3):
        newcomer = FolderMembership(tmp_path, str(number + 1), joins=number)
        newcomer.report_ready()
        folder.write_plan(generation(number, "0", str(number + 1)))
        (tmp_path / f"meeting-{number:06d}").touch()
        newcomer.refuse(number, "no")
        newcomer.report_regrouped(number, standstill_s=0.5)
        folder.give_up(number)
    folder.forget(before=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "given-up-000003.json",
        "meeting-000003",
        "plan-000003.json",
        "ranks",
        "ready-000003-4",
        "refused-000000.json",
        "refused-000003.json",
        "regrouped-000003.json",
        "run.json",
    ]
