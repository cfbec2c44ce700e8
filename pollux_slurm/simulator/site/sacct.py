"""Make a workload of a site's jobs in Slurm's accounting.

    SLURM_TIME_FORMAT=%s sacct -a -X -P --starttime 2026-01-01 --endtime 2026-02-01 \\
        --format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State

Slurm does not know what a job trained, only its GPU time. So each job is simulated with an application of its
class of GPU time (see `generate`). A requeue changes the time of submission, and sacct prints the last run
only, unless called with `--duplicates`; the runs of a job are then added up. Times without a time zone are
read as UTC; `%s` avoids the hour that daylight saving time repeats.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator.inputs.applications import Application
from pollux_slurm.simulator.inputs.generate import class_of, fastest_batch_size
from pollux_slurm.simulator.inputs.workload import WorkloadJob

_REQUIRED = ("Submit", "ElapsedRaw", "AllocTRES")
_NOT_ENDED = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}
# States of a run that another run of the same job follows, in sacct --duplicates (22.05.8: REQUEUED).
_FOLLOWED_BY_ANOTHER = {"REQUEUED", "RESIZING", "PREEMPTED", "NODE_FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctImport:
    """The jobs of a workload by submission, and the numbers of excluded jobs by reason."""

    jobs: tuple[WorkloadJob, ...]
    num_without_gpus: int
    num_not_ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    job_id: str
    account: str
    submitted_s: float
    num_gpus: int
    elapsed_s: int
    state: str


def import_sacct(
    lines: Iterable[str], applications: Mapping[str, Application], *, seed: int = 0
) -> SacctImport:
    """Parse the GPU jobs of `sacct --parsable2` (or `--parsable`) text whose first line names the columns.

    Columns JobIDRaw or JobID, Submit, ElapsedRaw and AllocTRES are required, Account and State optional. A
    JobName, which may contain the delimiter, must be the last column. Job steps are skipped, and jobs that
    have not ended, never started or had no GPU. The first submission becomes time 0.

    A job keeps its number of GPUs, limited to what was measured of its application, and gets the fastest
    batch size on them. Where a class has two applications, one is drawn with `seed` and the job id. Raises
    `TraceError` that names the malformed line.
    """
    rows: list[_Row] = []
    columns: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r\n")
        if not line:
            continue
        if columns is None:
            columns = _columns(line)
            continue
        fields = _fields(line, columns, number)
        if "." in fields["JobID"]:
            continue
        rows.append(_row(fields, number))
    if columns is None:
        raise TraceError("sacct's text is empty: its first line must name the columns (no --noheader)")
    whole = _whole_jobs(rows)
    num_not_ended = sum(row.state in _NOT_ENDED for row in whole)
    ended = [row for row in whole if row.state not in _NOT_ENDED]
    num_without_gpus = sum(row.num_gpus == 0 or row.elapsed_s == 0 for row in ended)
    rows = [row for row in ended if row.num_gpus and row.elapsed_s]
    if not rows:
        raise TraceError(
            f"no ended job with GPUs in sacct's text ({num_without_gpus} without, {num_not_ended} not "
            "ended): Slurm counts them where slurm.conf has AccountingStorageTRES=gres/gpu"
        )
    first_s = min(row.submitted_s for row in rows)
    asked: dict[tuple[str, int], tuple[int, int]] = {}
    jobs = [_workload_job(row, applications, asked, first_s, seed) for row in rows]
    return SacctImport(
        jobs=tuple(sorted(jobs, key=lambda job: job.submitted_s)),
        num_without_gpus=num_without_gpus,
        num_not_ended=num_not_ended,
    )


def _columns(line: str) -> list[str]:
    columns = line.split("|")
    missing = [name for name in _REQUIRED if name not in columns]
    if not {"JobID", "JobIDRaw"} & set(columns):
        missing.insert(0, "JobIDRaw")
    if missing:
        raise TraceError(
            f"sacct's text has no column {missing[0]}; expected the output of sacct -X -P "
            "--format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State"
        )
    if "JobIDRaw" in columns:  # unique, while JobID names an array task by array and index
        named = {"JobIDRaw": "JobID", "JobID": ""}
        return [named.get(name, name) for name in columns]
    return columns


def _fields(line: str, columns: list[str], number: int) -> dict[str, str]:
    # A name may contain the delimiter, which sacct does not escape; in the last column it does no harm.
    values = line.split("|", len(columns) - 1 if columns[-1] == "JobName" else -1)
    if len(values) != len(columns):
        raise TraceError(
            f"line {number} of sacct's text has {len(values)} fields, its first line {len(columns)}; "
            "leave JobName out or name it last in --format"
        )
    return dict(zip(columns, values, strict=True))


def _whole_jobs(rows: Iterable[_Row]) -> list[_Row]:
    """Return one row for each job: the GPUs of its last run that had any, and the GPU time of all runs."""
    runs: dict[str, list[_Row]] = {}
    for row in rows:
        runs.setdefault(row.job_id, []).append(row)
    found, repeated = [], []
    for job_id, own in runs.items():
        *earlier, last = sorted(own, key=lambda row: row.submitted_s)
        if any(row.state not in _FOLLOWED_BY_ANOTHER for row in earlier):
            repeated.append(job_id)
        gpu_s = sum(row.num_gpus * row.elapsed_s for row in own)
        # A job that was cancelled in the queue has a last run without GPUs.
        num_gpus = next((row.num_gpus for row in (last, *reversed(earlier)) if row.num_gpus), 0)
        found.append(
            dataclasses.replace(
                last,
                submitted_s=min(row.submitted_s for row in own),
                num_gpus=num_gpus,
                elapsed_s=round(gpu_s / num_gpus) if num_gpus else 0,
            )
        )
    if repeated:
        raise TraceError(
            f"{len(repeated)} job ids occur twice in sacct's text, and not as runs of one job, such as "
            f"{repeated[0]}: use -X, one cluster, and a time within which no job id was reused"
        )
    return found


def _row(fields: Mapping[str, str], number: int) -> _Row:
    elapsed = fields["ElapsedRaw"]
    if not re.fullmatch(r"[0-9]{1,12}", elapsed):
        raise TraceError(f"line {number} of sacct's text: ElapsedRaw is {elapsed!r}; expected whole seconds")
    return _Row(
        job_id=fields["JobID"],
        account=fields.get("Account", ""),
        submitted_s=_seconds(fields["Submit"], number),
        num_gpus=_num_gpus(fields["AllocTRES"]),
        elapsed_s=int(elapsed),
        state=fields.get("State", "").split(" ")[0],
    )


def _num_gpus(tres: str) -> int:
    """Return the GPUs in TRES such as `billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1`.

    A site may account for all GPUs (`gres/gpu`), each type (`gres/gpu:a100`), or both.
    """
    counts = re.findall(r"(?:^|,)gres/gpu(:[^=,]+)?=([0-9]{1,9})(?=,|$)", tres)
    total = [int(count) for kind, count in counts if not kind]
    return total[0] if total else sum(int(count) for _, count in counts)


def _seconds(text: str, number: int) -> float:
    if re.fullmatch(r"[0-9]{1,12}", text):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise TraceError(
            f"line {number} of sacct's text: Submit is {text!r}; expected such as 2026-01-31T08:00:00"
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _workload_job(
    row: _Row,
    applications: Mapping[str, Application],
    asked: dict[tuple[str, int], tuple[int, int]],
    first_s: float,
    seed: int,
) -> WorkloadJob:
    names = class_of(row.num_gpus * row.elapsed_s / 3600).applications
    name = names[int(random.Random(f"{seed} {row.job_id}").random() * len(names))]
    if name not in applications:
        known = ", ".join(sorted(applications)) or "none"
        raise TraceError(
            f"no traces of application {name!r}, needed for jobs like {row.job_id} (there are: {known})"
        )
    key = (name, min(row.num_gpus, applications[name].most_gpus))
    if key not in asked:
        asked[key] = _measured_request(applications[name], key[1])
    num_replicas, batch_size = asked[key]
    return WorkloadJob(
        name=row.job_id,
        submitted_s=row.submitted_s - first_s,
        application=name,
        num_replicas=num_replicas,
        batch_size=batch_size,
        account=row.account,
    )


def _measured_request(application: Application, most_gpus: int) -> tuple[int, int]:
    """Return (replicas, fastest batch size) for the most replicas up to `most_gpus` that were measured."""
    for num_replicas in range(most_gpus, 0, -1):
        batch_size = fastest_batch_size(application, num_replicas)
        if batch_size is not None:
            return num_replicas, batch_size
    raise TraceError(f"{application.name}: the traces have no step time on one GPU")
