"""The report of one job: what it got, what it made of it, and what moving it cost and brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.columns import Column, Data, Kind, rows_of, text_of
from pollux_slurm.document.document import Document, Fact, Part
from pollux_slurm.report.parts.columns import AT, NUM_GPUS, REALLOCATION, ROUND, RUN
from pollux_slurm.report.parts.common import accuracy_part
from pollux_slurm.report.parts.groups import NAMELESS
from pollux_slurm.report.parts.job_moves import moves_part
from pollux_slurm.report.parts.job_plots import history_part
from pollux_slurm.store.reporting.view_rows import (
    Fairness,
    JobEvent,
    JobGoodput,
    ModelAccuracy,
    ReallocationEntry,
    SamplePoint,
)
from pollux_slurm.text import duration_text, number_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a login that reads more than the views knows of a job.

    `explanation` is the line of its last decision, empty where there is none. `asked_gpus` is the size that
    it was submitted with, `asked_goodput` what its newest model predicts there in examples/s, with the best
    batch; None where unknown.
    """

    explanation: str = ""
    asked_gpus: int | None = None
    asked_goodput: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistory:
    """What the store has of a job, as rows of the views, oldest first.

    `job` is its row of job_goodput, `samples` what its runs measured, `events` job_timeline's, `moves`
    reallocation_history's, `accuracy` model_accuracy's; `fairness` is its row there, None where there is
    none.
    """

    job: JobGoodput
    samples: Sequence[SamplePoint]
    events: Sequence[JobEvent]
    moves: Sequence[ReallocationEntry]
    accuracy: Sequence[ModelAccuracy]
    fairness: Fairness | None
    told: Told


def job_document(history: JobHistory, *, made_at: datetime, range_: Range | None = None) -> Document:
    """Return the report of a job's life; plots and tables are of the part within `range_`, if it is given."""
    number = str(history.job.slurm_job_id)
    shown = _shown(history, made_at, range_)
    lead = _lead(history, made_at)
    if range_ is not None:
        lead += f" Plots and tables are of {shown.text()}, single values of its whole life."
    return Document(
        kind="job",
        title=f"Job {number}",
        subject=history.job.name,
        lead=lead,
        facts=facts_of(history),
        parts=(
            history_part(history.samples, history.events, history.moves, shown),
            moves_part(history.moves, history.events),
            *([_events(history.events)] if history.events else []),
            accuracy_part(history.accuracy, by="run"),
        ),
        made_at=made_at,
        range=None if range_ is None else shown,
        command=f"pollux report job {number}",
    )


def _shown(history: JobHistory, made_at: datetime, range_: Range | None) -> Range:
    """Return the range of the plots: from submission to end or now, and all samples, whatever their clock.

    Of a range, the part in which the job lived; all of it where it did not.
    """
    job = history.job
    moments = [*(sample.at for sample in history.samples), *(event.at for event in history.events)]
    begin = min([job.submitted_at, *moments])
    life = Range(since=begin, until=max([job.finished_at or made_at, begin, *moments]))
    if range_ is None:
        return life
    since, until = max(range_.since, life.since), min(range_.until, life.until)
    return Range(since=since, until=until) if since < until else range_


def _lead(history: JobHistory, made_at: datetime) -> str:
    job = history.job
    owner = f"{job.user_name}, account {job.account or NAMELESS}, partition {job.partition}"
    state = str(job.state)
    if job.finished_at is not None:
        took_s = (job.finished_at - job.submitted_at).total_seconds()
        took = duration_text(max(took_s, 0.0))
        return f"{owner}. It {_ENDED.get(state, state)} {took} after it was submitted."
    if job.started_at is None and not history.samples:
        return f"{owner}. It has been waiting since {text_of(job.submitted_at, Kind.MOMENT)} UTC."
    return f"{owner}. It is {state}: all values are up to {text_of(made_at, Kind.MOMENT)} UTC."


_ENDED = {
    "completed": "completed",
    "failed": "failed",
    "cancelled": "was cancelled",
    "timeout": "ran out of time",
}


