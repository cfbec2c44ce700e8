"""What Slurm's accounting database says: who may act for others, how many GPUs who may hold, past runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import AccountedRun
from pollux_slurm.slurm.commands.job_commands import job_number
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.job_json import state_of

LIFTED_BOUNDS = ("cpu", "mem", "node")
"""Bounds that slurmctld does not keep of a job whose CPUs, memory or nodes an operator has set (22.05).

It goes on to keep those on GPUs and other generic resources.
"""
_NO_NODES = ("", "None assigned", "Unknown", "(null)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A user in an account (in a partition, if named), or with no `user` the account itself.

    `gpus` bounds what all its jobs hold together (GrpTRES), `gpus_per_job` each job (MaxTRES, which slurmdbd
    tells with what was inherited from above); None is no bound. `parent` is the account above an account.
    `other_bounds` names what else it bounds, of `LIFTED_BOUNDS`.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    gpus: int | None = None
    gpus_per_job: int | None = None
    other_bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """A QOS with what all its jobs, each user's, each account's, and each one may hold; None is no bound.

    `over_partition`: its bounds go before those of a partition's QOS, else they come after.
    `other_bounds` names what else it bounds, of `LIFTED_BOUNDS`.
    """

    name: str
    gpus: int | None = None
    gpus_per_user: int | None = None
    gpus_per_account: int | None = None
    gpus_per_job: int | None = None
    over_partition: bool = False
    other_bounds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accounting:
    """Questions to slurmdbd through sacctmgr; `runner` finds and bounds it."""

    runner: CommandRunner

    def admin_level(self, user_name: str) -> str:
        """Return a user's AdminLevel: `None`, `Operator` or `Administrator`; empty for an unknown user.

        Raises `SlurmUnavailable` without sacctmgr, `SlurmReadError` when slurmdbd does not answer.
        """
        answer = self.runner.run(
            "sacctmgr", "-n", "-P", "show", "user", f"name={user_name}", "format=adminlevel"
        )
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacctmgr cannot tell the rights of {user_name}: {answer.complaint}")
        return answer.stdout.strip().splitlines()[0].strip() if answer.stdout.strip() else ""

    def associations(self, cluster: str) -> tuple[Association, ...]:
        """Return the associations of a cluster, with what they allow of GPUs. Raises as `admin_level`."""
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
                other_bounds=_lifted(group, job),
            )
            for account, user, partition, parent, group, job in rows
        )

    def qualities(self) -> tuple[Quality, ...]:
        """Return the QOS with what they allow of GPUs. Raises as `admin_level`."""
        columns = ("name", "grptres", "maxtrespu", "maxtrespa", "maxtres", "flags")
        return tuple(
            Quality(
                name=name,
                gpus=gpus_of(group),
                gpus_per_user=gpus_of(user),
                gpus_per_account=gpus_of(account),
                gpus_per_job=gpus_of(job),
                over_partition="overpartqos" in flags.lower().split(","),
                other_bounds=_lifted(group, user, account, job),
            )
            for name, group, user, account, job, flags in self._table(columns, "show", "qos")
        )

    def partition_qualities(self) -> dict[str, str]:
        """Return the QOS of each partition that has one. Raises as `admin_level`."""
        answer = self.runner.run("scontrol", "--all", "--oneliner", "show", "partition")
        if answer.exit_code != 0:
            raise SlurmReadError(f"scontrol show partition failed: {answer.complaint}")
        found = {}
        for line in answer.stdout.splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            if fields.get("QoS", "N/A") not in ("N/A", "(null)", ""):
                found[fields.get("PartitionName", "")] = fields["QoS"]
        return found

    def runs(self, job_ids: Sequence[str], *, since: datetime) -> tuple[AccountedRun, ...]:
        """Return every run of these jobs that began after `since`, by slurmdbd. Raises as `admin_level`.

        slurmctld sends a run's end to slurmdbd within seconds; until then it has none.
        """
        columns = "JobIDRaw,Submit,Start,End,ElapsedRaw,State,AllocTRES,NodeList"
        answer = self.runner.run(
            "sacct", "-D", "-X", "-P", "-n", "--noconvert", "--allusers",
            f"--jobs={','.join(job_number(job_id) for job_id in job_ids)}",
            f"--starttime={since.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%S}",
            f"--format={columns}",
        )  # fmt: skip
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacct failed: {answer.complaint}")
        rows = [line.split("|") for line in answer.stdout.splitlines() if line.strip()]
        odd = next((row for row in rows if len(row) != len(columns.split(","))), None)
        if odd is not None:
            raise SlurmReadError(f"sacct printed a row that is none: {odd}")
        found: list[AccountedRun] = []
        for row in rows:
            found.append(_run_of(row, found))
        return tuple(found)

    def _table(self, columns: tuple[str, ...], *question: str) -> list[list[str]]:
        answer = self.runner.run("sacctmgr", "-n", "-P", *question, f"format={','.join(columns)}")
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacctmgr {' '.join(question)} failed: {answer.complaint}")
        rows = [line.split("|") for line in answer.stdout.splitlines() if line.strip()]
        odd = next((row for row in rows if len(row) != len(columns)), None)
        if odd is not None:
            raise SlurmReadError(f"sacctmgr {' '.join(question)} printed a row that is none: {odd}")
        return rows


def _run_of(row: list[str], before: Sequence[AccountedRun]) -> AccountedRun:
    """Return the run of a row of sacct.

    Where a running job loses GPUs, slurmdbd parts the run: the second part is submitted at that moment, but
    shows the start of the first, and an ElapsedRaw from there (22.05).
    """
    job_id, submitted, started, ended, elapsed, state, tres, nodes = row
    started_at, ended_at, elapsed_s = _time(started), _time(ended), float(elapsed or 0)
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
        num_gpus=gpus_of(tres),
        nodes=() if nodes in _NO_NODES else expanded(nodes),
    )


def _time(text: str) -> datetime | None:
    """Return a time as sacct writes it in the runner's time zone, UTC; None for one that is not known."""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def expanded(nodes: str) -> tuple[str, ...]:
    """Return the names in a list such as `n[0-2,07],login`. Raises `SlurmReadError` for another form."""
    found: list[str] = []
    for item in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)*", nodes):
        names = [""]
        for fixed, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", item):
            parts = [fixed] if fixed else _numbers(ranges, nodes)
            names = [name + part for name in names for part in parts]
        found.extend(names)
    return tuple(found)


def _numbers(ranges: str, nodes: str) -> list[str]:
    numbers: list[str] = []
    for entry in ranges.split(","):
        first, _, last = entry.partition("-")
        if (
            not first.isdecimal()
            or not (last or first).isdecimal()
            or int(last or first) - int(first) > 65_536
        ):
            raise SlurmReadError(f"sacct: cannot make sense of the nodes {nodes[:120]!r}")
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))
    return numbers


def _lifted(*bounds: str) -> tuple[str, ...]:
    named = {entry.partition("=")[0].strip() for tres in bounds for entry in tres.split(",")}
    return tuple(name for name in LIFTED_BOUNDS if name in named)


def gpus_of(tres: str) -> int | None:
    """Return the GPUs, of whatever type, in TRES such as `cpu=8,gres/gpu=4`; None where they have no bound.

    A bound on one type alone (`gres/gpu:a100=4`) is Slurm's to keep.
    """
    for entry in tres.split(","):
        name, _, value = entry.partition("=")
        if name.strip() == "gres/gpu" and value.strip().isdecimal():
            return int(value)
    return None
