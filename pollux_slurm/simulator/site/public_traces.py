"""Read the jobs of clusters whose traces are public, in the form in which they are published.

| form | file | what |
|---|---|---|
| `philly` | `cluster_job_log` | Microsoft's Philly (ATC 2019): JSON; attempts have times and GPUs |
| `helios` | `cluster_log.csv` | SenseTime's Helios (SC 2021): a row for each job of Slurm |
| `pai` | `pai_task_table.csv` | Alibaba's PAI (NSDI 2022): a row for each task, without a header |

Excluded are jobs that used no GPU, and those that have not ended.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pollux_slurm.errors import TraceError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.simulator.inputs.csv_tables import number, read_rows
from pollux_slurm.simulator.site.used_jobs import UsedJob

_HELIOS = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "duration")
_PAI = (
    *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
    *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTrace:
    """The ended jobs with GPUs, and how many were left out."""

    jobs: tuple[UsedJob, ...]
    num_left_out: int


def read_public_trace(
    form: str, file: Path, *, skip_hours: float = 0.0, hours: float = math.inf
) -> PublicTrace:
    """Return the jobs submitted in `hours` after the first `skip_hours`. Raises `TraceError`."""
    if form not in READERS:
        raise TraceError(f"unknown form {form!r} of a trace; there are {', '.join(READERS)}")
    found = READERS[form](file)
    jobs = [job for job in found if job is not None]
    first_s = min((job.submitted_s for job in jobs), default=0.0) + 3600 * skip_hours
    chosen = tuple(job for job in jobs if first_s <= job.submitted_s < first_s + 3600 * hours)
    if not chosen:
        raise TraceError(f"{file}: no ended job with GPUs in this time")
    return PublicTrace(jobs=chosen, num_left_out=len(found) - len(jobs))


def _read_philly(file: Path) -> list[UsedJob | None]:
    try:
        document = parse_json(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TraceError(f"{file}: {error.strerror or error}") from None
    except ValueError as error:
        raise TraceError(f"{file}: not JSON: {error}") from None
    if not isinstance(document, list):
        raise TraceError(f"{file}: expected a list of jobs, as in Philly's cluster_job_log")
    return [_philly_job(file, index, entry) for index, entry in enumerate(document)]


def _philly_job(file: Path, index: int, entry: Any) -> UsedJob | None:
    """Return a job with the GPUs of its last attempt, and the GPU time of all; None while it runs."""
    try:
        where = f"{file}: job {entry['jobid']}"
        attempts = [
            (sum(len(part["gpus"]) for part in attempt["detail"]), attempt["start_time"], attempt["end_time"])
            for attempt in entry["attempts"]
        ]
        submitted, user, account = entry["submitted_time"], str(entry["user"]), str(entry["vc"])
    except (KeyError, TypeError):
        raise TraceError(
            f"{file}: job {index} of the list has no jobid, user, vc, submitted_time, or attempts with "
            "start_time, end_time and detail"
        ) from None
    if not attempts or not attempts[-1][2] or attempts[-1][2] == "None":
        return None
    gpu_s = sum(
        num_gpus * max(_time_s(where, end) - _time_s(where, begin), 0.0)
        for num_gpus, begin, end in attempts
        if begin and end and "None" not in (begin, end)
    )
    if not gpu_s or not attempts[-1][0]:
        return None
    return UsedJob(
        name=str(entry["jobid"]),
        submitted_s=_time_s(where, submitted),
        num_gpus=attempts[-1][0],
        gpu_s=gpu_s,
        account=account,
        user=user,
    )


def _read_helios(file: Path) -> list[UsedJob | None]:
    return [_helios_job(file, row) for row in read_rows(file, _HELIOS)]


def _helios_job(file: Path, row: dict[str, str]) -> UsedJob | None:
    where = f"{file}: job {row['job_id']}"
    num_gpus, duration_s = int(number(where, row, "gpu_num")), number(where, row, "duration")
    if not num_gpus or not duration_s:
        return None
    return UsedJob(
        name=row["job_id"],
        submitted_s=_time_s(where, row["submit_time"]),
        num_gpus=num_gpus,
        gpu_s=num_gpus * duration_s,
        account=row["vc"],
        user=row["user"],
    )


def _read_pai(file: Path) -> list[UsedJob | None]:
    """Return a job for each `job_name`: the GPUs of all its tasks, from the first begin to each one's end.

    Instances ask for parts of a GPU; a job has the whole GPUs into which its parts fit.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.reader(stream) if row and row != list(_PAI)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{file}: not a CSV file ({error})") from None
    tasks: dict[str, list[dict[str, str]]] = {}
    for line, row in enumerate(rows, start=1):
        if len(row) != len(_PAI):
            raise TraceError(f"{file}: line {line} has {len(row)} columns; expected {', '.join(_PAI)}")
        tasks.setdefault(row[0], []).append(dict(zip(_PAI, row, strict=True)))
    return [_pai_job(f"{file}: job {name}", name, of_job) for name, of_job in tasks.items()]


def _pai_job(where: str, name: str, tasks: Sequence[dict[str, str]]) -> UsedJob | None:
    used = [task for task in tasks if task["plan_gpu"] and number(where, task, "plan_gpu")]
    if not used or any(not task["start_time"] or not task["end_time"] for task in used):
        return None
    parts = [number(where, task, "inst_num", low=1) * number(where, task, "plan_gpu") / 100 for task in used]
    begins = [number(where, task, "start_time") for task in used]
    spans_s = [
        max(number(where, task, "end_time") - begin, 0.0) for task, begin in zip(used, begins, strict=True)
    ]
    gpu_s = sum(part * span_s for part, span_s in zip(parts, spans_s, strict=True))
    if not gpu_s:
        return None
    return UsedJob(name=name, submitted_s=min(begins), num_gpus=math.ceil(sum(parts)), gpu_s=gpu_s)


def _time_s(where: str, text: Any) -> float:
    try:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise TraceError(f"{where}: {text!r} is not a time such as 2017-10-07 01:11:39") from None


READERS: Mapping[str, Callable[[Path], list[UsedJob | None]]] = MappingProxyType(
    {"philly": _read_philly, "helios": _read_helios, "pai": _read_pai}
)
