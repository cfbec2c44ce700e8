"""Workload files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator import WorkloadJob, read_workload
from pollux_slurm.simulator.inputs.workload import workload_text

HEAD = "name,time,application,num_replicas,batch_size\n"


def test_that_rows_become_jobs(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEAD + "a,12.5,made,2,8\n")
    (job,) = read_workload(file, {"made"})
    assert job == WorkloadJob(name="a", submitted_s=12.5, application="made", num_replicas=2, batch_size=8)


def test_that_a_row_may_have_account_and_user(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEAD.strip() + ",user,account\na,1,made,1,8,ann,vision\nb,1,made,1,8,,\n")
    jobs = read_workload(file, {"made"})
    assert [(job.user, job.account) for job in jobs] == [("ann", "vision"), ("", "")]
    file.write_text(workload_text(jobs))
    assert read_workload(file, {"made"}) == jobs


def test_that_a_row_may_say_how_much_a_job_trains(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEAD.strip() + ",work\na,1,made,1,8,0.25\nb,1,made,1,8,\n")
    jobs = read_workload(file, {"made"})
    assert [job.work for job in jobs] == [0.25, 1.0]
    file.write_text(workload_text(jobs))
    assert read_workload(file, {"made"}) == jobs
    file.write_text(HEAD.strip() + ",work\na,1,made,1,8,0\n")
    with pytest.raises(TraceError, match="job a: work is '0'; expected a number of 1e-09 or more"):
        read_workload(file, {"made"})


def test_that_a_row_may_have_a_moment(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEAD.strip() + ",finish_by\na,1,made,1,8,90.5\nb,1,made,1,8,\n")
    jobs = read_workload(file, {"made"})
    assert [job.finish_by_s for job in jobs] == [90.5, None]
    file.write_text(workload_text(jobs))
    assert read_workload(file, {"made"}) == jobs


def test_that_an_error_lists_at_most_ten_applications(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_text(HEAD + "a,1,other,1,8\n")
    for count, end in ((10, "name8, name9"), (11, "name8, name9 and 1 more"), (0, "there are: none")):
        names = {f"name{index}" if index < 10 else f"z{index}" for index in range(count)}
        with pytest.raises(TraceError, match=rf"{end}\)$"):
            read_workload(file, names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'name'"),
        (HEAD, "no jobs"),
        (HEAD + "a,1,other,1,8\n", r"job a: no traces of application 'other' \(there are: made\)"),
        (HEAD + "a,1,made,1,8\na,2,made,1,8\n", "two jobs are called 'a'"),
        (HEAD + "a,soon,made,1,8\n", "job a: time is 'soon'"),
        (HEAD + "a,-1,made,1,8\n", "time is '-1'"),
        (HEAD + "a,inf,made,1,8\n", "time is 'inf'"),
        (HEAD + "a,1,made,0,8\n", "job a: num_replicas is '0'"),
        (HEAD.replace(",", ";"), "no column 'name'; .*, not 'name;time;"),
        (HEAD + "a,1,made,1\n", "line 2 is incomplete"),
    ],
)
def test_that_mistakes_are_reported(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "w.csv"
    file.write_text(text)
    with pytest.raises(TraceError, match=message):
        read_workload(file, {"made"})


def test_that_bytes_that_are_not_text_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "w.csv"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not a CSV file"):
        read_workload(file, {"made"})


def test_that_a_workload_may_come_from_a_spreadsheet(tmp_path: Path) -> None:
    """With a byte order mark, and the ends of lines of Windows."""
    file = tmp_path / "w.csv"
    file.write_bytes(b"\xef\xbb\xbf" + (HEAD + "a,1,made,1,8\n").replace("\n", "\r\n").encode())
    assert [job.name for job in read_workload(file, {"made"})] == ["a"]
