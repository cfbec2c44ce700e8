"""Limits on numbers of jobs and on time; answers are those of Slurm 22.05.8 with slurmdbd."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.slurm.commands.job_limits import (
    JobRoom,
    PartitionTimes,
    Submitter,
    SubmitterLimits,
    read_limits,
)
from pollux_slurm.slurm.commands.runner import CommandRunner

CONFIG = "AccountingStorageEnforce = associations,limits,qos\n"
RECORD = (
    "ClusterName=c Account={account} UserName={user} Partition={partition} Priority=0 ID=3 "
    "SharesRaw/Norm/Level/Factor=1/0.00/1/0.00 ParentAccount={parent} Lft=2 DefAssoc={default} "
    "GrpJobs={grp} GrpJobsAccrue=N(0) GrpSubmitJobs={grp_submit} GrpWall=N(0.00) GrpTRES=cpu=N(1),node=N(1) "
    "MaxJobs={max} MaxJobsAccrue= MaxSubmitJobs={submit} MaxWallPJ={wall}"
)
ANYTHING = {
    "user": "", "partition": "", "parent": "", "default": "No", "grp": "N(0)", "grp_submit": "N(0)",
    "max": "", "submit": "", "wall": "",
}  # fmt: skip


def record(**given: str) -> str:
    return RECORD.format(**{**ANYTHING, **given})


LAB = record(account="lab", parent="root(1)", grp="9(1)", grp_submit="11(3)")
VISION = record(account="vision", parent="lab(3)", submit="1(0)")
ADA = record(account="vision", user="ada(1000)", default="Yes", max="4(1)", submit="7(1)")
QOS = "normal|||||||\nbig|3|5|6|10|8|9|1-00:30:00\n"
PARTITIONS = """\
PartitionName=main Default=YES QoS=N/A DefaultTime=NONE MaxTime=01:00:00
PartitionName=gpu Default=NO QoS=big DefaultTime=00:10:00 MaxTime=UNLIMITED
PartitionName=cpu Default=NO QoS=N/A DefaultTime=NONE MaxTime=UNLIMITED
"""


def limits(
    folder: Path, submitter: Submitter, *records: str, config: str = CONFIG, **answers: str
) -> SubmitterLimits:
    """Return the limits where Slurm answers with these records, QOS and jobs."""
    texts = {
        "config": config,
        "assoc_mgr": "Current Association Manager state\nAssociation Records\n" + "\n".join(records) + "\n",
        "partition": PARTITIONS,
        "qos": QOS,
        "assoc": "vision||\n",
        "squeue": "",
        **answers,
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    for command in ("scontrol", "sacctmgr", "squeue"):
        file = folder / command
        if command != "squeue":
            words = f'for w in "$@"; do case $w in {"|".join(texts)}) exec cat "{folder}/$w";; esac; done\n'
        else:
            (folder / "jobs").write_text(texts["squeue"])
            words = f'cat "{folder}/jobs"\n'
        file.unlink(missing_ok=True)
        file.write_text(f"#!/bin/sh\n{words}")
        file.chmod(0o755)
    runner = CommandRunner(environ={"PATH": "/usr/bin:/bin"}, bin_dir=folder, timeout_s=300.0)
    return read_limits(runner, submitter)


def room(folder: Path, submitter: Submitter, *records: str, **answers: str) -> JobRoom | None:
    return limits(folder, submitter, *records, **answers).room


def test_that_the_limit_that_leaves_least_counts(tmp_path: Path) -> None:
    found = room(tmp_path, Submitter(user_name="ada"), LAB, VISION, ADA)
    assert found == JobRoom(4, "MaxJobs=4 of ada in account vision")


def test_that_jobs_in_the_queue_are_taken_off_limits_on_them_only(tmp_path: Path) -> None:
    full = record(account="vision", user="ada(1000)", default="Yes", max="9(9)", submit="7(5)")
    found = room(tmp_path, Submitter(user_name="ada"), LAB, VISION, full)
    assert found == JobRoom(2, "MaxSubmitJobs=7 of ada in account vision")


def test_that_accounts_above_count(tmp_path: Path) -> None:
    lab = record(account="lab", grp_submit="11(10)")
    assert room(tmp_path, Submitter(user_name="ada"), lab, VISION, ADA) == JobRoom(
        1, "GrpSubmitJobs=11 of account lab"
    )


def test_that_the_account_that_is_named_counts(tmp_path: Path) -> None:
    other = record(account="physics", user="ada(1000)", max="1(0)")
    submitter = Submitter(user_name="ada", account="physics")
    assert room(tmp_path, submitter, LAB, VISION, ADA, other) == JobRoom(
        1, "MaxJobs=1 of ada in account physics"
    )


@pytest.mark.parametrize(
    ("submitter", "assoc"),
    [
        (Submitter(user_name="ada", qos="big"), "vision||\n"),
        (Submitter(user_name="ada"), "physics||normal\nvision||big\n"),
        (Submitter(user_name="ada", partitions=("gpu",)), "vision||\n"),
    ],
)
def test_that_the_jobs_qos_or_its_partitions_counts(tmp_path: Path, submitter: Submitter, assoc: str) -> None:
    found = room(tmp_path, submitter, ADA, assoc=assoc, squeue="big\nbig\nbig\nnormal\n")
    assert found == JobRoom(2, "MaxSubmitJobsPerUser=5 of QOS big")


def test_that_there_are_no_limits_where_none_are_kept(tmp_path: Path) -> None:
    nobody = record(account="vision", user="ada(1000)", default="Yes")
    assert room(tmp_path, Submitter(user_name="ada"), nobody) is None
    associations = "AccountingStorageEnforce = associations\n"
    assert room(tmp_path, Submitter(user_name="ada"), ADA, config=associations) is None


def test_that_the_times_of_partitions_are_read_where_no_limits_are_kept(tmp_path: Path) -> None:
    associations = "AccountingStorageEnforce = associations\n"
    assert limits(tmp_path, Submitter(user_name="ada"), config=associations) == SubmitterLimits(
        partitions=(
            PartitionTimes(name="main", is_default=True, default_s=3600.0, max_s=3600.0),
            PartitionTimes(name="gpu", is_default=False, default_s=600.0, max_s=None),
            PartitionTimes(name="cpu", is_default=False, default_s=None, max_s=None),
        )
    )


@pytest.mark.parametrize(
    ("submitter", "own", "wall_s"),
    [
        (Submitter(user_name="ada"), "90", 5400.0),
        (Submitter(user_name="ada"), "", 7200.0),
        # A QOS's limit counts before an association's, even where it is higher.
        (Submitter(user_name="ada", qos="big"), "90", 88200.0),
        (Submitter(user_name="ada", partitions=("gpu",)), "90", 88200.0),
    ],
)
def test_that_the_highest_time_is_that_of_the_qos_or_the_nearest_association(
    tmp_path: Path, submitter: Submitter, own: str, wall_s: float
) -> None:
    account = record(account="vision", wall="120")
    ada = record(account="vision", user="ada(1000)", default="Yes", wall=own)
    assert limits(tmp_path, submitter, account, ada).max_wall_s == wall_s
