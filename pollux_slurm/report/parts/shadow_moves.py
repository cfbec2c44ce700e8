"""What a daemon in shadow mode would have done: the moves it asked for, by kind and by job."""

from __future__ import annotations

import enum
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby

from pollux_slurm.document.columns import Column, Data, Kind, table_of
from pollux_slurm.document.document import Part
from pollux_slurm.model import Allocation
from pollux_slurm.report.parts.columns import (
    ACCOUNT,
    GPUS_DECIDED,
    GPUS_STOOD,
    JOB,
    KIND,
    NAME,
    NUM_JOBS,
    NUM_MOVES,
    NUM_ROUNDS,
    USER,
)
from pollux_slurm.store.reporting.shadow import AllocationInterval, ShadowDecision, ShadowHistory, ShadowJob
from pollux_slurm.text import plural


class MoveKind(enum.Enum):
    """What a move does to a job: from no GPUs to some, to more, to fewer, elsewhere, or to none."""

    START = "start"
    GROW = "grow"
    SHRINK = "shrink"
    MOVE = "move"
    PAUSE = "pause"


KINDS_TEXT: Mapping[MoveKind, str] = {
    MoveKind.START: "a waiting job gets GPUs",
    MoveKind.GROW: "a running job gets more GPUs",
    MoveKind.SHRINK: "a running job gets fewer GPUs",
    MoveKind.MOVE: "a running job gets as many GPUs elsewhere",
    MoveKind.PAUSE: "a running job waits without GPUs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A move that consecutive rounds proposed: `stood` is the job's allocation at the first of them.

    It ends when a round proposes another allocation, or the one that the job has by then.
    """

    job: ShadowJob
    kind: MoveKind
    stood: Allocation
    decided: Allocation
    first_round_id: int
    first_at: datetime
    last_at: datetime
    num_rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWishes:
    """One job over all rounds: `proposals`, and its GPUs on average, held and decided."""

    job: ShadowJob
    proposals: tuple[Proposal, ...]
    num_rounds: int
    mean_stood: float
    mean_decided: float


def move_kind(stood: Allocation, decided: Allocation) -> MoveKind | None:
    """Return the kind of move for a job with allocation `stood`, None without a move."""
    if stood == decided:
        return None
    if not stood:
        return MoveKind.START
    if not decided:
        return MoveKind.PAUSE
    if decided.num_gpus == stood.num_gpus:
        return MoveKind.MOVE
    return MoveKind.GROW if decided.num_gpus > stood.num_gpus else MoveKind.SHRINK


def wishes_of(history: ShadowHistory) -> tuple[JobWishes, ...]:
    """Return what the rounds wanted of each job, those with the most moves first."""
    at = {one.round_id: one.at for one in history.rounds}
    jobs = {one.job_id: one for one in history.jobs}
    intervals = intervals_by_job(history)
    found = []
    for job_id, group in groupby(history.decisions, key=lambda one: one.job_id):
        stood = list(_with_standing(group, at, intervals.get(job_id, ())))
        if job_id not in jobs or not stood:
            continue
        found.append(
            JobWishes(
                job=jobs[job_id],
                proposals=tuple(_proposals(jobs[job_id], stood, at)),
                num_rounds=len(stood),
                mean_stood=statistics.fmean(held.num_gpus for _, held, _ in stood),
                mean_decided=statistics.fmean(
                    (held if decided is None else decided).num_gpus for _, held, decided in stood
                ),
            )
        )
    return tuple(sorted(found, key=lambda one: (-len(one.proposals), one.job.job_id)))


def intervals_by_job(history: ShadowHistory) -> dict[int, tuple[AllocationInterval, ...]]:
    return {
        job_id: tuple(found)
        for job_id, found in groupby(history.allocation_intervals, key=lambda one: one.job_id)
    }


def _with_standing(
    decisions: Iterator[ShadowDecision], at: Mapping[int, datetime], intervals: Sequence[AllocationInterval]
) -> Iterator[tuple[int, Allocation, Allocation | None]]:
    """Yield round, the job's allocation then, and the decided one (None: unchanged), in time order."""
    place = 0
    for one in decisions:
        now = at.get(one.round_id)
        if now is None:
            continue
        while place < len(intervals) and _is_over(intervals[place], now):
            place += 1
        holds = place < len(intervals) and intervals[place].started_at <= now
        yield one.round_id, intervals[place].allocation if holds else Allocation(), one.decided


def _is_over(interval: AllocationInterval, now: datetime) -> bool:
    return interval.ended_at is not None and interval.ended_at <= now


def _proposals(
    job: ShadowJob,
    decided: Sequence[tuple[int, Allocation, Allocation | None]],
    at: Mapping[int, datetime],
) -> Iterator[Proposal]:
    def wanted(entry: tuple[int, Allocation, Allocation | None]) -> Allocation | None:
        _, stood, target = entry
        return None if target is None or target == stood else target

    for target, group in groupby(decided, key=wanted):
        rounds = list(group)
        first_id, stood, _ = rounds[0]
        kind = None if target is None else move_kind(stood, target)
        if target is None or kind is None:
            continue
        yield Proposal(
            job=job,
            kind=kind,
            stood=stood,
            decided=target,
            first_round_id=first_id,
            first_at=at[first_id],
            last_at=at[rounds[-1][0]],
            num_rounds=len(rounds),
        )


def _kind_column(kind: MoveKind) -> Column:
    def number(wish: JobWishes) -> int:
        return sum(one.kind is kind for one in wish.proposals)

    return Column(f"num_{kind.value}", kind.value, Kind.COUNT, value=number)


_JOB_COLUMNS = (
    replace(JOB, value=lambda wish: wish.job.slurm_job_id),
    replace(NAME, value=lambda wish: wish.job.name),
    replace(USER, value=lambda wish: wish.job.user_name),
    replace(ACCOUNT, value=lambda wish: wish.job.account),
    NUM_ROUNDS,
    Column("num_moves", "moves asked for", Kind.COUNT, value=lambda wish: len(wish.proposals)),
    *map(_kind_column, MoveKind),
    Column("mean_gpus_stood", "GPUs held", value=lambda wish: wish.mean_stood),
    Column("mean_gpus_decided", "GPUs decided", value=lambda wish: wish.mean_decided),
)

_MOVE_COLUMNS = (
    Column("first_at", "from (UTC)", Kind.MOMENT),
    Column("last_at", "to (UTC)", Kind.MOMENT, shown=False),
    replace(JOB, value=lambda one: one.job.slurm_job_id),
    replace(KIND, value=lambda one: one.kind.value),
    Column("stood", "held", Kind.TEXT, value=lambda one: str(one.stood)),
    Column("decided", "decided", Kind.TEXT, value=lambda one: str(one.decided)),
    replace(GPUS_STOOD, shown=False, value=lambda one: one.stood.num_gpus),
    replace(GPUS_DECIDED, shown=False, value=lambda one: one.decided.num_gpus),
    Column("num_rounds", "rounds that asked", Kind.COUNT),
    Column("first_round_id", "first round", Kind.COUNT),
)


def moves_part(wishes: Sequence[JobWishes], *, every: int) -> Part:
    """Return what would have been done, by job, by kind, and move by move."""
    proposals = sorted(
        (one for wish in wishes for one in wish.proposals), key=lambda one: (one.first_at, one.job.job_id)
    )
    return Part(
        title="What it would have done",
        text=_said(wishes, proposals, every),
        tables=(
            table_of(
                "shadow_jobs",
                wishes,
                _JOB_COLUMNS,
                title="By job",
                note="GPUs are means over the rounds that decided about the job.",
            ),
            _kinds_data(proposals),
            table_of(
                "shadow_moves",
                proposals,
                _MOVE_COLUMNS,
                title="Move by move",
                keep="last",
                note="Why a round decided so: pollux explain JOB --round NUMBER.",
            ),
        ),
    )


def _said(wishes: Sequence[JobWishes], proposals: Sequence[Proposal], every: int) -> str:
    if not wishes:
        return ""
    moved = len({one.job.job_id for one in proposals})
    summary = f"{plural(len(proposals), 'move')} of {moved:,} of {plural(len(wishes), 'job')}."
    if every > 1:
        summary += f" One round in {every} was looked at: there are more than a report holds."
    return (
        f"{summary} A move that several rounds in a row asked for counts once. Nothing was enacted, so each "
        "round began from what Slurm had given: a daemon that acts asks for less, once it has moved a job."
    )


def _kinds_data(proposals: Sequence[Proposal]) -> Data:
    by_kind: defaultdict[MoveKind, list[Proposal]] = defaultdict(list)
    for one in proposals:
        by_kind[one.kind].append(one)
    columns = (
        KIND,
        Column("meaning", "which means", Kind.TEXT, is_sentence=True),
        NUM_MOVES,
        NUM_JOBS,
        Column("num_gpus", "GPUs gained", Kind.COUNT),
        Column("median_rounds", "rounds that asked, median"),
    )
    rows = tuple(
        (
            kind.value,
            KINDS_TEXT[kind],
            len(by_kind[kind]),
            len({one.job.job_id for one in by_kind[kind]}),
            sum(one.decided.num_gpus - one.stood.num_gpus for one in by_kind[kind]),
            statistics.median(one.num_rounds for one in by_kind[kind]) if by_kind[kind] else None,
        )
        for kind in MoveKind
    )
    return Data(key="shadow_kinds", title="By kind", columns=columns, rows=rows if proposals else ())
