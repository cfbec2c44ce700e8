from __future__ import annotations

import dataclasses
from datetime import datetime, timezone

import pytest

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import Allocation, JobState, SlurmJob
from pollux_slurm.slurm.parsing.job_columns import is_as_read, read_row, row_format, split_rows

WORD = "e4d909c2"
DEADLINE = datetime(2026, 1, 2, tzinfo=timezone.utc)
# As 22.05 prints a job with `--gpus=2` that runs on n3.
RUNNING = {
    **{"JobID": "17", "ArrayJobID": "17", "ArrayTaskID": "N/A", "UserName": "ann", "UserID": "1000"},
    **{"Account": "(null)", "QOS": "(null)", "Partition": "main", "State": "RUNNING", "Reason": "None"},
    **{"PriorityLong": "4294901752", "Requeue": "1", "BatchFlag": "1", "RestartCnt": "1"},
    **{"SubmitTime": "2026-01-01T12:00:00", "EligibleTime": "2026-01-01T12:00:02"},
    **{"StartTime": "2026-01-01T12:00:03", "EndTime": "NONE", "ResizeTime": "N/A", "TimeLimit": "1-00:10:00"},
    **{
        "NumNodes": "1",
        "NumCPUs": "4",
        "NumTasks": "1",
        "MinMemory": "0",
        "NodeList": "n3",
        "ReqNodes": "",
        "Feature": "(null)",
    },
    **{
        "tres-per-job": "gres:gpu:2",
        "tres-per-node": "N/A",
        "tres-per-task": "N/A",
        "tres-per-socket": "N/A",
    },
    **{
        "cpus-per-tres": "gres:gpu:2",
        "mem-per-tres": "gres:gpu:100",
        "tres-alloc": "cpu=4",
        "exit_code": "0",
    },
    **{"Reservation": "(null)", "HetJobID": "N/A", "OverSubscribe": "OK", "Comment": "mine"},
}


def row(**changes: str) -> str:
    names = {
        key.replace("_", "-") if key.startswith("tres") else key: value for key, value in changes.items()
    }
    return "\x1f".join((RUNNING | names).values())


def printed(*rows: str) -> str:
    """Return rows as squeue prints them."""
    return "".join(
        f"{one}\x1fend\n".replace("\x1f", "\x1f" + WORD).replace(f"{WORD}end", f"end{WORD}") for one in rows
    )


def read(known: SlurmJob | None = None, **changes: str) -> SlurmJob:
    return read_row(row(**changes), known)[0]


def test_that_a_row_has_a_jobs_state_times_and_gpus() -> None:
    job = read()
    assert (job.job_id, job.state, job.user_name, job.comment) == ("17", JobState.RUNNING, "ann", "mine")
    assert (job.allocation, job.num_cpus, job.restart_count) == (Allocation.of({"n3": 2}), 4, 1)
    assert job.started_at == datetime(2026, 1, 1, 12, 0, 3, tzinfo=timezone.utc)
    assert (job.time_limit_s, job.unschedulable_reason, job.account) == (87000.0, None, "")


@pytest.mark.parametrize(
    ("shown", "memory_mb"),
    [("682M", 682), ("8G", 8192), ("1.50T", 1536 * 1024), ("0", 0), ("N/A", 0), ("4x", 0)],
)
def test_that_a_waiting_job_has_the_memory_that_it_requests_of_a_node_or_cpu(
    shown: str, memory_mb: int
) -> None:
    assert read(State="PENDING", NodeList="", MinMemory=shown).least_memory_mb == memory_mb
    assert read(MinMemory=shown).least_memory_mb == 0, "Slurm shows it of a running job only now and then"


def test_that_a_waiting_job_has_its_memory_in_all() -> None:
    shown = "cpu=2,mem=8G,node=1,billing=2"
    assert read(State="PENDING", NodeList="", tres_alloc=shown).memory_in_all_mb == 8192
    assert read(State="PENDING", NodeList="", tres_alloc="cpu=2,node=1").memory_in_all_mb == 0
    assert read(tres_alloc=shown).memory_in_all_mb == 0


def test_that_a_requeuehold_is_told_from_a_persons_hold() -> None:
    waiting = {"State": "PENDING", "NodeList": "", "PriorityLong": "0"}
    ours = read(**waiting, Reason="job requeued in held state")
    persons = read(**waiting, Reason="JobHeldUser")
    slurms = read(**waiting, Reason="launch failed requeued held")
    assert [job.held for job in (ours, persons, slurms)] == [True] * 3
    assert [job.held_since_requeue for job in (ours, persons, slurms)] == [True, False, False]
    assert [job.held_by_slurm for job in (ours, persons, slurms)] == [False, False, True]


