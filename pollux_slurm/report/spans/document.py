"""The report of two spans of time beside each other: before Pollux served a site, and after."""

from __future__ import annotations

from datetime import datetime

from pollux_slurm.document.columns import Kind, text_of
from pollux_slurm.document.document import Document, Fact
from pollux_slurm.report.spans.caveats import caveats_part
from pollux_slurm.report.spans.jobs import Span, quartiles, relative
from pollux_slurm.report.spans.tables import (
    MEASURES,
    groups_part,
    hours_part,
    measured_shares,
    mix_part,
    times_part,
    values_of,
)
from pollux_slurm.text import change_text


def before_after_document(before: Span, after: Span, *, made_at: datetime, command: str) -> Document:
    """Return the report: what changed for the jobs, and what must be weighed before saying why."""
    return Document(
        kind="before_after",
        title="Before and after",
        lead=f"Jobs with GPUs that were submitted before, {before.range.text()}, and after, "
        f"{after.range.text()}, as Slurm accounted for them.",
        facts=_facts(before, after),
        parts=(
            times_part(before, after),
            caveats_part(before, after),
            hours_part(before, after),
            mix_part(before, after),
            groups_part(before, after),
        ),
        made_at=made_at,
        command=command,
    )


def _facts(before: Span, after: Span) -> tuple[Fact, ...]:
    spans = (before, after)
    facts = [
        _fact(
            f"median_{name.replace(' ', '_')}",
            f"Median {name}",
            Kind.SECONDS,
            *(quartiles(values_of(span.jobs, measure))[1] for span in spans),
        )
        for name, measure in MEASURES
    ]
    useful = [measured_shares(span)[1] for span in spans]
    if any(share is not None for share in useful):
        facts.append(_fact("useful_share", "Useful share", Kind.SHARE, *useful))
    return (
        *facts,
        _fact("num_jobs", "Jobs", Kind.COUNT, *(len(span.jobs) for span in spans)),
        _fact(
            "gpu_hours_a_day", "GPU hours a day", Kind.NUMBER, *(span.gpu_hours / span.days for span in spans)
        ),
    )


def _fact(key: str, title: str, kind: Kind, before: float | None, after: float | None) -> Fact:
    """Return a fact whose value is the change, and whose text has both values."""
    change = relative(before, after)
    text = f"{text_of(before, kind)} → {text_of(after, kind)}"
    if change is not None:
        text += f" ({change_text(change)})"
    return Fact(f"{key}_change", title, change, Kind.SHARE, text=text)
