"""Workloads: which job is submitted when, and what its user requests."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.csv_tables import number, read_rows, whole
from pollux_slurm.text import some_of

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
_MOST_LISTED = 10
# The least work of a job, in trainings of its application.
_LEAST_WORK = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """One job of a workload. `num_replicas` and `batch_size` are those of a user who tuned the job manually.

    It trains `work` times as long as its application. `account` and `user` are empty where unknown. Its user
    wants it finished by `finish_by_s`, in seconds of the simulation's clock; None for no wish. Under rules
    `slurm`, an adaptive job is submitted with `start_gpus`, and Slurm starts it as soon as a node has that
    many free; 0 leaves the start to the policy.
    """

    name: str
    submitted_s: float
    application: str
    num_replicas: int
    batch_size: int
    account: str = ""
    start_gpus: int = 0
    user: str = ""
    work: float = 1.0
    finish_by_s: float | None = None


def listed(applications: Collection[str]) -> str:
    """Return the names for an error message, at most ten: each measured job is an application."""
    return some_of(sorted(applications), _MOST_LISTED)


def read_workload(file: Path, applications: Collection[str]) -> tuple[WorkloadJob, ...]:
    """Return the jobs of a CSV file with the columns name, time (s), application, num_replicas, batch_size.

    Columns account, user, start_gpus, work and finish_by (s) are optional. Raises `TraceError` for a file
    that cannot be read, an impossible number, an application that is not one of `applications`, or two jobs
    of one name.
    """
    jobs = []
    names: set[str] = set()
    for row in read_rows(file, _COLUMNS):
        if row["application"] not in applications:
            raise TraceError(
                f"{file}: job {row['name']}: no traces of application {row['application']!r} "
                f"(there are: {listed(applications)})"
            )
        if row["name"] in names:
            raise TraceError(f"{file}: two jobs are called {row['name']!r}")
        names.add(row["name"])
        where = f"{file}: job {row['name']}"
        jobs.append(
            WorkloadJob(
                name=row["name"],
                submitted_s=number(where, row, "time"),
                application=row["application"],
                num_replicas=whole(where, row, "num_replicas", low=1),
                batch_size=whole(where, row, "batch_size", low=1),
                account=row.get("account") or "",
                user=row.get("user") or "",
                start_gpus=whole(where, row, "start_gpus") if row.get("start_gpus") else 0,
                work=number(where, row, "work", low=_LEAST_WORK) if row.get("work") else 1.0,
                finish_by_s=number(where, row, "finish_by") if row.get("finish_by") else None,
            )
        )
    if not jobs:
        raise TraceError(f"{file}: no jobs")
    return tuple(jobs)


def read_workloads(
    files: Sequence[Path], applications: Collection[str]
) -> dict[str, tuple[WorkloadJob, ...]]:
    """Return the workloads of several files by their names without folder and ending, in order.

    Raises `TraceError` as `read_workload` does, and for two files of one name.
    """
    found: dict[str, tuple[WorkloadJob, ...]] = {}
    for file in files:
        if file.stem in found:
            raise TraceError(f"{file}: two workloads are called {file.stem!r}; results are named by it")
        found[file.stem] = read_workload(file, applications)
    return found


def workload_text(jobs: Sequence[WorkloadJob]) -> str:
    """Return the CSV text that `read_workload` reads; whole seconds are written without a fraction."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    has = {
        "user": any(job.user for job in jobs),
        "work": any(job.work != 1.0 for job in jobs),
        "finish_by": any(job.finish_by_s is not None for job in jobs),
    }
    optional = [column for column, is_given in has.items() if is_given]
    writer.writerow((*_COLUMNS, "account", *optional))
    for job in jobs:
        at_s = _time(job.submitted_s)
        row = (job.name, at_s, job.application, job.num_replicas, job.batch_size, job.account)
        given = {"user": job.user, "work": f"{job.work:.7g}", "finish_by": _time(job.finish_by_s)}
        writer.writerow((*row, *(given[column] for column in optional)))
    return out.getvalue()


def _time(at_s: float | None) -> float | str:
    if at_s is None:
        return ""
    return int(at_s) if at_s == int(at_s) else at_s
