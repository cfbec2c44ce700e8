"""Workloads: which job is submitted when, and what its user would ask for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.tables import number, read_rows, whole

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadJob:
    """One job of a workload. `num_replicas` and `batch_size` are what a user tuned by hand would ask for."""

    name: str
    submitted_s: float
    application: str
    num_replicas: int
    batch_size: int


def read_workload(file: Path, applications: Collection[str]) -> tuple[WorkloadJob, ...]:
    """Return the jobs of a CSV file with the columns name, time (s), application, num_replicas, batch_size.

    Raises `TraceError` for a file that cannot be read, a number that cannot be, an application that is not
    one of `applications`, or two jobs of one name.
    """
    jobs = []
    names: set[str] = set()
    for row in read_rows(file, _COLUMNS):
        if row["application"] not in applications:
            known = ", ".join(sorted(applications))
            raise TraceError(
                f"{file}: job {row['name']}: no traces of application {row['application']!r} "
                f"(there are: {known})"
            )
        if row["name"] in names:
            raise TraceError(f"{file}: two jobs are called {row['name']!r}")
        names.add(row["name"])
        jobs.append(
            WorkloadJob(
                name=row["name"],
                submitted_s=number(file, row, "time"),
                application=row["application"],
                num_replicas=whole(file, row, "num_replicas", low=1),
                batch_size=whole(file, row, "batch_size", low=1),
            )
        )
    if not jobs:
        raise TraceError(f"{file}: no jobs")
    return tuple(jobs)
