"""GPU limits of Slurm's associations and QOS, added to a problem; `policy/candidates/` keeps within them.

Slurm enforces them whatever the daemon decides: a job above one waits with a reason such as AssocGrpGRES. So
a decision must respect them. Measured on 22.05.8 with a slurmdbd:

- GrpTRES of an account limits its jobs and those of all accounts below it, together.
- GrpTRES or MaxTRES of the job's QOS overrides that of associations. That of the partition's QOS overrides
  both, unless the job's QOS has the flag OverPartQOS.
- A job that is exempt from an overridden limit still counts towards it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pollux_slurm.daemon.observe.cluster_picture import Picture
from pollux_slurm.errors import SlurmError
from pollux_slurm.model import GpuLimit, Problem, ProblemJob, SlurmJob
from pollux_slurm.slurm.commands.accounting import Association, QosLimits

_log = logging.getLogger(__name__)

REFRESH_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLimits:
    """The associations and QOS that limit GPUs; empty where none does.

    `partitions` maps a partition to its QOS, where it has one.
    """

    associations: tuple[Association, ...] = ()
    qos_limits: tuple[QosLimits, ...] = ()
    partitions: Mapping[str, str] = field(default_factory=dict)


class LimitsReader:
    """Reads the site's limits every ten minutes, and keeps the last ones where that fails.

    `read` returns them, or raises `SlurmError`.
    """

    def __init__(self, read: Callable[[], SiteLimits], *, monotonic: Callable[[], float]) -> None:
        self._read, self._monotonic = read, monotonic
        self._limits = SiteLimits()
        self._next = 0.0
        self._asked = False

    def __call__(self) -> SiteLimits:
        now = self._monotonic()
        if not self._asked or now >= self._next:
            self._asked, self._next = True, now + REFRESH_S
            try:
                self._limits = self._read()
            except SlurmError as error:
                _log.warning(
                    "limits of associations and QOS cannot be read, the last ones stay in force: %s", error
                )
        return self._limits


def no_limits() -> SiteLimits:
    """Return no limits: there is no slurmdbd, or it enforces none."""
    return SiteLimits()


def are_enforced(site: Mapping[str, str]) -> bool:
    """Return whether slurmctld's settings `site` make it enforce the limits of slurmdbd."""
    words = {word.strip().lower() for word in site.get("AccountingStorageEnforce", "").split(",")}
    return "slurmdbd" in site.get("AccountingStorageType", "") and bool(words & {"limits", "safe", "all"})


def apply_limits(problem: Problem, picture: Picture, site: SiteLimits) -> Problem:
    """Return the problem with the site's limits, reduced by the GPUs of jobs outside the problem."""
    if not site.associations and not site.qos_limits:
        return problem
    rules = _Rules.of(site)
    adaptive = {job.job_id for job in problem.jobs if not job.rigid}
    managed = {job.slurm.job_id: job.slurm for job in picture.managed}
    jobs = tuple(
        _within(job, managed[job.job_id], rules) if job.job_id in managed else job for job in problem.jobs
    )
    limits = _bounds(picture.snapshot.jobs, adaptive, rules)
    return dataclasses.replace(problem, jobs=jobs, limits=(*problem.limits, *limits))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """A site's limits, looked up by job. An association's key is account, user and partition."""

    associations: Mapping[tuple[str, str, str], Association]
    qos_limits: Mapping[str, QosLimits]
    partitions: Mapping[str, str]

    @classmethod
    def of(cls, site: SiteLimits) -> _Rules:
        return cls(
            associations={(one.account, one.user, one.partition): one for one in site.associations},
            qos_limits={one.name: one for one in site.qos_limits},
            partitions=site.partitions,
        )

    def qos_limits_of(self, job: SlurmJob) -> list[QosLimits]:
        """Return the QOS that apply to a job, the one with precedence first."""
        own = self.qos_limits.get(job.qos)
        partitions = self.qos_limits.get(self.partitions.get(job.partition, ""))
        order = (own, partitions) if own is not None and own.over_partition else (partitions, own)
        return list({one.name: one for one in order if one is not None}.values())

    def associations_of(self, job: SlurmJob) -> list[Association]:
        """Return the association that a job runs under, and those above it."""
        own = (
            self.associations.get((job.account, job.user_name, job.partition))
            or self.associations.get((job.account, job.user_name, ""))
        )  # fmt: skip
        found = [] if own is None else [own]
        account, seen = job.account, set[str]()
        while account not in seen and (above := self.associations.get((account, "", ""))) is not None:
            seen.add(account)
            found.append(above)
            account = above.parent
        return found


def _within(job: ProblemJob, slurm: SlurmJob, rules: _Rules) -> ProblemJob:
    """Return the job with its QOS, and `max_gpus` lowered to the limit per job.

    Never lower than what it owns or needs at least: Slurm allowed that, or gives the reason why not.
    """
    # slurmdbd includes inherited limits in an association, so the first association is enough.
    sources: list[QosLimits | Association] = [*rules.qos_limits_of(slurm), *rules.associations_of(slurm)[:1]]
    caps = [source.gpus_per_job for source in sources if source.gpus_per_job is not None][:1]
    known = [*caps, *([] if job.max_gpus is None else [job.max_gpus])]
    most = max(min(known), job.min_gpus, job.current.num_gpus) if known else None
    return dataclasses.replace(job, qos=slurm.qos, max_gpus=most)


@dataclass(slots=True)
class _Bound:
    """One of Slurm's limits: the adaptive jobs under it, and the GPUs of all other jobs under it."""

    max_gpus: int
    job_ids: list[str] = field(default_factory=list)
    used_by_others: int = 0


def _bounds(jobs: Iterable[SlurmJob], adaptive: Collection[str], rules: _Rules) -> list[GpuLimit]:
    found: dict[tuple[str, str], _Bound] = {}
    for job in jobs:
        for kind, name, most, binds in _limits_of(job, rules):
            bound = found.setdefault((kind, name), _Bound(most))
            if binds and job.job_id in adaptive:
                bound.job_ids.append(job.job_id)
            else:
                bound.used_by_others += job.allocation.num_gpus
    return [
        GpuLimit(
            kind=kind,
            name=name,
            max_gpus=max(bound.max_gpus - bound.used_by_others, 0),
            job_ids=tuple(sorted(bound.job_ids)),
        )
        for (kind, name), bound in sorted(found.items())
        if bound.job_ids
    ]


def _limits_of(job: SlurmJob, rules: _Rules) -> Iterator[tuple[str, str, int, bool]]:
    """Yield each limit that a job counts towards: kind, name, GPUs, and whether it applies to this job."""
    qos_limits = rules.qos_limits_of(job)
    groups = [one for one in qos_limits if one.gpus is not None]
    for one in groups:
        assert one.gpus is not None
        yield "qos", one.name, one.gpus, one is groups[0]
    for kind, who, bounds in (
        ("user", job.user_name, [(one.name, one.gpus_per_user) for one in qos_limits]),
        ("account", job.account, [(one.name, one.gpus_per_account) for one in qos_limits]),
    ):
        known = [(name, most) for name, most in bounds if most is not None]
        for name, most in known:
            yield kind, f"{who} in QOS {name}", most, name == known[0][0]
    for above in rules.associations_of(job):
        if above.gpus is None:
            continue
        where = f" in partition {above.partition}" if above.partition else ""
        kind, name = ("user", f"{above.user} in account {above.account}{where}")
        if not above.user:
            kind, name = "account", above.account
        yield kind, name, above.gpus, not groups
