"""The report of one job: what it got, what it made of it, and what moving it cost and brought."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.columns import Column, Kind, table_of, text_of
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
        Fact("slurm_job_id", "Job", str(job.slurm_job_id)),
        Fact("name", "Name", job.name),
        Fact("user_name", "User", job.user_name),
        Fact("account", "Account", job.account),
        Fact("state", "State", str(job.state)),
        Fact("submitted_at", "Submitted (UTC)", job.submitted_at, Kind.MOMENT),
        Fact("started_at", "Started (UTC)", job.started_at, Kind.MOMENT),
        Fact("finished_at", "Finished (UTC)", job.finished_at, Kind.MOMENT),
        Fact("gpu_hours", "GPU hours", job.gpu_hours, Kind.NUMBER),
        Fact("progress_share", "GPU time with progress", job.progress_share, Kind.SHARE),
        Fact(
            "goodput",
            "Mean goodput",
            goodput,
            Kind.NUMBER,
            text="" if goodput is None else f"{number_text(goodput)} examples/s",
        ),
        Fact("efficiency", "Statistical efficiency", job.efficiency, Kind.SHARE),
        Fact("speedup_one_gpu", "Speedup over one GPU, predicted", job.speedup_one_gpu, Kind.NUMBER),
        *_over_asked(history),
        Fact("speedup_fair_share", "Speedup over its fair share", job.speedup_fair_share, Kind.NUMBER),
        Fact("rho", "Fairness ρ (≤ 1: not worse off)", rho, Kind.NUMBER),
        Fact("restarts", "Moves by requeue", job.restarts, Kind.COUNT),
        Fact("lost_s", "Time lost to them", job.lost_s, Kind.SECONDS),
    )
    more: list[Fact] = []
    if job.regroups:
        more.append(Fact("regroups", "Moves in place", job.regroups, Kind.COUNT))
        more.append(Fact("standstill_s", "Standstill in place", job.standstill_s, Kind.SECONDS))
    if goodput is not None:
        more.append(Fact("speedups_are", "Speedups", _SPEEDUPS, wide=True))
    if history.told.explanation:
        more.append(Fact("explanation", "Last decision", history.told.explanation, wide=True))
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
    return (Fact("speedup_asked", title, goodput / there, Kind.NUMBER),)


_EVENTS = (
    AT,
    Column("event", "event", Kind.TEXT),
    NUM_GPUS,
    Column("num_nodes", "nodes", Kind.COUNT),
    Column("span_s", "lasted", Kind.SECONDS),
    Column("duration_s", "took", Kind.SECONDS),
    RUN,
    Column("detail", "detail", Kind.TEXT, is_sentence=True),
    Column("until", "until (UTC)", Kind.MOMENT, shown=False),
    REALLOCATION,
    replace(ROUND, shown=False),
)


def _events(events: Sequence[JobEvent]) -> Part:
    """Return everything that happened to the job, in its order."""
    return Part(title="What happened", tables=(table_of("events", events, _EVENTS, keep="last"),))
