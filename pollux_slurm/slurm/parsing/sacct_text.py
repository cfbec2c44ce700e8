"""Jobs from the text of `sacct --parsable2`, whose first line names the columns.

A requeue changes the time of submission, and sacct prints the last run only, unless called with
`--duplicates`; the runs of a job are then added up. Times without a time zone are read as UTC;
`SLURM_TIME_FORMAT=%s` avoids the hour that daylight saving time repeats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pollux_slurm.errors import TraceError
from pollux_slurm.slurm.parsing.gres import accounted_gpus

_REQUIRED = ("Submit", "ElapsedRaw", "AllocTRES")
_NOT_ENDED = {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"}
# States of a run that another run of the same job follows, in sacct --duplicates (22.05.8: REQUEUED).
_FOLLOWED_BY_ANOTHER = {"REQUEUED", "RESIZING", "PREEMPTED", "NODE_FAIL"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SacctJob:
    """One job: the GPUs and the state of its last run that had any, and the GPU time of all its runs.

    `state` is Slurm's word. What the text has no column for is empty, or None. `started_at` is that of the
    first run with GPUs, None for a job that never had any.
    """

    job_id: str
    name: str
    user_name: str
    account: str
    state: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    num_gpus: int
    gpu_s: int

    @property
    def has_ended(self) -> bool:
        return self.state not in _NOT_ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    job_id: str
    name: str
    user_name: str
    account: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    num_gpus: int
    elapsed_s: int
    state: str


def parse_sacct(lines: Iterable[str], *, command: str, required: Sequence[str] = ()) -> tuple[SacctJob, ...]:
    """Return the jobs of sacct's text (`--parsable2`, or `--parsable`), job steps left out.

    Columns JobIDRaw or JobID, Submit, ElapsedRaw, AllocTRES and the `required` must be there; User, Account,
    Start, End and State may be. A JobName, which may contain the delimiter, must be the last column. Raises
    `TraceError` that names the malformed line, or the `command` that writes a missing column.
    """
    runs: list[_Run] = []
    columns: list[str] | None = None
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r\n")
        if not line:
            continue
        if columns is None:
            columns = _columns(line, (*_REQUIRED, *required), command)
            continue
        fields = _fields(line, columns, number)
        if "." in fields["JobID"]:
            continue
        runs.append(_run(fields, number))
    if columns is None:
        raise TraceError("sacct's text is empty: its first line must name the columns (no --noheader)")
    return _whole_jobs(runs)


def parse_delimited(text: str, delimiter: str, columns: Sequence[str]) -> tuple[SacctJob, ...]:
    """Return the jobs of sacct's text without a header, of at least two `columns`, the first a JobIDRaw.

    The `delimiter` is one that nobody can guess. So whatever an owner has written into a name or an account,
    also lines of its own, is neither another column nor another job. Raises `TraceError`.
    """
    runs: list[_Run] = []
    names = ["JobID", *columns[1:]]
    row, *rest = text.split(delimiter, 1)
    values = [row]
    for cell in "".join(rest).split(delimiter) if rest else ():
        if len(values) < len(names) - 1:
            values.append(cell)
            continue
        # A number has no line: what follows the last one is that of the next job.
        last, _, following = cell.rpartition("\n")
        runs.append(_run(dict(zip(names, [*values, last], strict=True)), len(runs) + 1))
        values = [following]
    if values != [""]:
        raise TraceError(f"sacct's text ends within job {values[0][:20]!r}")
    return _whole_jobs(runs)


def _columns(line: str, required: Sequence[str], command: str) -> list[str]:
    columns = line.split("|")
    missing = [name for name in required if name not in columns]
    if not {"JobID", "JobIDRaw"} & set(columns):
        missing.insert(0, "JobIDRaw")
    if missing:
        raise TraceError(f"sacct's text has no column {missing[0]}; write it with: {command}")
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


def _whole_jobs(all_runs: Iterable[_Run]) -> tuple[SacctJob, ...]:
    """Return one job for all its runs."""
    runs: dict[str, list[_Run]] = {}
    for run in all_runs:
        runs.setdefault(run.job_id, []).append(run)
    found, repeated = [], []
    for job_id, own in runs.items():
        *earlier, last = sorted(own, key=lambda run: run.submitted_at)
        if any(run.state not in _FOLLOWED_BY_ANOTHER for run in earlier):
            repeated.append(job_id)
        found.append(
            SacctJob(
                job_id=job_id,
                name=last.name,
                user_name=last.user_name,
                account=last.account,
                state=last.state,
                submitted_at=min(run.submitted_at for run in own),
                started_at=min((run.started_at for run in own if run.started_at), default=None),
                ended_at=last.ended_at,
                # A job that was cancelled in the queue has a last run without GPUs.
                num_gpus=next((run.num_gpus for run in (last, *reversed(earlier)) if run.num_gpus), 0),
                gpu_s=sum(run.num_gpus * run.elapsed_s for run in own),
            )
        )
    if repeated:
        raise TraceError(
            f"{len(repeated)} job ids occur twice in sacct's text, and not as runs of one job, such as "
            f"{repeated[0]}: use -X, one cluster, and a time within which no job id was reused"
        )
    return tuple(found)


def _run(fields: Mapping[str, str], number: int) -> _Run:
    elapsed = fields["ElapsedRaw"]
    if not re.fullmatch(r"[0-9]{1,12}", elapsed):
        raise TraceError(f"line {number} of sacct's text: ElapsedRaw is {elapsed!r}; expected whole seconds")
    num_gpus = accounted_gpus(fields["AllocTRES"]) or 0
    return _Run(
        job_id=fields["JobID"],
        name=fields.get("JobName", ""),
        user_name=fields.get("User", ""),
        account=fields.get("Account", ""),
        submitted_at=_moment(fields["Submit"], "Submit", number),
        started_at=_known_moment(fields.get("Start", ""), "Start", number) if num_gpus else None,
        ended_at=_known_moment(fields.get("End", ""), "End", number),
        num_gpus=num_gpus,
        elapsed_s=int(elapsed),
        state=fields.get("State", "").split(" ")[0],
    )


def _known_moment(text: str, column: str, number: int) -> datetime | None:
    return None if text in ("", "Unknown", "None") else _moment(text, column, number)


def _moment(text: str, column: str, number: int) -> datetime:
    try:
        if re.fullmatch(r"[0-9]{1,12}", text):
            return datetime.fromtimestamp(int(text), timezone.utc)
        when = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise TraceError(
            f"line {number} of sacct's text: {column} is {text!r}; expected 2026-01-31T08:00:00 or alike"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)
