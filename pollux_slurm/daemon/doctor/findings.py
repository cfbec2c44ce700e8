"""Find problems of a site, and how to fix them. Pure: the caller has read Slurm and the store."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.config import Config
from pollux_slurm.daemon.observe.association_limits import SiteLimits
from pollux_slurm.daemon.service.privileges import users_may_reorder
from pollux_slurm.model import ClusterSnapshot, JobState, SlurmJob, SlurmNode
from pollux_slurm.now.daemon_text import daemon_absence_text, is_silent
from pollux_slurm.now.jobs import JobNow, jobs_left_held
from pollux_slurm.now.known_jobs import is_recorded_job
from pollux_slurm.slurm.parsing.node_json import SEVERAL_GPU_TYPES
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment
from pollux_slurm.store.contract.interface import DaemonStatus, JobRecord
from pollux_slurm.text import plural, some_of
from pollux_slurm.whole_numbers import whole_number

_OLDEST_RELEASE, _NEWEST_RELEASE = (22, 5), (26, 5)
# What Slurm needs in addition to KillWait to requeue a job.
_REQUEUE_MARGIN_S = 15.0
_MOST_SKEW_S = 2.0
_MAX_NAMED = 5


class Verdict(enum.Enum):
    """The severity of a finding. `FAIL` prevents jobs from being moved safely or at all."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. `cure` is what to do, empty where nothing is wrong."""

    name: str
    verdict: Verdict
    text: str
    cure: str = ""


def examine_slurm(
    config: Config,
    *,
    version: str,
    site: Mapping[str, str],
    snapshot: ClusterSnapshot,
    clock_skew_s: float,
    seen: DaemonStatus | None = None,
) -> Iterator[Finding]:
    """Check Slurm's release, `site` (its settings by name), nodes and clock.

    The interval of a running daemon (`seen`) takes precedence over that of `config`.
    """
    yield _release(version)
    yield from _settings(config, site, None if seen is None else seen.interval_s)
    yield from _nodes(config, snapshot)
    differ = abs(clock_skew_s) > _MOST_SKEW_S
    yield Finding(
        name="clocks",
        verdict=Verdict.WARN if differ else Verdict.OK,
        text=f"slurmctld's clock and this host's differ by {round(clock_skew_s):+d} s",
        cure="run NTP on both: begin times of moved jobs are set by this host's clock" if differ else "",
    )


