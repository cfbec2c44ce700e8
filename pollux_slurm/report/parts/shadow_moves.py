"""What a daemon in shadow mode would have done: the moves it asked for, by kind and by job."""

from __future__ import annotations

import enum
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pollux_slurm.document.columns import Column, Data, Kind, Value
from pollux_slurm.document.document import Part
from pollux_slurm.model import Allocation
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


_JOB_COLUMNS = (
    Column(key="slurm_job_id", title="job", kind=Kind.TEXT),
    Column(key="name", title="name", kind=Kind.TEXT),
    Column(key="user_name", title="user", kind=Kind.TEXT),
    Column(key="account", title="account", kind=Kind.TEXT),
    Column(key="num_rounds", title="rounds", kind=Kind.COUNT),
    Column(key="num_moves", title="moves asked for", kind=Kind.COUNT),
    *(Column(key=f"num_{kind.value}", title=kind.value, kind=Kind.COUNT) for kind in MoveKind),
    Column(key="mean_gpus_stood", title="GPUs held"),
    Column(key="mean_gpus_decided", title="GPUs decided"),
)

_MOVE_COLUMNS = (
    Column(key="first_at", title="from (UTC)", kind=Kind.MOMENT),
    Column(key="last_at", title="to (UTC)", kind=Kind.MOMENT, shown=False),
    Column(key="slurm_job_id", title="job", kind=Kind.TEXT),
    Column(key="kind", title="kind", kind=Kind.TEXT),
    Column(key="stood", title="held", kind=Kind.TEXT),
    Column(key="decided", title="decided", kind=Kind.TEXT),
    Column(key="gpus_stood", title="GPUs held", kind=Kind.COUNT, shown=False),
    Column(key="gpus_decided", title="GPUs decided", kind=Kind.COUNT, shown=False),
    Column(key="num_rounds", title="rounds that asked", kind=Kind.COUNT),
    Column(key="first_round_id", title="first round", kind=Kind.COUNT),
)


def moves_part(wishes: Sequence[JobWishes], *, every: int) -> Part:
    """Return what would have been done, by job, by kind, and move by move."""
    proposals = sorted(
        (one for wish in wishes for one in wish.proposals), key=lambda one: (one.first_at, one.job.job_id)
    )
    return Part(
        title="What it would have done",
        text=_said(wishes, proposals, every),
        tables=(_jobs_data(wishes), _kinds_data(proposals), _moves_data(proposals)),
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


def _jobs_data(wishes: Sequence[JobWishes]) -> Data:
    rows: list[tuple[Value, ...]] = []
    for wish in wishes:
        kinds = Counter(one.kind for one in wish.proposals)
        job = wish.job
        rows.append(
            (
                job.slurm_job_id,
                job.name,
                job.user_name,
                job.account,
                wish.num_rounds,
                len(wish.proposals),
                *(kinds[kind] for kind in MoveKind),
                wish.mean_stood,
                wish.mean_decided,
            )
        )
    return Data(
        key="shadow_jobs",
        title="By job",
        columns=_JOB_COLUMNS,
        rows=tuple(rows),
        note="GPUs are means over the rounds that decided about the job.",
    )


def _kinds_data(proposals: Sequence[Proposal]) -> Data:
    by_kind: defaultdict[MoveKind, list[Proposal]] = defaultdict(list)
    for one in proposals:
        by_kind[one.kind].append(one)
    columns = (
        Column(key="kind", title="kind", kind=Kind.TEXT),
        Column(key="meaning", title="which means", kind=Kind.TEXT, is_sentence=True),
        Column(key="num_moves", title="moves", kind=Kind.COUNT),
        Column(key="num_jobs", title="jobs", kind=Kind.COUNT),
        Column(key="num_gpus", title="GPUs gained", kind=Kind.COUNT),
        Column(key="median_rounds", title="rounds that asked, median"),
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


def _moves_data(proposals: Sequence[Proposal]) -> Data:
    return Data(
        key="shadow_moves",
        title="Move by move",
        columns=_MOVE_COLUMNS,
        rows=tuple(
            (
                one.first_at,
                one.last_at,
                one.job.slurm_job_id,
                one.kind.value,
                str(one.stood),
                str(one.decided),
                one.stood.num_gpus,
                one.decided.num_gpus,
                one.num_rounds,
                one.first_round_id,
            )
            for one in proposals
        ),
        keep="last",
        note="Why a round decided so: pollux explain JOB --round NUMBER.",
    )
