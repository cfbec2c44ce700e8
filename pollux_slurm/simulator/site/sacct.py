"""A site's own jobs as a workload, from what Slurm's accounting keeps of them.

    SLURM_TIME_FORMAT=%s sacct -a -X -P --starttime 2026-01-01 --endtime 2026-02-01 \\
        --format=JobIDRaw,Account,Submit,ElapsedRaw,AllocTRES,State

Slurm does not know what a job trained, only how much GPU time it took: each is played by an application of
its class of GPU time (see `generate`). A requeue sets the time of submission anew, and sacct tells the last
run only, unless it is asked for all with `--duplicates`: the runs of a job are then put together. Times
without zone are taken as they stand: `%s` avoids the hour that daylight saving time repeats.
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
# How sacct --duplicates ends a run that another one of the same job follows (22.05.8: REQUEUED).
_FOLLOWED = {"REQUEUED", "RESIZING", "PREEMPTED", "NODE_FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctImport:
    """The jobs of a workload, by submission, and how many rows of sacct are not among them, and why."""

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
    """Return the GPU jobs of `sacct --parsable2` (or `--parsable`) text whose first line names the columns.

    JobIDRaw or JobID, Submit, ElapsedRaw and AllocTRES must be among them; Account and State may; a JobName,
    which may hold the delimiter, only as the last. Job steps are passed over, and so are jobs that have not
    ended, never started or held no GPU. The first submission becomes time 0.

    A job keeps its number of GPUs, down to what was measured of the application that plays it, and gets the
    batch size that trains fastest on them; where a class has two applications, `seed` and the job's number
    draw one. Raises `TraceError` naming the line of text that sacct would not write.
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
    jobs = [_played(row, applications, asked, first_s, seed) for row in rows]
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
    if "JobIDRaw" in columns:  # unique, where JobID names a job of an array by its place
        named = {"JobIDRaw": "JobID", "JobID": ""}
        return [named.get(name, name) for name in columns]
    return columns


def _fields(line: str, columns: list[str], number: int) -> dict[str, str]:
    # A name may hold the delimiter, which sacct does not escape; in the last column it does no harm.
    values = line.split("|", len(columns) - 1 if columns[-1] == "JobName" else -1)
    if len(values) != len(columns):
        raise TraceError(
            f"line {number} of sacct's text has {len(values)} fields, its first line {len(columns)}; "
            "leave JobName out or name it last in --format"
        )
    return dict(zip(columns, values, strict=True))


def _whole_jobs(rows: Iterable[_Row]) -> list[_Row]:
    """Return one row for each job, its runs put together: the GPUs of the last with any, and all GPU time."""
    runs: dict[str, list[_Row]] = {}
    for row in rows:
        runs.setdefault(row.job_id, []).append(row)
    found, repeated = [], []
    for job_id, own in runs.items():
        *earlier, last = sorted(own, key=lambda row: row.submitted_s)
        if any(row.state not in _FOLLOWED for row in earlier):
            repeated.append(job_id)
        gpu_s = sum(row.num_gpus * row.elapsed_s for row in own)
        # One that was cancelled while it waited for its next run held none in that.
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
            f"{len(repeated)} job numbers stand twice in sacct's text, and not as runs of one job, such as "
            f"{repeated[0]}: use -X, and one cluster and a time within which no number was given out anew"
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
    """Return the GPUs of such as `billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1`.

    A site may count all GPUs (`gres/gpu`), each type (`gres/gpu:a100`), or both.
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


def _played(
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
            f"no traces of application {name!r}, which plays jobs like {row.job_id} (there are: {known})"
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
    raise TraceError(f"{application.name}: the traces tell no step time on one GPU")
