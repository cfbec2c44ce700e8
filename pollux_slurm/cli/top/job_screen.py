"""A look into one job: goodput, batch size and GPUs over time, and what `pollux explain` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from textwrap import wrap
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from pollux_slurm.document.charts.time_axes import time_axis
from pollux_slurm.document.forms.terminal import sparkline
from pollux_slurm.errors import PolluxError
from pollux_slurm.now.cluster import ClusterNow
from pollux_slurm.now.explained import explain_job
from pollux_slurm.now.explained_text import lines
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.store.contract.interface import AllocationRecord, Sample, Store
from pollux_slurm.store.reporting.queries import ViewReader
from pollux_slurm.store.reporting.view_rows import SamplePoint
from pollux_slurm.text import number_text, shortened, shown, since_text

_MOST_INTERVALS = 8
_ASCII_BARS = str.maketrans("▁▂▃▄▅▆▇█", ".:-=+*%#")
_LABEL_WIDTH = 13  # of an explanation's lines: what follows the label begins there


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """What the store has of one job over time, and its explanation in lines.

    `samples` are averaged to some hundred points. `measured` is the newest sample, None while there is none
    of the present GPUs.
    """

    title: str
    measured: Sample | None
    samples: tuple[SamplePoint, ...]
    allocations: tuple[AllocationRecord, ...]
    explanation: tuple[str, ...]


def read_story(store: Store, reports: ViewReader, job_id: str, picture: ClusterNow) -> JobStory:
    """Read one job, which is as in `picture` unless it has ended; raises what the store raises."""
    of_picture = (job for job in picture.jobs if job.record.slurm_job_id == job_id)
    job = next(of_picture, None) or JobNow(record=store.jobs.get(job_id))
    known = explain_job(store, job, store.rounds.decision(job_id), picture.daemon, picture.read_at)
    return JobStory(
        title=f"job {job_id}  {shortened(shown(job.record.name), 30)}  of {shown(job.record.user_name)}",
        measured=job.measured,
        samples=reports.samples(job_id),
        allocations=store.history.allocations(job_id),
        explanation=tuple(shown(line) for line in lines(known)),
    )


def story_text(story: JobStory, *, width: int, now: datetime, is_ascii: bool) -> str:
    """Return the page for a terminal of `width` characters."""
    goodputs = [(one.at, one.goodput) for one in story.samples if one.goodput is not None]
    batches = [(one.at, float(one.batch.global_batch_size)) for one in story.samples if one.batch is not None]
    indent = " " * _LABEL_WIDTH
    found = [story.title, ""]
    for line in story.explanation:
        found += wrap(
            line, max(width, 2 * _LABEL_WIDTH), subsequent_indent=indent, break_on_hyphens=False
        ) or [""]
    found.append("")
    measured, batch_now = story.measured, None if story.measured is None else story.measured.batch
    for name, unit, points, value in (
        ("goodput", " examples/s", goodputs, None if measured is None else measured.goodput),
        ("batch size", "", batches, None if batch_now is None else batch_now.global_batch_size),
    ):
        if not points:
            found.append(f"{name}: nothing reported yet")
            continue
        low, high = min(one for _, one in points), max(one for _, one in points)
        now_text = "-" if value is None else number_text(value)
        ends = f"since {points[0][0]:%m-%d %H:%M} UTC"
        found.append(f"{name}: {number_text(low)} to {number_text(high)}{unit}, now {now_text}  ({ends})")
        in_s = [(at.timestamp(), value) for at, value in points]
        bars = sparkline(in_s, time_axis(at for at, _ in points), min(max(width - 4, 10), len(points)))
        found.append(f"  {bars.translate(_ASCII_BARS) if is_ascii else bars}")
    found += ["", "GPUs over time (UTC)" if story.allocations else "GPUs over time: none yet"]
    most = max((one.allocation.num_gpus for one in story.allocations), default=1) or 1
    hidden = len(story.allocations) - _MOST_INTERVALS
    if hidden > 0:
        found.append(f"  and {hidden} earlier")
    for one in story.allocations[-_MOST_INTERVALS:]:
        number = one.allocation.num_gpus
        bar = ("#" if is_ascii else "█") * max(round(20 * number / most), 1 if number else 0)
        lasted = since_text(one.started_at, one.ended_at or now)
        where = shortened(shown(str(one.allocation)), max(width - 62, 12))
        found.append(f"  {one.started_at:%m-%d %H:%M:%S} {lasted:>8} {number:4} {bar:<20} {where}")
    return "\n".join(found)


class JobScreen(Screen[None]):
    """Shows the story of one job; the app reads it in a worker and gives it to `show`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "app.pop_screen", "Back"),
        ("p", "app.pause", "Pause"),
        ("r", "app.resume", "Resume"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, job_id: str, now: Callable[[], datetime], *, is_ascii: bool) -> None:
        super().__init__()
        self.job_id = job_id
        self._now = now
        self._is_ascii = is_ascii
        self._story: JobStory | PolluxError | None = None

    def compose(self) -> ComposeResult:
        yield VerticalScroll(Static(id="story", markup=False))
        yield Footer()

    def show(self, story: JobStory | PolluxError) -> None:
        """Show what was read; after an error, the last story stays."""
        if isinstance(story, JobStory) or not isinstance(self._story, JobStory):
            self._story = story
        self.on_resize()

    def on_resize(self) -> None:
        """Draw what was read; nothing on a screen that is not there yet, or was left during the read."""
        for place in self.query("#story").results(Static):
            text = self._text()
            place.update(in_ascii(text) if self._is_ascii else text)

    def _text(self) -> str:
        if self._story is None:
            return f"reading job {self.job_id} ..."
        if isinstance(self._story, PolluxError):
            return f"job {self.job_id} cannot be read: {shown(str(self._story))}"
        return story_text(self._story, width=self.size.width - 2, now=self._now(), is_ascii=self._is_ascii)


def in_ascii(text: str) -> str:
    """Return the text for a terminal that shows ASCII only."""
    return text.replace("→", "->").replace("…", "~").encode("ascii", "replace").decode()
