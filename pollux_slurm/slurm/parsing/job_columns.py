"""Parse squeue's columns of text to a `SlurmJob`: what a read of a long queue can afford between two rounds.

JSON is the complete read, and costs seconds where thousands of jobs wait (22.05: 12,000 jobs are 37 MB).
22.05 has no JSON of some jobs only. Its columns cost a tenth, but lack a running job's GPUs by node. So a row
is read against the job of the last complete read, `known`: a run that this showed keeps its resources. A new
run has the GPUs that it requests, evenly on its nodes; where that may be wrong, `read_row` says so.

The job's owner chooses the Comment, and the account where Slurm does not check that (22.05). So columns and
rows end with words that nobody can guess: no such text can pass for another column, or for another job's row.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.slurm.parsing.gres import count_gpus, parse_gres
from pollux_slurm.slurm.parsing.job_json import HELD_DESCRIPTIONS, memory_mb, parse_job
from pollux_slurm.slurm.parsing.json_fields import LAST_SECOND
from pollux_slurm.slurm.parsing.node_constraints import expand_hosts
from pollux_slurm.whole_numbers import whole_number

_SEPARATOR = "\x1f"
_OF_OWNER = "\N{REPLACEMENT CHARACTER}"
"""Stands for a separator in a text of the job's owner."""

# Column of `squeue --Format` (22.05 to 26.05), and the field of its JSON that it stands for.
_COLUMNS = {
    "JobID": "job_id",
    "ArrayJobID": "array_job_id",
    "ArrayTaskID": "array_task_id",
    "UserName": "user_name",
    "UserID": "user_id",
    "Account": "account",
    "QOS": "qos",
    "Partition": "partition",
    "State": "job_state",
    "Reason": "state_reason",
    "PriorityLong": "priority",
    "Requeue": "requeue",
    "BatchFlag": "batch_flag",
    "RestartCnt": "restart_cnt",
    "SubmitTime": "submit_time",
    "EligibleTime": "eligible_time",
    "StartTime": "start_time",
    "EndTime": "end_time",
    "ResizeTime": "resize_time",
    "TimeLimit": "time_limit",
    "NumNodes": "node_count",
    "NumCPUs": "cpus",
    "NumTasks": "tasks",
    "MinMemory": "min_memory",
    "NodeList": "nodes",
    "ReqNodes": "required_nodes",
    "Feature": "features",
    "tres-per-job": "tres_per_job",
    "tres-per-node": "tres_per_node",
    "tres-per-task": "tres_per_task",
    "tres-per-socket": "tres_per_socket",
    "cpus-per-tres": "cpus_per_tres",
    "mem-per-tres": "memory_per_tres",
    "tres-alloc": "tres_req_str",
    "exit_code": "exit_code",
    "Reservation": "resv_name",
    "HetJobID": "het_job_id",
    "OverSubscribe": "shared",
    "Comment": "comment",
}
_NUMBERS = (
    *("job_id", "array_job_id", "array_task_id", "user_id", "priority", "restart_cnt"),
    *("node_count", "cpus", "tasks", "het_job_id", "exit_code"),
)
_TIMES = ("submit_time", "eligible_time", "start_time", "end_time", "resize_time")
_NOTHING = ("(null)", "N/A", "None assigned")
_TIME_LIMIT = re.compile(r"(?:(?:([0-9]{1,9})-)?([0-9]{1,9}):)?([0-9]{1,9}):([0-9]{1,9})|([0-9]{1,9})")
_BEYOND_CALENDAR = re.compile(r"[0-9]{5,}-")
_CODE_AND_SIGNAL = re.compile(r"(\d{1,3}):(\d{1,3})")
_CHANGING = (
    *("state", "held", "reason", "priority", "restart_count", "comment", "allocation"),
    *("submitted_at", "begins_at", "started_at", "ended_at", "required_nodes"),
)
# What only a complete read shows, and a requeue does not change.
_KEPT = (
    "name",
    "exclusive",
    "unschedulable_reason",
    "memory_per_gpu_mb",
    "memory_by_node",
    "one_thread_per_core",
    "one_node",
    "max_nodes",
    "excluded_nodes",
    "suspended_at",
    "resumed_at",
    "counted_s",
    "deadline_at",
)


def row_format(word: str) -> str:
    """Return the value of `squeue --Format`; `word` is one that no owner's text may contain."""
    *columns, last = _COLUMNS
    return ",".join([*(f"{column}:{_SEPARATOR}{word}" for column in columns), f"{last}:{_end(word)}"])


def split_rows(text: str, word: str) -> Iterator[tuple[str, str]]:
    """Yield (job id, row). Raises `SlurmReadError` for a text that is cut."""
    *rows, rest = text.split(f"{_end(word)}\n")
    if rest:
        raise SlurmReadError(f"squeue: the answer is cut: {rest[-80:]!r}")
    for row in rows:
        # The Comment is the last column: it may stay as it is.
        *cells, comment = row.split(f"{_SEPARATOR}{word}", len(_COLUMNS) - 1)
        cells = [cell.replace(_SEPARATOR, _OF_OWNER) for cell in cells]
        yield row.partition(_SEPARATOR)[0], _SEPARATOR.join((*cells, comment))


def _end(word: str) -> str:
    return f"{_SEPARATOR}end{word}"


