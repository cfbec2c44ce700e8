"""What is not comparable in two spans of time: other loads, other jobs, or too few of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pollux_slurm.document.columns import Column, Data, Kind
from pollux_slurm.document.document import Part
from pollux_slurm.report.parts.groups import NAMELESS
from pollux_slurm.report.spans.jobs import Span, relative
from pollux_slurm.text import change_text, minute_text, number_text, plural, share_text

Caveat = tuple[str, ...]
_OTHER_LOAD = 0.2
_OTHER_MIX = 0.1
_MANY_UNFINISHED = 0.05
_FEW_JOBS = 30
_MISSING = 0.05


def caveats_part(before: Span, after: Span) -> Part:
    """Return the part that says what else changed between the spans."""
    found = tuple(caveats(before, after))
    return Part(
        title="What is not comparable",
        text="Two spans are not an experiment: whatever else changed between them is in every number here. "
        "Slurm's accounting has neither the cluster's size nor what jobs trained; make sure that both stayed "
        "as they were. "
        + (
            f"Of what it has, {plural(len(found), 'difference')} must be weighed:"
            if found
            else "Of what it has, load, mix and number of jobs are alike."
        ),
        tables=(
            Data(
                key="caveats",
                columns=(
                    Column("about", "about", Kind.TEXT),
                    Column("before", "before", Kind.TEXT),
                    Column("after", "after", Kind.TEXT),
                    Column("caveat", "what to weigh", Kind.TEXT, is_sentence=True),
                ),
                rows=found,
            ),
        ),
    )


def caveats(before: Span, after: Span) -> Iterator[Caveat]:
    """Yield what keeps the spans from being compared: its name, both values, and what follows from it."""
    both = (before, after)
    numbers = [len(span.jobs) for span in both]
    if min(numbers) < _FEW_JOBS:
        yield "number of jobs", *map(str, numbers), "Chance decides about the quartiles of so few jobs."
    yield from _missing_text(before, after)
    for what, per_day in (
        ("jobs a day", [len(span.jobs) / span.days for span in both]),
        ("GPU hours a day", [span.gpu_hours / span.days for span in both]),
    ):
        change = relative(*per_day)
        if change is not None and abs(change) > _OTHER_LOAD:
            how = ("less", "less") if change < 0 else ("more", "longer")
            yield (
                what,
                *map(number_text, per_day),
                f"Another load ({change_text(change)}): with {how[0]} to do, jobs wait {how[1]} under any "
                "scheduler.",
            )
    for what, shares in (
        ("size of jobs", [span.shares_by(lambda job: job.size) for span in both]),
        ("account", [span.shares_by(lambda job: job.account or NAMELESS) for span in both]),
    ):
        name, moved = _most_moved(*shares)
        if moved > _OTHER_MIX:
            yield (
                f"GPU hours by {what}",
                *(f"{share_text(found.get(name, 0.0))} {name}" for found in shares),
                f"Another mix: {share_text(moved)} of the GPU hours are in another group than before; {name} "
                "changed most.",
            )
    open_jobs = [sum(job.ended_at is None for job in span.jobs) for span in both]
    if any(one > _MANY_UNFINISHED * number for one, number in zip(open_jobs, numbers, strict=True)):
        yield (
            "jobs without an end",
            *map(str, open_jobs),
            "Their completion times, which are long, are missing.",
        )
    failed = [span.share(lambda job: job.state not in ("completed", "running")) or 0.0 for span in both]
    if abs(failed[1] - failed[0]) > _OTHER_MIX:
        yield (
            "GPU hours of jobs that did not complete",
            *map(share_text, failed),
            "Failures, time limits and cancellations: an early end is a short completion time.",
        )
    adaptive = [span.share(lambda job: job.adaptive) or 0.0 for span in both]
    if adaptive[1] < 1.0:
        yield (
            "GPU hours of adaptive jobs",
            *map(share_text, adaptive),
            "Only adaptive jobs are moved; the others gain or lose by what these leave to them."
            if adaptive[1]
            else "No job was adaptive after: nothing that changed is the daemon's doing.",
        )
    if adaptive[0] > _OTHER_MIX:
        yield (
            "GPU hours of adaptive jobs before",
            *map(share_text, adaptive),
            f"Jobs were adaptive before, too ({share_text(adaptive[0])} of GPU hours): this compares Pollux "
            "with itself.",
        )


def _missing_text(before: Span, after: Span) -> Iterator[Caveat]:
    """Yield at which end of a span sacct's text has no job for a noticeable part of the span."""
    both = (before, after)
    first, last = [span.first_at for span in both], [span.last_at for span in both]
    for span, first_at, last_at in zip(both, first, last, strict=True):
        noticeable = (span.range.until - span.range.since) * _MISSING
        if first_at is not None and first_at - span.range.since > noticeable:
            yield (
                "first job in sacct's text",
                *map(_moment, first),
                f"{span.name.capitalize()}: the text begins {first_at:%Y-%m-%d}, within the span. Jobs "
                "before that are missing, unless there were none.",
            )
        if last_at is not None and span.range.until - last_at > noticeable:
            yield (
                "last job in sacct's text",
                *map(_moment, last),
                f"{span.name.capitalize()}: the text ends {last_at:%Y-%m-%d}, within the span. Jobs "
                "after that are missing, unless there were none.",
            )


def _most_moved(before: dict[str, float], after: dict[str, float]) -> tuple[str, float]:
    """Return the group whose share changed most, and the share that is in other groups than before."""
    changes = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in before | after}
    if not changes:
        return "", 0.0
    largest = max(sorted(changes), key=lambda name: abs(changes[name]))
    return largest, sum(abs(change) for change in changes.values()) / 2


def _moment(moment: datetime | None) -> str:
    return "" if moment is None else minute_text(moment)
