"""The reports of accounts and of the whole cluster over a time range."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pollux_slurm.document.charts.time_axes import Range, midnight, range_of
from pollux_slurm.document.columns import Kind
from pollux_slurm.document.document import Document, Fact
from pollux_slurm.report.parts.common import accuracy_part, jobs_part, share
from pollux_slurm.report.parts.fairness import fairness_part
from pollux_slurm.report.parts.gpus_over_time import gpus_over_time_part
from pollux_slurm.report.parts.idle_gpus import idle_gpus_part
from pollux_slurm.report.parts.moves_by_day import moves_by_day_part
from pollux_slurm.report.parts.rounds import nodes_part, rounds_part
from pollux_slurm.report.parts.usage import UsageRow, by_gpu_hours, usage_part
from pollux_slurm.store.reporting.gpu_use import GpuUse
from pollux_slurm.store.reporting.view_rows import (
    AccountUsage,
    Fairness,
    GpuHolders,
    JobGoodput,
    ModelAccuracy,
    NodeSum,
    ReallocationEntry,
    RoundEntry,
    UserUsage,
)
from pollux_slurm.text import minute_text, plural

# Without a round for so long, no daemon looks at the jobs.
_UNSEEN = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHistory:
    """What the store has of some accounts, or all, over a time range: rows of the views.

    `usage` is of account_usage, `users` of user_usage, `jobs` of job_goodput, `moves` of
    reallocation_history, `accuracy` and `fairness` of the views of these names; `held` is who held GPUs,
    nobody where the jobs are too many to be seen one by one; `truncated` are views that had more rows than
    were read, the newest of which are here; `rounds` of round_history, `nodes` and `gpu_use` are the whole
    cluster's, the last None for a login that reads views only. `last_round_at` is the store's, of any time.
    """

    usage: Sequence[AccountUsage]
    users: Sequence[UserUsage]
    jobs: Sequence[JobGoodput]
    moves: Sequence[ReallocationEntry]
    accuracy: Sequence[ModelAccuracy]
    fairness: Sequence[Fairness]
    held: GpuHolders = field(default_factory=GpuHolders)
    rounds: Sequence[RoundEntry] = ()
    nodes: Sequence[NodeSum] = ()
    gpu_use: GpuUse | None = None
    truncated: tuple[str, ...] = ()
    last_round_at: datetime | None = None


def life_of(history: GroupHistory, range_: Range) -> Range:
    """Return the part of `range_` in which anything happened: a young store is seen whole, not as a speck.

    What lasts counts up to the range's end. GPU hours of earlier jobs are known by day: a day with usage is
    in it whole, unless the rest begins or ends on that day. All of the range where not every row was read.
    """
    if history.truncated:
        return range_
    moments, now = [round_.at for round_ in history.rounds], range_.until - timedelta(microseconds=1)
    for job in history.jobs:
        moments += [job.submitted_at, job.finished_at or now]
    # Jobs that were submitted before may hold GPUs.
    for one in history.held.intervals:
        moments += [one.at, one.until or now]
    moments += [move.planned_at for move in history.moves]
    life = range_of(moments, range_)
    days = sorted(row.day for row in history.usage)
    since, until = life.since, life.until
    if days and days[0] < since.date():
        since = max(midnight(days[0]), range_.since)
    if days and midnight(days[-1]) >= until:
        until = min(midnight(days[-1]) + timedelta(days=1), range_.until)
    return Range(since=since, until=until)


def cluster_document(history: GroupHistory, range_: Range, *, made_at: datetime, command: str) -> Document:
    """Return the report of everything that adaptive jobs did in a time range."""
    return Document(
        kind="cluster",
        title="Cluster report",
        lead=lead_of("Adaptive jobs of all accounts,", range_, history.truncated, history.last_round_at),
        facts=(*_facts(history, range_), *_round_facts(history.rounds)),
        parts=(
            usage_part(history.usage, range_, by="account", title="Usage"),
            *gpus_over_time_part(history.held, range_, by="account"),
            rounds_part(history.rounds, range_),
            idle_gpus_part(history.gpu_use, range_),
            fairness_part(
                history.fairness, by="account", drawn_before=by_gpu_hours(history.usage, "account")
            ),
            moves_by_day_part(history.moves, range_),
            nodes_part(history.nodes, range_),
            accuracy_part(history.accuracy, by="account"),
            jobs_part(history.jobs),
        ),
        made_at=made_at,
        range=range_,
        command=command,
    )


def account_document(
    history: GroupHistory, range_: Range, *, account: str | None, made_at: datetime, command: str
) -> Document:
    """Return the report of one account, or without a name of all of them beside each other."""
    one = account is not None
    by = "user_name" if one else "account"
    usage: Sequence[UsageRow] = history.users if one else history.usage
    return Document(
        kind="account",
        title="Account" if one else "Accounts",
        subject=account or "",
        lead=lead_of("Adaptive jobs,", range_, history.truncated, history.last_round_at),
        facts=_facts(history, range_),
        parts=(
            usage_part(usage, range_, by=by, title="Usage by user" if one else "Usage"),
            *gpus_over_time_part(history.held, range_, by=by),
            fairness_part(history.fairness, by=by, drawn_before=by_gpu_hours(usage, by)),
            moves_by_day_part(history.moves, range_),
            accuracy_part(history.accuracy, by="account"),
            jobs_part(history.jobs),
        ),
        made_at=made_at,
        range=range_,
        command=command,
    )


def lead_of(what: str, range_: Range, truncated: Sequence[str], last_round_at: datetime | None) -> str:
    """Return a page's first sentence, and what it does not know: rows that were not read, hours after rounds.

    An interval that is open counts up to now, also where no daemon has looked at the job for long.
    """
    found = [f"{what} {range_.text()}."]
    if truncated:
        found.append(
            f"There is more than a page holds: of {', '.join(truncated)} it has the newest rows only; "
            "ask for a shorter time."
        )
    if last_round_at is not None and range_.until - last_round_at > _UNSEEN:
        found.append(
            f"The last round was at {minute_text(last_round_at)} UTC: "
            "GPU hours after it are assumed, not seen."
        )
    return " ".join(found)


def _facts(history: GroupHistory, range_: Range) -> tuple[Fact, ...]:
    held = sum(row.gpu_hours or 0.0 for row in history.usage)
    trained = sum(row.trained_gpu_hours or 0.0 for row in history.usage)
    useful = sum(row.useful_gpu_hours or 0.0 for row in history.usage)
    confirmed = [row for row in history.moves if row.step == "confirmed" and row.moves_running]
    in_place = [row for row in confirmed if row.way == "in_place"]
    over = [row for row in history.jobs if row.finished_at is not None]
    rhos = [row.rho for row in history.fairness if row.rho is not None]
    days = "" if range_.is_of_whole_days else ", whole days"
    facts = (
        Fact("num_jobs", "Jobs submitted", len(history.jobs), Kind.COUNT),
        Fact("num_finished", "Jobs that ended", len(over), Kind.COUNT),
        Fact("num_users", "Users", len({row.user_name for row in history.jobs}), Kind.COUNT),
        Fact("gpu_hours", f"GPU hours held{days}", held, Kind.NUMBER),
        Fact("progress_share", f"GPU time with progress{days}", share(trained, held), Kind.SHARE),
        Fact("useful_share", f"Useful share of GPU time{days}", share(useful, held), Kind.SHARE),
        Fact("num_moves", "Moves by requeue", len(confirmed) - len(in_place), Kind.COUNT),
        Fact("lost_s", "Standstill for them", sum(row.total_s or 0.0 for row in confirmed), Kind.SECONDS),
        Fact(
            "rho_above_1",
            "Jobs with ρ > 1",
            sum(rho > 1 for rho in rhos),
            Kind.COUNT,
            text=f"{sum(rho > 1 for rho in rhos)} of {plural(len(rhos), 'job')} with a ρ",
        ),
    )
    if not in_place:
        return facts
    standstill_s = sum(row.standstill_s or 0.0 for row in in_place)
    return (
        *facts,
        Fact("num_regroups", "Moves in place", len(in_place), Kind.COUNT),
        Fact("standstill_s", "Standstill in place", standstill_s, Kind.SECONDS),
    )


def _round_facts(rounds: Sequence[RoundEntry]) -> tuple[Fact, ...]:
    shadow = sum(bool(row.shadow) for row in rounds)
    late = sum(bool(row.timed_out) for row in rounds)
    gaps = [row.gap for row in rounds if row.gap is not None]
    return (
        Fact("num_rounds", "Rounds", len(rounds), Kind.COUNT),
        Fact("num_shadow", "Rounds in shadow mode", shadow, Kind.COUNT),
        Fact("num_timed_out", "Rounds cut short", late, Kind.COUNT),
        Fact(
            "median_gap",
            "Median gap to the proved best",
            statistics.median(gaps) if gaps else None,
            Kind.SHARE,
        ),
    )
