"""Slurm's own limits on GPUs, of associations and QOS, as limits of a scheduling problem.

Slurm keeps them whatever the daemon decides: a job above one waits with a reason such as AssocGrpGRES. They
are read so that GPUs are not decided upon that Slurm would not give. They err on the generous side where a
problem cannot say the same: an account below a bounded one gets that bound, not a share of it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pollux_slurm.daemon.observe import Picture
from pollux_slurm.errors import SlurmError
from pollux_slurm.model import GpuLimit, Problem, ProblemJob, SlurmJob
from pollux_slurm.slurm.accounting import Association, Quality

_log = logging.getLogger(__name__)

REFRESH_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """The associations and QOS that bound GPUs; empty where nothing does."""

    associations: tuple[Association, ...] = ()
    qualities: tuple[Quality, ...] = ()


class LimitsReader:
    """Reads the site's limits once in ten minutes; what cannot be read leaves those last read in force.

    `read` returns them, or raises `SlurmError`.
    """

    def __init__(self, read: Callable[[], SiteLimits], *, monotonic: Callable[[], float]) -> None:
        self._read, self._monotonic = read, monotonic
        self._held = SiteLimits()
        self._next = 0.0
        self._asked = False

    def __call__(self) -> SiteLimits:
        now = self._monotonic()
        if not self._asked or now >= self._next:
            self._asked, self._next = True, now + REFRESH_S
            try:
                self._held = self._read()
            except SlurmError as error:
                _log.warning("limits of associations and QOS cannot be read, those known stay: %s", error)
        return self._held


def no_limits() -> SiteLimits:
    """Bound nothing: there is no slurmdbd, or it enforces no limits."""
    return SiteLimits()


def are_enforced(site: Mapping[str, str]) -> bool:
    """Return whether slurmctld, by its settings, holds jobs to the limits of slurmdbd."""
    words = {word.strip().lower() for word in site.get("AccountingStorageEnforce", "").split(",")}
    return "slurmdbd" in site.get("AccountingStorageType", "") and bool(words & {"limits", "safe", "all"})


def applied(problem: Problem, picture: Picture, site: SiteLimits) -> Problem:
    """Return the problem with the site's limits in it, less what jobs hold that take no part in it."""
    if not site.associations and not site.qualities:
        return problem
    ours = {job.job_id for job in problem.jobs if not job.rigid}
    qos = {job.slurm.job_id: job.slurm.qos for job in picture.managed}
    partition = {job.slurm.job_id: job.slurm.partition for job in picture.managed}
    jobs = tuple(
        job
        if job.job_id not in qos
        else _within(job, site, qos=qos[job.job_id], partition=partition[job.job_id])
        for job in problem.jobs
    )
    others = [job for job in picture.snapshot.jobs if job.job_id not in ours]
    found = [*problem.limits, *_bounds(jobs, site, others)]
    least: dict[tuple[str, str], int] = {}
    for limit in found:
        key = (limit.kind, limit.name)
        least[key] = min(least.get(key, limit.max_gpus), limit.max_gpus)
    limits = tuple(
        GpuLimit(kind=kind, name=name, max_gpus=most) for (kind, name), most in sorted(least.items())
    )
    return dataclasses.replace(problem, jobs=jobs, limits=limits)


def _within(job: ProblemJob, site: SiteLimits, *, qos: str, partition: str) -> ProblemJob:
    """Return the job with its QOS, and no more GPUs at most than one job of its kind may have.

    What it holds, or asks for at least, is not taken from it: Slurm has allowed it, or says why not.
    """
    caps = [quality.gpus_per_job for quality in site.qualities if quality.name == qos]
    caps += [
        one.gpus_per_job
        for one in site.associations
        if (one.account, one.user) == (job.account, job.user) and one.partition in ("", partition)
    ]
    known = [cap for cap in (*caps, job.max_gpus) if cap is not None]
    most = max(min(known), job.min_gpus, job.current.num_gpus) if known else None
    return dataclasses.replace(job, qos=qos, max_gpus=most)


def _bounds(jobs: Iterable[ProblemJob], site: SiteLimits, others: Iterable[SlurmJob]) -> Iterable[GpuLimit]:
    jobs = [job for job in jobs if not job.rigid]
    held: defaultdict[tuple[str, str], int] = defaultdict(int)
    for job in others:
        gpus = job.allocation.num_gpus
        for kind, name in (("account", job.account), ("user", job.user_name), ("qos", job.qos)):
            held[kind, name] += gpus

    def bound(kind: str, name: str, most: int | None) -> Iterable[GpuLimit]:
        if most is not None:
            yield GpuLimit(kind=kind, name=name, max_gpus=max(most - held[kind, name], 0))

    accounts = _account_bounds(site.associations)
    for account in sorted({job.account for job in jobs}):
        yield from bound("account", account, accounts.get(account))
    qualities = {quality.name: quality for quality in site.qualities}
    for name in sorted({job.qos for job in jobs}):
        yield from bound("qos", name, qualities[name].gpus if name in qualities else None)
    for user in sorted({job.user for job in jobs}):
        mine = [job for job in jobs if job.user == user]
        in_accounts = {
            one.account: one.gpus for one in site.associations if one.user == user and not one.partition
        }
        yield from bound("user", user, _sum(in_accounts.get(name) for name in {job.account for job in mine}))
        per_user = {name: quality.gpus_per_user for name, quality in qualities.items()}
        yield from bound("user", user, _sum(per_user.get(name) for name in {job.qos for job in mine}))
    for account in sorted({job.account for job in jobs}):
        per_account = {name: quality.gpus_per_account for name, quality in qualities.items()}
        used = {job.qos for job in jobs if job.account == account}
        yield from bound("account", account, _sum(per_account.get(name) for name in used))


def _sum(bounds: Iterable[int | None]) -> int | None:
    """Return what several bounds allow together, None where one of them is none."""
    total = 0
    for one in bounds:
        if one is None:
            return None
        total += one
    return total


def _account_bounds(associations: Iterable[Association]) -> dict[str, int]:
    """Return the least bound on each account: its own, or that of an account above it."""
    rows = {one.account: one for one in associations if not one.user and not one.partition}
    found: dict[str, int] = {}
    for account in rows:
        above, seen = account, set()
        while above in rows and above not in seen:
            seen.add(above)
            gpus = rows[above].gpus
            if gpus is not None:
                found[account] = min(found.get(account, gpus), gpus)
            above = rows[above].parent
    return found
