"""Queries to Slurm's accounting database: admin levels, limits on GPUs, and past runs."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import AccountedRun
from pollux_slurm.slurm.commands.job_commands import job_number
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.gres import accounted_gpus
from pollux_slurm.slurm.parsing.job_json import state_of
from pollux_slurm.slurm.parsing.node_constraints import expand_hosts
from pollux_slurm.slurm.parsing.sacct_text import SacctJob, parse_delimited
from pollux_slurm.whole_numbers import whole_number

LIMITS_LIFTED_BY_UPDATES = ("cpu", "mem", "node")
"""Limits that slurmctld does not enforce for a job whose CPUs, memory or nodes an operator has set (22.05).

Limits on GPUs and other generic resources stay enforced.
"""
JOB_COLUMNS = (
    *("JobIDRaw", "User", "Account", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES", "State"),
    "JobName",  # may contain the delimiter
)
_LONGEST_QUERY_S = 600.0  # a year of a large site
_NO_NODES = ("", "None assigned", "Unknown", "(null)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A user in an account (in a partition, if named), or with no `user` the account itself.

    `gpus` limits the GPUs of all its jobs together (GrpTRES), `gpus_per_job` those of each job (MaxTRES,
    inherited limits included). None is no limit. `parent` is the account above an account.
    `other_limits` names which of `LIMITS_LIFTED_BY_UPDATES` it has.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    gpus: int | None = None
    gpus_per_job: int | None = None
    other_limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QosLimits:
    """A QOS with its limits on GPUs: of all its jobs, of each user, account and job. None is no limit.

    `over_partition`: its limits come before those of a partition's QOS, else after.
    `other_limits` names which of `LIMITS_LIFTED_BY_UPDATES` it has.
    """

    name: str
    gpus: int | None = None
    gpus_per_user: int | None = None
    gpus_per_account: int | None = None
    gpus_per_job: int | None = None
    over_partition: bool = False
    other_limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounting:
    """Queries to slurmdbd through sacctmgr and sacct."""

    runner: CommandRunner

    def admin_level(self, user_name: str) -> str:
        """Return a user's AdminLevel: `None`, `Operator` or `Administrator`; empty for an unknown user.

        Raises `SlurmUnavailable` without sacctmgr, `SlurmReadError` when slurmdbd does not answer.
        """
        answer = self.runner.run(
            "sacctmgr", "-n", "-P", "show", "user", f"name={user_name}", "format=adminlevel"
        )
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacctmgr cannot read the AdminLevel of {user_name}: {answer.error_text}")
        return answer.stdout.strip().splitlines()[0].strip() if answer.stdout.strip() else ""

    def associations(self, cluster: str) -> tuple[Association, ...]:
        """Return the associations of a cluster with their limits on GPUs. Raises as `admin_level`."""
        columns = ("account", "user", "partition", "parentname", "grptres", "maxtres")
        rows = self._table(columns, "show", "assoc", f"cluster={cluster}")
        return tuple(
            Association(
                account=account,
                user=user,
                partition=partition,
                parent=parent,
                gpus=gpus_of(group),
                gpus_per_job=gpus_of(job),
                other_limits=_lifted(group, job),
            )
            for account, user, partition, parent, group, job in rows
        )

    def qos_limits(self) -> tuple[QosLimits, ...]:
        """Return each QOS with its limits on GPUs. Raises as `admin_level`."""
        columns = ("name", "grptres", "maxtrespu", "maxtrespa", "maxtres", "flags")
        return tuple(
            QosLimits(
                name=name,
                gpus=gpus_of(group),
                gpus_per_user=gpus_of(user),
                gpus_per_account=gpus_of(account),
                gpus_per_job=gpus_of(job),
                over_partition="overpartqos" in flags.lower().split(","),
                other_limits=_lifted(group, user, account, job),
            )
            for name, group, user, account, job, flags in self._table(columns, "show", "qos")
        )

    def partition_qos(self) -> dict[str, str]:
        """Return the QOS of each partition that has one. Raises as `admin_level`."""
        answer = self.runner.run("scontrol", "--all", "--oneliner", "show", "partition")
        if answer.exit_code != 0:
            raise SlurmReadError(f"scontrol show partition failed: {answer.error_text}")
        found = {}
        for line in answer.stdout.splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            if fields.get("QoS", "N/A") not in ("N/A", "(null)", ""):
                found[fields.get("PartitionName", "")] = fields["QoS"]
        return found

    def runs(self, job_ids: Sequence[str], *, since: datetime) -> tuple[AccountedRun, ...]:
        """Return every run of these jobs that began after `since`, from slurmdbd. Raises as `admin_level`.

        slurmctld sends a run's end to slurmdbd within seconds; until then `ended_at` is None.
        """
        columns = "JobIDRaw,Submit,Start,End,ElapsedRaw,State,AllocTRES,NodeList"
        answer = self.runner.run(
            "sacct", "-D", "-X", "-P", "-n", "--noconvert", "--allusers",
            f"--jobs={','.join(job_number(job_id) for job_id in job_ids)}",
            f"--starttime={since.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}",
            f"--format={columns}",
        )  # fmt: skip
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacct failed: {answer.error_text}")
        rows = [line.split("|") for line in answer.stdout.splitlines() if line.strip()]
        odd = next((row for row in rows if len(row) != len(columns.split(","))), None)
        if odd is not None:
            raise SlurmReadError(f"sacct printed a row with other columns than asked for: {odd}")
        found: list[AccountedRun] = []
        for row in rows:
            # slurmdbd has rows without a state, of jobs whose end or start it has missed.
            if row[columns.split(",").index("State")].strip():
                found.append(_run_of(row, found))
        return tuple(found)

    def jobs(self, since: datetime, until: datetime) -> tuple[SacctJob, ...]:
        """Return all users' jobs in a range of time. Raises as `admin_level`, and `TraceError`."""
        delimiter = f"\x1f{secrets.token_hex(8)}"
        answer = self.runner.run(
            "sacct", "-D", "-X", "-P", "-n", "--noconvert", "--allusers", f"--delimiter={delimiter}",
            f"--starttime={since.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}",
            f"--endtime={until.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}",
            f"--format={','.join(JOB_COLUMNS)}",
            timeout_s=max(self.runner.timeout_s, _LONGEST_QUERY_S),
        )  # fmt: skip
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacct failed: {answer.error_text}")
        return parse_delimited(answer.stdout, delimiter, JOB_COLUMNS)

    def _table(self, columns: tuple[str, ...], *query: str) -> list[list[str]]:
        answer = self.runner.run("sacctmgr", "-n", "-P", *query, f"format={','.join(columns)}")
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacctmgr {' '.join(query)} failed: {answer.error_text}")
        rows = [line.split("|") for line in answer.stdout.splitlines() if line.strip()]
        odd = next((row for row in rows if len(row) != len(columns)), None)
        if odd is not None:
            raise SlurmReadError(
                f"sacctmgr {' '.join(query)} printed a row that does not have {len(columns)} columns: {odd}"
            )
        return rows