def test_that_a_run_that_is_known_keeps_its_resources_and_another_has_what_it_requests() -> None:
    two = {"NodeList": "n[0-1]", "NumNodes": "2", "tres_per_job": "gres:gpu:5"}
    known = dataclasses.replace(
        read(**two),
        allocation=Allocation.of({"n0": 4, "n1": 1}),
        name="train",
        unschedulable_reason="it is special",
        one_node=True,
        max_nodes=2,
        deadline_at=DEADLINE,
        cpus_by_node=(("n0", 2), ("n1", 2)),
    )
    job, is_certain = read_row(row(**two, PriorityLong="5"), known)
    assert is_certain
    assert (job.allocation, job.priority) == (known.allocation, 5)
    assert (job.name, job.unschedulable_reason, job.one_node) == ("train", "it is special", True)
    assert job.max_nodes == 2
    assert job.deadline_at == DEADLINE
    guessed, is_certain = read_row(row(**two, RestartCnt="2"), known)
    assert not is_certain
    # Nor is it when it is read once more.
    assert not read_row(row(**two, RestartCnt="2"), guessed)[1]
    even = read_row(row(**two | {"tres_per_job": "gres:gpu:4", "tres_per_node": "gres:gpu:2"}), None)
    assert (even[0].allocation, even[1]) == (Allocation.of({"n0": 2, "n1": 2}), True)


def test_that_an_exit_status_is_as_a_shell_shows_it() -> None:
    over = {"State": "FAILED", "EndTime": "2026-01-01T12:05:00"}
    assert [read(**over, exit_code=code).exit_code for code in ("1792", "9", "0")] == [7, 137, 0]
    assert [read(**over, exit_code=code).exit_code for code in ("7:0", "0:9", "0:0")] == [7, 137, 0]


def test_that_no_means_whole_nodes_only_in_releases_whose_column_tells() -> None:
    """26.05 shows it for every job that may not share its CPUs."""
    for shown, tells, expected in (("NO", True, True), ("NO", False, False), ("OK", True, False)):
        job, _ = read_row(row(OverSubscribe=shown), None, tells_exclusive=tells)
        assert (job.exclusive, job.unschedulable_reason is not None) == (expected, expected)
    known = dataclasses.replace(read(), exclusive=True)
    assert read_row(row(OverSubscribe="NO"), known, tells_exclusive=False)[0].exclusive


def test_that_no_comment_passes_for_another_jobs_row() -> None:
    forged = f"x\n{row(JobID='18')}\n\x1f"
    text = printed(row(Comment="HERE"), row(JobID="19")).replace("HERE", forged)
    rows = dict(split_rows(text, WORD))
    assert list(rows) == ["17", "19"]
    assert read_row(rows["17"], None)[0].comment == forged
    assert row_format(WORD).endswith(f"OverSubscribe:\x1f{WORD},Comment:\x1fend{WORD}")


def test_that_no_account_passes_for_other_columns() -> None:
    """Where no accounting is enforced, 22.05 takes any account."""
    text = printed(row(Account="HERE"), row(JobID="19")).replace("HERE", "\x1frich\n\x1fend\n|")
    rows = dict(split_rows(text, WORD))
    assert list(rows) == ["17", "19"]
    job, _ = read_row(rows["17"], None)
    assert (job.account, job.partition, job.comment) == ("\ufffdrich\n\ufffdend\n|", "main", "mine")


def test_that_no_time_of_an_owners_stops_a_read() -> None:
    """Slurm accepts `--begin=uts999999999999`, which no calendar has."""
    waiting = read(
        State="PENDING",
        NodeList="",
        EligibleTime="33658-09-27T01:46:39",
        StartTime="292277026596-12-04T15:30:07",
    )
    assert waiting.begins_at == waiting.expected_start_at == datetime(9999, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "text",
    [
        row(),
        f"{printed(row())}{row()[:50]}",
        printed("17"),
        printed(row(UserID="x")),
        printed(row(UserID="9" * 5000)),
    ],
)
def test_that_a_cut_or_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(SlurmReadError, match=r"cut|cannot parse"):
        [read_row(one, None) for _, one in split_rows(text, WORD)]


def test_that_a_row_that_was_read_adds_nothing_unless_the_job_was_read_differently_since() -> None:
    job = read()
    assert is_as_read(dataclasses.replace(job, excluded_nodes=("n0",)), job)
    assert not is_as_read(dataclasses.replace(job, comment="other"), job)


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("10:00", 600.0),
        ("2:00:00", 7200.0),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("365-00:00:00", None),
        ("9" * 5000, None),
    ],
)
def test_that_time_limits_are_read(limit: str, seconds: float | None) -> None:
    assert read(TimeLimit=limit).time_limit_s == seconds


def test_that_the_whole_array_is_no_task_of_it() -> None:
    whole = read(State="PENDING", NodeList="", ArrayTaskID="0-9%2")
    assert whole.unschedulable_reason == "it is a job array whose tasks have not been started yet"
    assert read(JobID="18", ArrayTaskID="3").unschedulable_reason is None