def read_row(row: str, known: SlurmJob | None, *, tells_exclusive: bool = True) -> tuple[SlurmJob, bool]:
    """Return the job of a row, and whether its GPUs on each node are certain: else it has no CPUs there.

    Unless its column `tells_exclusive`, only a complete read shows that a new job is.
    """
    fields = _fields(row)
    if not tells_exclusive:
        fields["shared"] = None
    nodes, certain = _add_resources(fields)
    job = parse_job(fields)
    if not certain:
        job = dataclasses.replace(job, cpus_by_node=())
    if known is None or known.user_id != job.user_id:
        return job, certain
    kept = {name: getattr(known, name) for name in _KEPT}
    if job.allocation and _is_same_run(job, known, nodes):
        kept |= {
            name: getattr(known, name)
            for name in ("allocation", "cpus_by_node", "memory_mb_by_node", "requested_gpus", "changes")
        }
        certain = True
    if job.state.is_over or job.state is JobState.COMPLETING:
        kept["last_allocation"] = known.last_allocation or known.allocation
    return dataclasses.replace(job, **kept), certain


def is_as_read(job: SlurmJob, read: SlurmJob) -> bool:
    """Whether a job of a complete read is as a row was read before, so that an equal row adds nothing."""
    return job is read or all(getattr(job, name) == getattr(read, name) for name in _CHANGING)


def _is_same_run(job: SlurmJob, known: SlurmJob, nodes: tuple[str, ...]) -> bool:
    return (
        bool(known.allocation)
        and (job.restart_count, job.started_at) == (known.restart_count, known.started_at)
        and set(nodes) == {name for name, _ in known.cpus_by_node}
    )


def _fields(row: str) -> dict[str, Any]:
    """Return a row as squeue's JSON has the job."""
    cells = row.split(_SEPARATOR, len(_COLUMNS) - 1)
    label = f"squeue: job {cells[0][:20]}"
    if len(cells) != len(_COLUMNS):
        raise SlurmReadError(f"{label}: cannot parse its row: {row[:200]!r}")
    fields: dict[str, Any] = {
        field: "" if cell in _NOTHING else cell for field, cell in zip(_COLUMNS.values(), cells, strict=True)
    }
    # A task that waits on its own, or the array itself: `0-9%2`, and 24.11 writes `[0-9%2]`.
    if fields["array_job_id"] == fields["job_id"] and not fields["array_task_id"]:
        fields["array_job_id"] = ""
    if not fields["array_task_id"].isdecimal():
        fields["array_task_id"] = ""
    # From 24.11 on, code and signal: `7:0`.
    if found := _CODE_AND_SIGNAL.fullmatch(fields["exit_code"]):
        fields["exit_code"] = str(int(found[1]) * 256 + int(found[2]))
    for key in _NUMBERS:
        number = whole_number(fields[key])
        if fields[key] and number is None:
            raise SlurmReadError(f"{label}: cannot parse {key}: {fields[key][:80]!r}")
        fields[key] = number
    for key in _TIMES:
        fields[key] = _time(fields[key])
    fields["job_state"] = fields["job_state"].split(",")
    fields["time_limit"] = _minutes(fields["time_limit"])
    fields["min_memory"] = memory_mb(fields["min_memory"])
    fields["requeue"], fields["batch_flag"] = fields["requeue"] == "1", fields["batch_flag"] == "1"
    if fields["state_reason"] in HELD_DESCRIPTIONS:
        fields["state_description"], fields["state_reason"] = fields["state_reason"], "JobHeldUser"
    # `ReqNodeNotAvail, UnavailableNodes:n0`
    fields["state_reason"] = fields["state_reason"].partition(",")[0]
    fields["shared"] = "exclusive" if fields["shared"] in ("NO", "EXCLUSIVE") else None
    return fields


def _add_resources(fields: dict[str, Any]) -> tuple[tuple[str, ...], bool]:
    """Add what a running job has on each node; return its nodes and whether this is certain."""
    try:
        nodes = expand_hosts(fields["nodes"])
        each = count_gpus(parse_gres(fields["tres_per_node"])).count
        total = count_gpus(parse_gres(fields["tres_per_job"])).count
        of_task = count_gpus(parse_gres(fields["tres_per_task"])).count
    except ValueError:
        nodes, each, total, of_task = (), 0, 0, 0
    if not nodes:
        return (), True
    total = max(total, each * len(nodes), of_task * (fields["tasks"] or 1))
    shares = [total // len(nodes) + (place < total % len(nodes)) for place in range(len(nodes))]
    cpus, count = fields["cpus"] or 0, len(nodes)
    fields["gres_detail"] = [f"gpu:{share}" if share else "" for share in shares] if total else []
    fields["job_resources"] = {
        "nodes": {
            "allocation": [
                {
                    "name": name,
                    "cpus": {
                        "count": cpus * share // total if total else cpus // count + (place < cpus % count)
                    },
                    "memory": {"allocated": 0},
                }
                for place, (name, share) in enumerate(zip(nodes, shares, strict=True))
            ]
        }
    }
    return nodes, len(nodes) == 1 or not total or each * len(nodes) == total


def _time(text: str) -> int | None:
    if not text or not text[0].isdecimal():  # NONE, Unknown
        return None
    if _BEYOND_CALENDAR.match(text):
        return LAST_SECOND
    try:
        # The runner sets TZ=UTC.
        return int(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp())
    except ValueError:
        raise SlurmReadError(f"squeue: cannot parse the time {text[:40]!r}") from None


def _minutes(text: str) -> int | None:
    """Return a time limit in minutes: `2-03:04:00`, `3:04:00`, `4:00`; None for one that is not set."""
    match = _TIME_LIMIT.fullmatch(text)
    if match is None:  # UNLIMITED, NOT_SET
        return None
    days, hours, minutes, _, alone = (int(part or 0) for part in match.groups())
    return 1440 * days + 60 * hours + minutes + alone
