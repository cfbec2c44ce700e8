"""The report of a daemon in shadow mode: what it would have done, gained, and how well it predicted."""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.document.columns import Kind
from pollux_slurm.document.document import Document, Fact, Part
from pollux_slurm.errors import InvalidProblemError, StoreError
from pollux_slurm.goodput import TableCache
from pollux_slurm.report.parts.common import accuracy_part
from pollux_slurm.report.parts.shadow_gain import (
    ShadowPrediction,
    WeighedRound,
    gain_part,
    median_gain,
    predictions_of,
    predictions_part,
    rounds_to_weigh,
    weigh,
    windows_of,
)
from pollux_slurm.report.parts.shadow_moves import (
    JobWishes,
    MoveKind,
    intervals_by_job,
    moves_part,
    wishes_of,
)
from pollux_slurm.store.reporting.queries import MOST_ROWS, ViewReader
from pollux_slurm.store.reporting.shadow import AllocationInterval, ShadowHistory
from pollux_slurm.store.reporting.view_rows import ModelAccuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowFindings:
    """The evaluation of a time range's shadow rounds. `accuracy` are rows of the view model_accuracy."""

    history: ShadowHistory
    wishes: Sequence[JobWishes]
    weighed: Sequence[WeighedRound]
    predictions: Sequence[ShadowPrediction]
    accuracy: Sequence[ModelAccuracy]


def read_shadow(reports: ViewReader, range_: Range) -> ShadowFindings:
    """Read and evaluate the shadow rounds of a time range.

    Raises `StoreError` where this login may not read the tables of rounds.
    """
    reader = reports.shadow()
    history = reader.history(range_.since, range_.until)
    tables = TableCache()
    weighed = []
    for one in rounds_to_weigh(history):
        # One that was pruned meanwhile, or that another release wrote, is not worth the whole report.
        with contextlib.suppress(StoreError, InvalidProblemError):
            weighed.append(weigh(one, *reader.round(one.round_id), tables))
    windows = windows_of(weighed, history)
    accuracy = reports.rows(ModelAccuracy, since=range_.since, until=range_.until, limit=MOST_ROWS).rows
    return ShadowFindings(
        history=history,
        wishes=wishes_of(history),
        weighed=weighed,
        predictions=predictions_of(weighed, windows, reader.measured(windows), _by_number(history)),
        accuracy=accuracy,
    )


def _by_number(history: ShadowHistory) -> dict[str, list[AllocationInterval]]:
    """Return allocation intervals by Slurm job id; jobs with a reused id are together."""
    numbers = {one.job_id: one.slurm_job_id for one in history.jobs}
    found: defaultdict[str, list[AllocationInterval]] = defaultdict(list)
    for job_id, intervals in intervals_by_job(history).items():
        if job_id in numbers:
            found[numbers[job_id]] += intervals
    return found


def shadow_document(findings: ShadowFindings, range_: Range, *, made_at: datetime, command: str) -> Document:
    """Return the report of a daemon in shadow mode."""
    parts: tuple[Part, ...] = (
        moves_part(findings.wishes, every=findings.history.round_stride),
        gain_part(findings.weighed, range_),
        predictions_part(findings.predictions),
        accuracy_part(findings.accuracy, by="account"),
    )
    return Document(
        kind="shadow",
        title="Shadow report",
        lead=_lead(findings.history, range_),
        facts=_facts(findings),
        parts=parts,
        made_at=made_at,
        range=range_,
        command=command,
    )


def _lead(history: ShadowHistory, range_: Range) -> str:
    lead = f"What the daemon decided in shadow mode and did not enact, {range_.text()}."
    if history.rounds:
        return lead
    return f"{lead} There is no such round: pollux daemon --shadow makes them (a longer time: --since 90d)."


def _facts(findings: ShadowFindings) -> tuple[Fact, ...]:
    rounds = findings.history.rounds
    kinds = Counter(one.kind for wish in findings.wishes for one in wish.proposals)
    gains = [one.fitness_gain for one in findings.weighed if one.fitness_gain is not None]
    errors = [abs(one.error) for one in findings.predictions]
    compared = sum(row.num_samples for row in findings.accuracy)
    off = sum(row.mean_abs_error * row.num_samples for row in findings.accuracy)
    return (
        Fact("num_rounds", "Rounds in shadow mode", len(rounds), Kind.COUNT),
        Fact("first_at", "First (UTC)", rounds[0].at if rounds else None, Kind.MOMENT),
        Fact("last_at", "Last (UTC)", rounds[-1].at if rounds else None, Kind.MOMENT),
        Fact("num_jobs", "Jobs decided about", len(findings.wishes), Kind.COUNT),
        Fact(
            "num_moves",
            "Moves asked for",
            sum(kinds.values()),
            Kind.COUNT,
            text=f"{sum(kinds.values()):,}"
            + "".join(f", {kinds[kind]:,} {kind.value}" for kind in MoveKind if kinds[kind]),
        ),
        Fact("median_gain", "Gain in mean speedup, median", median_gain(findings.weighed), Kind.SHARE),
        Fact(
            "median_fitness_gain",
            "Gain in fitness, median",
            statistics.median(gains) if gains else None,
            Kind.SHARE,
        ),
        Fact("num_weighed", "Rounds weighed", len(findings.weighed), Kind.COUNT),
        Fact(
            "median_goodput_error",
            "Goodput predicted off by, median",
            statistics.median(errors) if errors else None,
            Kind.SHARE,
        ),
        Fact(
            "mean_throughput_error",
            "Throughput predicted off by, mean",
            off / compared if compared else None,
            Kind.SHARE,
        ),
    )