def _release(version: str) -> Finding:
    numbers = re.match(r"([0-9]{1,9})\.([0-9]{1,9})", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if release < _OLDEST_RELEASE:
        return Finding(
            name="release",
            verdict=Verdict.FAIL,
            text=f"Slurm {version} is older than 22.05",
            cure="upgrade Slurm: its JSON and its updates of pending jobs are not supported",
        )
    if release > _NEWEST_RELEASE:
        return Finding(
            name="release",
            verdict=Verdict.WARN,
            text=f"Slurm {version} is newer than what was tested (26.05)",
            cure="run in shadow mode first",
        )
    return Finding(name="release", verdict=Verdict.OK, text=f"Slurm {version}")


def _settings(config: Config, site: Mapping[str, str], seen_interval_s: float | None) -> Iterator[Finding]:
    def found(name: str, bad: bool, text: str, cure: str, *, worst: Verdict = Verdict.WARN) -> Finding:
        return Finding(name=name, verdict=worst if bad else Verdict.OK, text=text, cure=cure if bad else "")

    kill_wait_s = seconds_of(site.get("KillWait"))
    if kill_wait_s is not None:
        needed_s = kill_wait_s + _REQUEUE_MARGIN_S
        yield found(
            "KillWait",
            needed_s > config.daemon.requeue_timeout_s,
            f"KillWait is {kill_wait_s:g} s, daemon.requeue_timeout_s {config.daemon.requeue_timeout_s:g} s",
            f"set daemon.requeue_timeout_s to {needed_s:g} or more: a requeue would time out before "
            "Slurm has killed a job that does not stop at once",
            worst=Verdict.FAIL,
        )
    yield found(
        "JobRequeue",
        site.get("JobRequeue", "1") == "0",
        f"JobRequeue={site.get('JobRequeue', '1')}",
        "jobs must be submitted with --requeue (`pollux sbatch` does), or set JobRequeue=1",
    )
    min_age_s, interval_s = seconds_of(site.get("MinJobAge")), seen_interval_s or config.daemon.interval_s
    whose = "by these settings a round comes" if seen_interval_s is None else "the daemon's rounds come"
    if min_age_s is not None:
        yield found(
            "MinJobAge",
            min_age_s < 2 * interval_s,
            f"MinJobAge is {min_age_s:g} s, {whose} every {interval_s:g} s",
            "set MinJobAge to two intervals or more, so that the daemon sees how a job ended",
        )
    yield found(
        "GresTypes",
        "gpu" not in site.get("GresTypes", "").split(","),
        f"GresTypes={site.get('GresTypes', '(null)')}",
        "name gpu in GresTypes: GPUs are given as generic resources",
        worst=Verdict.FAIL,
    )
    select = site.get("SelectType", "")
    yield found(
        "SelectType",
        "cons_tres" not in select,
        f"SelectType={select}",
        "use select/cons_tres: GPUs by job and CPUs by GPU need it",
        worst=Verdict.FAIL,
    )
    delays = _scheduling_delays(site)
    yield found(
        "SchedulerParameters",
        bool(delays),
        f"scheduling {'is delayed by ' + ', '.join(delays) if delays else 'is not delayed'}",
        "moved jobs start late, and Slurm's part of a move is lost training time",
    )
    may_reorder = users_may_reorder(site)
    yield found(
        "enable_user_top",
        may_reorder,
        f"users may {'' if may_reorder else 'not '}put their jobs before their others (scontrol top)",
        "take enable_user_top off SchedulerParameters: with it, moved jobs get no priority, as their owners "
        "could hand it on",
    )


def _scheduling_delays(site: Mapping[str, str]) -> list[str]:
    """Return the parameters of Slurm's scheduler by which jobs start late."""
    pairs = (text.partition("=") for text in site.get("SchedulerParameters", "").split(","))
    parameters = {key: value for key, _, value in pairs}
    delays: list[str] = [name for name in ("defer", "defer_batch") if name in parameters]
    interval = parameters.get("sched_interval", "60")
    if (whole_number(interval) or 0) > 60:
        delays.append(f"sched_interval={interval}")
    return delays


def _nodes(config: Config, snapshot: ClusterSnapshot) -> Iterator[Finding]:
    gpus = sum(node.num_gpus for node in snapshot.nodes)
    with_gpus = [node for node in snapshot.nodes if node.num_gpus]
    types = sorted({node.gpu_type or "(unnamed)" for node in with_gpus})
    yield Finding(
        name="GPUs",
        verdict=Verdict.OK if gpus else Verdict.FAIL,
        text=f"{gpus} GPUs on {len(with_gpus)} nodes: {', '.join(types) or 'none'}",
        cure="" if gpus else "configure Gres=gpu:... for the nodes in slurm.conf and gres.conf",
    )
    mixed = sorted(node.name for node in snapshot.nodes if node.gres_problem == SEVERAL_GPU_TYPES)
    if mixed:
        yield Finding(
            name="mixed nodes",
            verdict=Verdict.WARN,
            text=f"GPUs of several types on {', '.join(mixed[:5])}",
            cure="nothing is placed on these nodes: a job's speed there is not known",
        )
    for problem in sorted({node.gres_problem for node in snapshot.nodes if node.gres_problem}):
        if problem != SEVERAL_GPU_TYPES:
            names = sorted(node.name for node in snapshot.nodes if node.gres_problem == problem)
            yield Finding(
                name="unreadable nodes",
                verdict=Verdict.WARN,
                text=f"{problem}: {', '.join(names[:5])}",
                cure="nothing is placed on these nodes; compare Gres= in slurm.conf with gres.conf's manual",
            )
    known = {partition for node in snapshot.nodes for partition in node.partitions}
    unknown = sorted({*config.daemon.partitions, *dict(config.policy.kept_shares)} - known)
    if unknown:
        yield Finding(
            name="partitions",
            verdict=Verdict.FAIL,
            text=f"the settings name {', '.join(unknown)}; Slurm has {', '.join(sorted(known)) or 'none'}",
            cure="correct daemon.partitions or [policy.kept_shares]",
        )
    without = sorted(node.name for node in snapshot.nodes if not node.num_gpus)
    if config.moves.in_place and config.moves.anchor_partition is None and without:
        on_gpus = {partition for node in with_gpus for partition in node.partitions}
        apart = sorted({name for node in snapshot.nodes for name in node.partitions} - on_gpus)
        yield Finding(
            name="anchors",
            verdict=Verdict.WARN,
            text="anchors of jobs in place take CPUs of nodes with GPUs; nodes without GPUs: "
            + some_of(without, 3),
            cure="set moves.anchor_partition to a partition of nodes without GPUs"
            + (f": {', '.join(apart[:3])}" if apart else ""),
        )


def examine_limits(site: SiteLimits) -> Finding:
    """Find limits of accounts and QOS that Slurm does not enforce for a job that the daemon moved."""
    associations = {
        f"user {one.user} in account {one.account}"
        if one.user
        else f"account {one.account}": one.other_limits
        for one in site.associations
    }
    qos_limits = {f"QOS {one.name}": one.other_limits for one in site.qos_limits}
    not_enforced = [
        f"{who} ({', '.join(bounds)})" for who, bounds in (associations | qos_limits).items() if bounds
    ]
    return Finding(
        name="limits",
        verdict=Verdict.WARN if not_enforced else Verdict.OK,
        text=f"limits not enforced for a moved job: {some_of(not_enforced, 3)}",
        cure="limit gres/gpu instead, which stays enforced: an operator's update of a job's CPUs, memory "
        "and nodes exempts the job from limits on these"
        if not_enforced
        else "",
    )


def examine_shares(config: Config, limits: SiteLimits) -> Finding:
    """Check whether more jobs bring a user more GPUs; `limits` are those that Slurm enforces."""
    policy = config.policy
    bounded = bool(policy.user_limits or policy.account_limits)
    bounded |= any(one.gpus is not None for one in limits.associations)
    bounded |= any(
        bound is not None
        for one in limits.qos_limits
        for bound in (one.gpus, one.gpus_per_user, one.gpus_per_account)
    )
    if policy.between != "jobs":
        text = f"{policy.between} have equal shares, however many jobs they have"
        if policy.share_half_life is not None:
            text += f"; what they used counts, half after {policy.share_half_life}"
    else:
        text = "jobs have equal shares" + (
            ", within limits of GPUs" if bounded else " and nothing limits GPUs"
        )
    is_open = policy.between == "jobs" and not bounded
    return Finding(
        name="shares",
        verdict=Verdict.WARN if is_open else Verdict.OK,
        text=text,
        cure='a user with more jobs gets more GPUs: set policy.between = "users", policy.user_limits, or '
        "MaxTRESPU=gres/gpu=N of a QOS"
        if is_open
        else "",
    )


def examine_objective(config: Config) -> Iterator[Finding]:
    """Name the settings of `generalized-mean` that are set beside another objective, which has its own."""
    origins, policy = dict(config.origins), config.policy
    keys = [f"policy.{name}" for name in ("exponent", "penalty", "horizon_s", "fair_share_gpus")]
    unused = [key for key in keys if origins.get(key, "default") != "default"]
    if unused and policy.objective != "generalized-mean":
        yield Finding(
            name="objective",
            verdict=Verdict.WARN,
            text=f"{policy.objective} does not use {', '.join(unused)}",
            cure='take it out, or set policy.objective = "generalized-mean"',
        )


def examine_store(shown_url: str, num_jobs: int, nodes: Sequence[SlurmNode], *, host: str) -> Finding:
    """Check the store. An SQLite file serves jobs on its own `host` only."""
    text = f"{plural(num_jobs, 'active job')} in {shown_url}"
    elsewhere = sorted(
        node.name for node in nodes if node.hostname.partition(".")[0] != host.partition(".")[0]
    )
    if not shown_url.startswith("sqlite:") or not elsewhere:
        return Finding(name="store", verdict=Verdict.OK, text=text)
    return Finding(
        name="store",
        verdict=Verdict.WARN,
        text=f"{text}, a file that serves this host only; other hosts by Slurm: {some_of(elsewhere, 3)}",
        cure="jobs on other hosts cannot report to it: use PostgreSQL (docs/postgresql.md)",
    )


def examine_daemon(seen: DaemonStatus, jobs: Sequence[JobNow], now: datetime) -> Finding:
    """Check that a daemon runs; one that died in the middle of moves leaves jobs held."""
    held = jobs_left_held(jobs)
    missing = daemon_absence_text(seen, now)
    if missing is None:
        interval = "" if seen.interval_s is None else f", with a round every {seen.interval_s:g} s at least"
        shadow = "; its last round was in shadow mode: it moved nothing" if seen.is_shadow else ""
        return Finding(name="daemon", verdict=Verdict.OK, text=f"runs as {seen.owner}{interval}{shadow}")
    verdict = Verdict.FAIL if held else Verdict.WARN if is_silent(seen, now) else Verdict.OK
    cure = "start it: systemctl start pollux-daemon, or pollux daemon" if verdict is not Verdict.OK else ""
    if held:
        missing += f"; held in the middle of a move: {', '.join(held)}"
        cure += f"; it continues them. To start them without it: scontrol release {' '.join(held)}"
    return Finding(name="daemon", verdict=verdict, text=missing, cure=cure)


def examine_jobs(snapshot: ClusterSnapshot, records: Sequence[JobRecord]) -> Iterator[Finding]:
    """Find adaptive jobs that are stuck: held since a requeue, without an open move."""
    by_id = {job.job_id: job for job in snapshot.jobs}
    stuck: list[str] = []
    by_slurm: list[str] = []
    refused = []
    for record in records:
        job = by_id.get(record.slurm_job_id)
        if job is None or not is_recorded_job(job, record):
            continue
        if job.unschedulable_reason is not None:
            refused.append(f"{job.job_id} ({job.unschedulable_reason})")
        held = job.state is JobState.PENDING and job.held and job.restart_count > 0
        if held and record.open_reallocation is None and record.paused_at is None:
            stuck.append(job.job_id)
            if job.held_by_slurm:
                by_slurm.append(job.job_id)
    text_by_slurm = f"; by Slurm itself, and released some times a day: {', '.join(by_slurm)}"
    yield Finding(
        name="held jobs",
        verdict=Verdict.WARN if stuck else Verdict.OK,
        text=f"held since a requeue, without an open move: {', '.join(stuck) or 'none'}"
        + (text_by_slurm if by_slurm else ""),
        cure="if they are not held on purpose: scontrol release " + " ".join(stuck) if stuck else "",
    )
    if refused:
        yield Finding(
            name="fixed jobs",
            verdict=Verdict.WARN,
            text=f"adaptive jobs that cannot be moved: {', '.join(refused[:5])}",
            cure="inform their owners",
        )


def examine_wings(snapshot: ClusterSnapshot) -> Finding:
    """Find jobs that say they are wings and have no anchor to which they belong.

    Those that name a job of another user are somebody's invention, and jobs like any other.
    """
    owners = {job.job_id: job.user_id for job in snapshot.jobs}
    alone: list[SlurmJob] = []
    forged: list[SlurmJob] = []
    for job in snapshot.jobs:
        if job.state.is_over:
            alone += [wing for wing in job.wings if not wing.state.is_over]
        claim = None if job.state.is_over else parse_wing_comment(job.comment)
        if claim is not None:
            is_own = owners.get(claim.anchor_id, job.user_id) == job.user_id
            (alone if is_own else forged).append(job)
    text = f"wings without their anchor: {some_of([job.job_id for job in alone], _MAX_NAMED)}"
    cures = []
    if alone:
        numbers = " ".join(job.job_id for job in alone[:_MAX_NAMED])
        cures.append(f"those that run end by themselves within a minute; if any stay: scancel {numbers}")
    if forged:
        users = some_of(sorted({job.user_name for job in forged}), _MAX_NAMED)
        text += f"; {len(forged)} jobs name in their Comment a job of another user, as if they were its wings"
        cures.append(
            f"they are jobs like any other, and count for nobody else; ask {users} what they are for"
        )
    return Finding(
        name="wings",
        verdict=Verdict.WARN if alone or forged else Verdict.OK,
        text=text,
        cure="; ".join(cures),
    )


def seconds_of(text: str | None) -> float | None:
    """Return the seconds of a setting such as `30 sec`, None where there is none."""
    found = re.match(r"\s*(\d+)", text or "")
    return float(found[1]) if found else None
