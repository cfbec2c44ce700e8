"""How many more jobs Slurm's limits on numbers of jobs let a user have: of associations and QOS.

For limits on jobs in the queue (MaxSubmitJobs, GrpSubmitJobs) that is what is left of them: Slurm refuses a
job above one. Limits on jobs that run (MaxJobs, GrpJobs) count whole: above them a job waits until others
have ended. Where both an association and a QOS have a limit, Slurm keeps that of the QOS; here the lower
counts.
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


def least_room(runner: CommandRunner, submitter: Submitter) -> JobRoom | None:
    """Return the room under the limit that leaves the least; None without one, or where none is enforced.

    Raises `SlurmError` where Slurm does not answer.
    """
    settings = _read(runner, "scontrol", "show", "config")
    enforced = re.search(r"^AccountingStorageEnforce\s*=(.*)$", settings, re.MULTILINE)
    words = {word.strip().lower() for word in enforced[1].split(",")} if enforced else set()
    if not words & {"limits", "safe", "all"}:
        return None
    associations = _associations(runner, submitter)
    rooms = [*_of_associations(associations)]
    with contextlib.suppress(SlurmError):  # no sacctmgr here, or no slurmdbd for it
        rooms += _of_qos(runner, submitter, associations)
    return min(rooms, default=None)


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
    match = re.fullmatch(r"(\d+)(?:\((\d+)\))?", value)
    if match is not None:
        used = int(match[2] or 0) if "Submit" in name else 0
        yield JobRoom(max(int(match[1]) - used, 0), f"{name}={match[1]} of {owner}")


def _of_qos(
    runner: CommandRunner, submitter: Submitter, associations: Sequence[_Fields]
) -> Iterator[JobRoom]:
    """Yield the room under the limits of the job's QOS and its partition's."""
    columns = ",".join(("name", *(column for column, _ in _QOS_COLUMNS)))
    text = _read(runner, "sacctmgr", "-n", "-P", "show", "qos", f"format={columns}")
    limits = {name: values for name, *values in (line.split("|") for line in text.splitlines() if line)}
    mine = Counter(_read(runner, "squeue", "--noheader", "--me", "--array", "--Format=QOS:80").split())
    own = submitter.qos or _default_qos(runner, submitter, associations)
    for qos in sorted({own, *_qos_of_partitions(runner, submitter.partitions)} & limits.keys()):
        for (column, name), value in zip(_QOS_COLUMNS, limits[qos], strict=False):
            if value.isdecimal():
                # How many jobs others have is not known here: slurmctld counts them.
                used = mine[qos] if "submit" in column else 0
                yield JobRoom(max(int(value) - used, 0), f"{name}={value} of QOS {qos}")


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


def _qos_of_partitions(runner: CommandRunner, partitions: tuple[str, ...]) -> Iterator[str]:
    text = _read(runner, "scontrol", "--all", "--oneliner", "show", "partition")
    for line in text.splitlines():
        fields = _fields_of(line)
        is_asked = fields.get("PartitionName") in partitions
        if is_asked or (not partitions and fields.get("Default") == "YES"):
            yield fields.get("QoS", "")


def _read(runner: CommandRunner, *command: str) -> str:
    answer = runner.run(*command)
    if answer.exit_code != 0:
        raise SlurmReadError(f"{' '.join(command[:4])} failed: {answer.error_text}")
    return answer.stdout
