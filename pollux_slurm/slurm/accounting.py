"""What Slurm's accounting database says: who may act for others, and how many GPUs who may hold."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.slurm.runner import CommandRunner


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A user in an account (in a partition, if named), or with no `user` the account itself.

    `gpus` bounds what all its jobs hold together (GrpTRES), `gpus_per_job` each job (MaxTRES, which slurmdbd
    tells with what was inherited from above); None is no bound. `parent` is the account above an account.
    """

    account: str
    user: str = ""
    partition: str = ""
    parent: str = ""
    gpus: int | None = None
    gpus_per_job: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """A QOS with what all its jobs, each user's, each account's, and each one may hold; None is no bound.

    `over_partition`: its bounds go before those of a partition's QOS, else they come after.
    """

    name: str
    gpus: int | None = None
    gpus_per_user: int | None = None
    gpus_per_account: int | None = None
    gpus_per_job: int | None = None
    over_partition: bool = False


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

    def _table(self, columns: tuple[str, ...], *question: str) -> list[list[str]]:
        answer = self.runner.run("sacctmgr", "-n", "-P", *question, f"format={','.join(columns)}")
        if answer.exit_code != 0:
            raise SlurmReadError(f"sacctmgr {' '.join(question)} failed: {answer.complaint}")
        rows = [line.split("|") for line in answer.stdout.splitlines() if line.strip()]
        odd = next((row for row in rows if len(row) != len(columns)), None)
        if odd is not None:
            raise SlurmReadError(f"sacctmgr {' '.join(question)} printed a row that is none: {odd}")
        return rows


def gpus_of(tres: str) -> int | None:
    """Return the GPUs, of whatever type, in TRES such as `cpu=8,gres/gpu=4`; None where they have no bound.

    A bound on one type alone (`gres/gpu:a100=4`) is Slurm's to keep.
    """
    for entry in tres.split(","):
        name, _, value = entry.partition("=")
        if name.strip() == "gres/gpu" and value.strip().isdecimal():
            return int(value)
    return None