def facts_of(history: JobHistory) -> tuple[Fact, ...]:
    """Return the single values of a job, over its whole life."""
    job = history.job
    goodput = job.goodput
    rho = None if history.fairness is None else history.fairness.rho
    facts = (
        Fact(key="slurm_job_id", title="Job", value=str(job.slurm_job_id)),
        Fact(key="name", title="Name", value=job.name),
        Fact(key="user_name", title="User", value=job.user_name),
        Fact(key="account", title="Account", value=job.account),
        Fact(key="state", title="State", value=str(job.state)),
        Fact(key="submitted_at", title="Submitted (UTC)", value=job.submitted_at, kind=Kind.MOMENT),
        Fact(key="started_at", title="Started (UTC)", value=job.started_at, kind=Kind.MOMENT),
        Fact(key="finished_at", title="Finished (UTC)", value=job.finished_at, kind=Kind.MOMENT),
        Fact(key="gpu_hours", title="GPU hours", value=job.gpu_hours, kind=Kind.NUMBER),
        Fact(key="progress_share", title="GPU time with progress", value=job.progress_share, kind=Kind.SHARE),
        Fact(
            key="goodput",
            title="Mean goodput",
            value=goodput,
            kind=Kind.NUMBER,
            text="" if goodput is None else f"{number_text(goodput)} examples/s",
        ),
        Fact(key="efficiency", title="Statistical efficiency", value=job.efficiency, kind=Kind.SHARE),
        Fact(
            key="speedup_one_gpu",
            title="Speedup over one GPU, predicted",
            value=job.speedup_one_gpu,
            kind=Kind.NUMBER,
        ),
        *_over_asked(history),
        Fact(
            key="speedup_fair_share",
            title="Speedup over its fair share",
            value=job.speedup_fair_share,
            kind=Kind.NUMBER,
        ),
        Fact(key="rho", title="Fairness ρ (≤ 1: not worse off)", value=rho, kind=Kind.NUMBER),
        Fact(key="restarts", title="Moves by requeue", value=job.restarts, kind=Kind.COUNT),
        Fact(key="lost_s", title="Time lost to them", value=job.lost_s, kind=Kind.SECONDS),
    )
    more: list[Fact] = []
    if job.regroups:
        more.append(Fact(key="regroups", title="Moves in place", value=job.regroups, kind=Kind.COUNT))
        more.append(
            Fact(key="standstill_s", title="Standstill in place", value=job.standstill_s, kind=Kind.SECONDS)
        )
    if goodput is not None:
        more.append(Fact(key="speedups_are", title="Speedups", value=_SPEEDUPS, wide=True))
    if history.told.explanation:
        more.append(Fact(key="explanation", title="Last decision", value=history.told.explanation, wide=True))
    return (*facts, *more)


_SPEEDUPS = (
    "Mean goodput while it trained, over a prediction: on one GPU and on its fair share the mean of those of "
    "its rounds, on the GPUs that it asked for that of its newest model, with the best batch size."
)


def _over_asked(history: JobHistory) -> tuple[Fact, ...]:
    """Return how much faster the job was than its model predicts for the GPUs that it asked for."""
    num_gpus, there, goodput = history.told.asked_gpus, history.told.asked_goodput, history.job.goodput
    if num_gpus is None or num_gpus == 1 or not there or goodput is None:
        return ()
    title = f"Speedup over the {num_gpus} GPUs that it asked for, predicted"
    return (Fact(key="speedup_asked", title=title, value=goodput / there, kind=Kind.NUMBER),)


_EVENTS = (
    AT,
    Column(key="event", title="event", kind=Kind.TEXT),
    NUM_GPUS,
    Column(key="num_nodes", title="nodes", kind=Kind.COUNT),
    Column(key="span_s", title="lasted", kind=Kind.SECONDS),
    Column(key="duration_s", title="took", kind=Kind.SECONDS),
    RUN,
    Column(key="detail", title="detail", kind=Kind.TEXT, is_sentence=True),
    Column(key="until", title="until (UTC)", kind=Kind.MOMENT, shown=False),
    REALLOCATION,
    replace(ROUND, shown=False),
)


def _events(events: Sequence[JobEvent]) -> Part:
    """Return everything that happened to the job, in its order."""
    rows = rows_of(events, _EVENTS)
    data = Data(key="events", title="", columns=_EVENTS, rows=rows, keep="last")
    return Part(title="What happened", tables=(data,))
