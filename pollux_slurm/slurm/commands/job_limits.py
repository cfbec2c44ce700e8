"""What Slurm's limits leave a user: how many more jobs, and how long a job may last.

Numbers of jobs are limited by associations and QOS, time by these and by partitions.

For limits on jobs in the queue (MaxSubmitJobs, GrpSubmitJobs) that is what is left of them: Slurm refuses a
job above one. Limits on jobs that run (MaxJobs, GrpJobs) count whole: above them a job waits until others
have ended. Where both an association and a QOS have a limit on jobs, Slurm keeps that of the QOS; here the
lower counts.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pollux_slurm.errors import SlurmError, SlurmReadError
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.sbatch.request import time_limit_s
from pollux_slurm.whole_numbers import whole_number

_LIMITS_OF_ACCOUNTS = ("GrpJobs", "GrpSubmitJobs")
_LIMITS = ("MaxJobs", "MaxSubmitJobs", *_LIMITS_OF_ACCOUNTS)
# sacctmgr's columns of a QOS, and what its manual calls them. The first two are of one user.
_QOS_COLUMNS = (
    ("maxjobspu", "MaxJobsPerUser"),
    ("maxsubmitjobspu", "MaxSubmitJobsPerUser"),
    ("maxjobspa", "MaxJobsPerAccount"),
    ("maxsubmitjobspa", "MaxSubmitJobsPerAccount"),
    ("grpjobs", "GrpJobs"),
    ("grpsubmitjobs", "GrpSubmitJobs"),
)
_MAX_DEPTH = 50
_Fields = dict[str, str]


class JobRoom(NamedTuple):
    """So many jobs more, by this limit, such as `MaxJobs=4 of vision`."""

    jobs: int
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Who submits, and with what of these options."""

    user_name: str
    account: str | None = None
    qos: str | None = None
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTimes:
    """The time limits of a partition in seconds, None for none: that of jobs without one, and the highest."""

    name: str
    is_default: bool
    default_s: float | None
    max_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitterLimits:
    """What a submission may have.

    `room` is that under the limit that leaves the least; None without one, or where none is enforced.
    `max_wall_s` is the highest time limit that QOS and association allow, None for any. `partitions` are all.
    """

    room: JobRoom | None = None
    max_wall_s: float | None = None
    partitions: tuple[PartitionTimes, ...] = ()


def read_limits(runner: CommandRunner, submitter: Submitter) -> SubmitterLimits:
    """Return what Slurm's limits leave a submitter. Raises `SlurmError` where Slurm does not answer."""
    text = _read(runner, "scontrol", "--all", "--oneliner", "show", "partition")
    partitions = [_fields_of(line) for line in text.splitlines() if line.startswith("PartitionName=")]
    times = tuple(_times_of(fields) for fields in partitions)
    settings = _read(runner, "scontrol", "show", "config")
    enforced = re.search(r"^AccountingStorageEnforce\s*=(.*)$", settings, re.MULTILINE)
    words = {word.strip().lower() for word in enforced[1].split(",")} if enforced else set()
    if not words & {"limits", "safe", "all"}:
        return SubmitterLimits(partitions=times)
    associations = _associations(runner, submitter)
    rooms = [*_of_associations(associations)]
    # The nearest counts: a user's association has its account's limit, unless it has one of its own.
    walls = [time_limit_s(fields.get("MaxWallPJ")) for fields in associations]
    max_wall_s = next((wall_s for wall_s in walls if wall_s is not None), None)
    with contextlib.suppress(SlurmError):  # no sacctmgr here, or no slurmdbd for it
        of_qos = _qos(runner, submitter, associations, partitions)
        rooms += _of_qos(runner, of_qos)
        walls_of_qos = [time_limit_s(fields.get("maxwall")) for fields in of_qos]
        # Slurm looks at the association's only where no QOS has one.
        max_wall_s = min((wall_s for wall_s in walls_of_qos if wall_s is not None), default=max_wall_s)
    return SubmitterLimits(room=min(rooms, default=None), max_wall_s=max_wall_s, partitions=times)


def _times_of(partition: _Fields) -> PartitionTimes:
    max_s = time_limit_s(partition.get("MaxTime"))
    default = partition.get("DefaultTime", "NONE")
    return PartitionTimes(
        name=partition["PartitionName"],
        is_default=partition.get("Default") == "YES",
        # Without a default, a job without a limit gets the highest.
        default_s=max_s if default == "NONE" else time_limit_s(default),
        max_s=max_s,
    )


