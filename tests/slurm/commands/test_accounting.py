"""Rights, limits and runs read from sacctmgr and sacct; answers are those of Slurm 22.05.8 with slurmdbd."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.errors import SlurmReadError, SlurmUnavailable, TraceError
from pollux_slurm.model import JobState
from pollux_slurm.slurm.commands.accounting import Accounting, Association, QosLimits, gpus_of
from pollux_slurm.slurm.commands.runner import CommandRunner

ASSOCIATIONS = """\
root|||||
lab|||root|gres/gpu=6|
physics|||lab||gres/gpu:t4=2
physics|daemon|||gres/gpu=2|gres/gpu:t4=2
vision|||lab|cpu=100,gres/gpu=4|
vision|root||||gres/gpu=3
"""
PARTITIONS = """\
PartitionName=main AllowGroups=ALL Default=YES QoS=N/A DefaultTime=NONE Nodes=n[0-1]
PartitionName=gpu AllowGroups=ALL Default=NO QoS=short DefaultTime=NONE Nodes=n2
"""
QOS = """\
normal|||||
short|gres/gpu=5|gres/gpu=2,node=4||mem=8G,gres/gpu=1|DenyOnLimit,OverPartQOS
"""


def accounting(folder: Path, answer: str, *, exit_code: int = 0) -> Accounting:
    """Return an `Accounting` whose sacctmgr records its arguments and prints `answer`."""
    (folder / "answer").write_text(answer)
    command = folder / "sacctmgr"
    command.write_text(f'#!/bin/sh\necho "$@" > {folder}/asked\ncat {folder}/answer\nexit {exit_code}\n')
    command.chmod(0o755)
    return Accounting(CommandRunner(environ={"PATH": "/usr/bin:/bin"}, bin_dir=folder, timeout_s=300.0))


def test_that_associations_are_read_with_their_limits(tmp_path: Path) -> None:
    found = accounting(tmp_path, ASSOCIATIONS).associations("sandbox")
    assert "cluster=sandbox" in (tmp_path / "asked").read_text()
    assert found == (
        Association(account="root"),
        Association(account="lab", parent="root", gpus=6),
        Association(account="physics", parent="lab"),
        Association(account="physics", user="daemon", gpus=2),
        Association(account="vision", parent="lab", gpus=4, other_limits=("cpu",)),
        Association(account="vision", user="root", gpus_per_job=3),
    )


def test_that_qos_are_read_with_their_limits(tmp_path: Path) -> None:
    assert accounting(tmp_path, QOS).qos_limits() == (
        QosLimits(name="normal"),
        QosLimits(
            name="short",
            gpus=5,
            gpus_per_user=2,
            gpus_per_job=1,
            over_partition=True,
            other_limits=("mem", "node"),
        ),
    )


def test_that_partitions_are_read_with_their_qos(tmp_path: Path) -> None:
    asked = accounting(tmp_path, PARTITIONS)
    (tmp_path / "sacctmgr").rename(tmp_path / "scontrol")
    assert asked.partition_qos() == {"gpu": "short"}


def test_that_admin_levels_are_read_and_an_unknown_user_has_none(tmp_path: Path) -> None:
    assert accounting(tmp_path, "Operator\n").admin_level("ada") == "Operator"
    assert "name=ada" in (tmp_path / "asked").read_text()
    assert accounting(tmp_path, "").admin_level("ada") == ""


def test_that_an_unreachable_slurmdbd_and_malformed_rows_are_errors(tmp_path: Path) -> None:
    silent = accounting(tmp_path, "", exit_code=1)
    for ask in (lambda: silent.associations("c"), silent.qos_limits, lambda: silent.admin_level("ada")):
        with pytest.raises(SlurmReadError):
            ask()
    with pytest.raises(SlurmReadError, match="row"):
        accounting(tmp_path, "a|b\n").qos_limits()
    with pytest.raises(SlurmUnavailable, match="no sacctmgr"):
        Accounting(CommandRunner(environ={}, bin_dir=tmp_path / "none")).qos_limits()


def test_that_only_a_limit_on_gpus_of_any_type_counts() -> None:
    assert gpus_of("cpu=8,gres/gpu=4,mem=1G") == 4
    assert gpus_of("gres/gpu:a100=4") is None
    assert gpus_of("") is None
    assert gpus_of("gres/gpu=-1") is None
    assert gpus_of("gres/gpu=0") == 0
    assert gpus_of(f"gres/gpu={'9' * 5000}") is None


RUNS = """\
2|2026-11-22T17:55:38|2026-11-22T17:55:39|2026-11-22T17:55:49|6|REQUEUED|billing=3,cpu=3,gres/gpu=3,node=1|n0
3|2026-11-22T17:55:54|2026-11-22T17:55:59|2026-11-22T17:56:03|4|RESIZING|cpu=5,gres/gpu=5,node=2|n[1-2]
3|2026-11-22T17:56:03|2026-11-22T17:55:59|2026-11-22T17:56:12|13|CANCELLED by 0|cpu=4,gres/gpu=4,node=1|n1
4|2026-11-22T17:56:03|Unknown|Unknown|0|PENDING||None assigned
5|2026-11-22T17:56:04|2026-11-22T17:56:05|Unknown|0|||None assigned
6|2026-11-22T17:56:04|2026-11-22T17:56:05|2026-11-22T17:56:07|2|COMPLETED|cpu=2,gres/gpu:t4=2|n1
"""


def test_that_past_runs_are_read_with_their_elapsed_time(tmp_path: Path) -> None:
    since = datetime(2026, 11, 22, 17, 55, 38, tzinfo=timezone.utc)
    asked = accounting(tmp_path, RUNS)
    (tmp_path / "sacct").symlink_to(tmp_path / "sacctmgr")
    # One without a state is no run of which anything is known.
    requeued, part, rest, waiting, of_one_type = asked.runs(["2", "3", "4"], since=since)
    words = (tmp_path / "asked").read_text()
    assert "--jobs=2,3,4" in words
    assert "--starttime=2026-11-22T17:55:38" in words
    # Suspended for four of its ten seconds.
    assert (requeued.state, requeued.elapsed_s, requeued.num_gpus) == (JobState.PENDING, 6.0, 3)
    assert (part.state, part.elapsed_s, part.nodes) == (None, 4.0, ("n1", "n2"))
    # slurmdbd shows the start of the first part, and counts from there.
    assert (rest.state, rest.started_at, rest.elapsed_s) == (JobState.CANCELLED, part.ended_at, 9.0)
    assert (waiting.started_at, waiting.ended_at, waiting.nodes) == (None, None, ())
    assert of_one_type.num_gpus == 2


@pytest.mark.parametrize(
    ("old", "new", "named"), [("n[1-2]", "n[a-b]", "nodes"), ("|4|", "|nan|", "Elapsed")]
)
def test_that_a_malformed_run_is_an_error(tmp_path: Path, old: str, new: str, named: str) -> None:
    asked = accounting(tmp_path, RUNS.replace(old, new))
    (tmp_path / "sacct").symlink_to(tmp_path / "sacctmgr")
    with pytest.raises(SlurmReadError, match=named):
        asked.runs(["3"], since=datetime(2026, 11, 22, tzinfo=timezone.utc))


ROW = "1@ann@rich@2026-09-02T00:00:00@2026-09-02T00:01:00@Unknown@60@gres/gpu=2@RUNNING@a|b"
# What 22.05 takes as a name, or as an account that it does not check.
FORGED = "x\n" + ROW.replace("@", "|") + "\u2028\x1f\f7|"


def sacct(folder: Path, answer: str) -> Accounting:
    """Return an `Accounting` whose sacct prints `answer`, with the delimiter that it is given for each @."""
    asked = accounting(folder, answer)
    delimiter = "for one; do case $one in --delimiter=*) d=${one#*=};; esac; done"
    (folder / "sacct").write_text(
        f'#!/bin/sh\necho "$@" > {folder}/asked\n{delimiter}\nsed "s/@/$d/g" {folder}/answer\n'
    )
    (folder / "sacct").chmod(0o755)
    return asked


def test_that_jobs_of_a_range_of_time_are_read_whatever_their_owners_have_named_them(tmp_path: Path) -> None:
    since = datetime(2026, 9, 1, tzinfo=timezone.utc)
    rows = [
        ROW,
        ROW.replace("1@", "2@", 1).replace("a|b", FORGED),
        ROW.replace("1@", "3@", 1).replace("rich", FORGED),
    ]
    found = sacct(tmp_path, "".join(f"{row}\n" for row in rows)).jobs(since, since.replace(month=10))
    words = (tmp_path / "asked").read_text()
    assert "--starttime=2026-09-01T00:00:00 --endtime=2026-10-01T00:00:00" in words
    assert words.rstrip().endswith("State,JobName")
    assert [(job.job_id, job.account, job.name, job.num_gpus) for job in found] == [
        ("1", "rich", "a|b", 2),
        ("2", "rich", FORGED, 2),
        ("3", FORGED, "a|b", 2),
    ]
    assert sacct(tmp_path, "").jobs(since, since) == ()
    with pytest.raises(TraceError, match="ends within job"):
        sacct(tmp_path, ROW).jobs(since, since)
    (tmp_path / "sacct").unlink()
    silent = accounting(tmp_path, "", exit_code=1)
    (tmp_path / "sacct").symlink_to(tmp_path / "sacctmgr")
    with pytest.raises(SlurmReadError, match="sacct failed"):
        silent.jobs(since, since)