def _run_of(row: list[str], before: Sequence[AccountedRun]) -> AccountedRun:
    """Return the run of a row of sacct.

    When a running job loses GPUs, slurmdbd splits the run. The second part has that moment as its submit
    time, but Start and ElapsedRaw count from the start of the first (22.05).
    """
    job_id, submitted, started, ended, elapsed, state, tres, nodes = row
    started_at, ended_at, counted_s = _time(started), _time(ended), whole_number(elapsed or "0")
    if counted_s is None:
        raise SlurmReadError(f"sacct: job {job_id}: cannot parse ElapsedRaw {elapsed[:40]!r}")
    elapsed_s = float(counted_s)
    words = state.upper().split(maxsplit=1)  # CANCELLED by 1000
    resized_at = next(
        (
            part.ended_at
            for part in reversed(before)
            if part.slurm_job_id == job_id and part.state is None and part.ended_at == _time(submitted)
        ),
        None,
    )
    if resized_at is not None and started_at is not None:
        elapsed_s -= (resized_at - started_at).total_seconds()
        started_at = resized_at
    return AccountedRun(
        slurm_job_id=job_id,
        state=None if words[0] == "RESIZING" else state_of(words[:1], f"sacct: job {job_id}"),
        started_at=started_at,
        ended_at=ended_at,
        elapsed_s=elapsed_s,
        num_gpus=accounted_gpus(tres),
        nodes=_hosts_of(nodes),
    )


def _time(text: str) -> datetime | None:
    """Parse a time of sacct, which runs with UTC as its time zone; None for `Unknown` and the like."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _hosts_of(nodes: str) -> tuple[str, ...]:
    if nodes in _NO_NODES:
        return ()
    try:
        return expand_hosts(nodes)
    except ValueError as error:
        raise SlurmReadError(f"sacct: cannot parse the nodes {nodes[:120]!r}: {error}") from None


def _lifted(*bounds: str) -> tuple[str, ...]:
    named = {entry.partition("=")[0].strip() for tres in bounds for entry in tres.split(",")}
    return tuple(name for name in LIMITS_LIFTED_BY_UPDATES if name in named)


def gpus_of(tres: str) -> int | None:
    """Return the limit on GPUs of any type in TRES such as `cpu=8,gres/gpu=4`; None where it has none.

    Limits on one type alone (`gres/gpu:a100=4`) are ignored here; Slurm enforces them.
    """
    for entry in tres.split(","):
        name, _, value = entry.partition("=")
        if name.strip() == "gres/gpu" and (gpus := whole_number(value.strip())) is not None:
            return gpus
    return None