def _associations(runner: CommandRunner, submitter: Submitter) -> list[_Fields]:
    """Return the association of the job, if there is one, and those of the accounts above it."""
    text = _read(
        runner, "scontrol", "--oneliner", "show", "assoc_mgr", "flags=assoc", f"users={submitter.user_name}"
    )
    own: dict[str, _Fields] = {}
    accounts: dict[str, _Fields] = {}
    for line in text.splitlines():
        fields = _fields_of(line)
        if "Account" not in fields:
            continue
        account, partition = fields["Account"], fields.get("Partition", "")
        user = _name(fields.get("UserName", ""))
        is_asked = account == submitter.account or (
            submitter.account is None and fields.get("DefAssoc") == "Yes"
        )
        if not user:
            accounts[account] = fields
        elif user == submitter.user_name and is_asked:
            own[partition] = fields
    chosen = next((own[name] for name in (*submitter.partitions, "") if name in own), None)
    found = [] if chosen is None else [chosen]
    above = submitter.account if chosen is None else chosen["Account"]
    while above in accounts and len(found) < _MAX_DEPTH:
        found.append(accounts[above])
        above = _name(accounts[above].get("ParentAccount", ""))
    return found


def _of_associations(associations: Sequence[_Fields]) -> Iterator[JobRoom]:
    for fields in associations:
        user = _name(fields.get("UserName", ""))
        owner = f"{user} in account {fields['Account']}" if user else f"account {fields['Account']}"
        # An account's limits that begin with Max are its users' defaults.
        for name in _LIMITS if user else _LIMITS_OF_ACCOUNTS:
            yield from _room_of(name, fields.get(name, ""), owner)


def _fields_of(line: str) -> _Fields:
    return {name: value for name, _, value in (word.partition("=") for word in line.split())}


def _name(text: str) -> str:
    """Return the name in `name(number)`."""
    return text.partition("(")[0]


def _room_of(name: str, value: str, owner: str) -> Iterator[JobRoom]:
    """Yield the room of a limit as slurmctld writes it: `9(2)` with the number in use, `N(2)` without one."""
    match = re.fullmatch(r"([0-9]{1,20})(?:\(([0-9]{1,20})\))?", value)
    if match is not None:
        used = int(match[2] or 0) if "Submit" in name else 0
        yield JobRoom(max(int(match[1]) - used, 0), f"{name}={match[1]} of {owner}")


def _qos(
    runner: CommandRunner,
    submitter: Submitter,
    associations: Sequence[_Fields],
    partitions: Sequence[_Fields],
) -> list[_Fields]:
    """Return the job's QOS and its partitions', with sacctmgr's columns of each."""
    columns = ("name", *(column for column, _ in _QOS_COLUMNS), "maxwall")
    text = _read(runner, "sacctmgr", "-n", "-P", "show", "qos", f"format={','.join(columns)}")
    own = submitter.qos or _default_qos(runner, submitter, associations)
    of_partitions = {
        fields.get("QoS", "")
        for fields in partitions
        if fields["PartitionName"] in submitter.partitions
        or (not submitter.partitions and fields.get("Default") == "YES")
    }
    found = [dict(zip(columns, line.split("|"), strict=False)) for line in text.splitlines() if line]
    return sorted((one for one in found if one["name"] in {own, *of_partitions}), key=lambda one: one["name"])


def _of_qos(runner: CommandRunner, of_qos: Sequence[_Fields]) -> Iterator[JobRoom]:
    """Yield the room under the limits of QOS."""
    mine = Counter(_read(runner, "squeue", "--noheader", "--me", "--array", "--Format=QOS:80").split())
    for fields in of_qos:
        for column, name in _QOS_COLUMNS:
            if (limit := whole_number(fields.get(column, ""))) is not None:
                # How many jobs others have is not known here: slurmctld counts them.
                used = mine[fields["name"]] if "submit" in column else 0
                yield JobRoom(max(limit - used, 0), f"{name}={limit} of QOS {fields['name']}")


def _default_qos(runner: CommandRunner, submitter: Submitter, associations: Sequence[_Fields]) -> str:
    """Return the QOS of a job whose owner names none."""
    asked = ("show", "assoc", f"user={submitter.user_name}", "format=account,partition,defaultqos")
    text = _read(runner, "sacctmgr", "-n", "-P", *asked)
    own = [(one["Account"], one.get("Partition", "")) for one in associations if one.get("UserName")]
    for line in text.splitlines():
        account, partition, qos = [*line.split("|"), "", "", ""][:3]
        if (account, partition) in own and qos:
            return qos
    return "normal"


def _read(runner: CommandRunner, *command: str) -> str:
    answer = runner.run(*command)
    if answer.exit_code != 0:
        raise SlurmReadError(f"{' '.join(command[:4])} failed: {answer.error_text}")
    return answer.stdout
