"""A look into one job: what `pollux explain` says, and its report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from textwrap import wrap
from typing import ClassVar

from rich.console import Console
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from pollux_slurm.document.document import Document
from pollux_slurm.document.forms.terminal import document_text
from pollux_slurm.errors import PolluxError
from pollux_slurm.now.cluster import ClusterNow
from pollux_slurm.now.explained import explain_job
from pollux_slurm.now.explained_text import lines
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.report.job import job_document
from pollux_slurm.report.reading import read_job
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.reporting.queries import ViewReader
from pollux_slurm.text import shown

_IN_ASCII = str.maketrans({**dict(zip("▁▂▃▄▅▆▇█–−─×", ".:-=+*%#---x", strict=True)), "→": "->", "…": "~"})
_LABEL_WIDTH = 13  # of an explanation's lines: what follows the label begins there
_MOST_SAMPLES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStory:
    """What `pollux explain` says of a job, in lines, and its report without single values."""

    explanation: tuple[str, ...]
    report: Document


def read_story(store: Store, reports: ViewReader, job_id: str, picture: ClusterNow) -> JobStory:
    """Read one job, which is as in `picture` unless it has ended; raises what the store raises."""
    of_picture = (job for job in picture.jobs if job.record.slurm_job_id == job_id)
    job = next(of_picture, None) or JobNow(record=store.jobs.get(job_id))
    known = explain_job(store, job, store.rounds.decision(job_id), picture.daemon, picture.read_at)
    history = read_job(reports, job_id, most_samples=_MOST_SAMPLES)
    return JobStory(
        explanation=tuple(shown(line) for line in lines(known)),
        report=replace(job_document(history, made_at=picture.read_at), facts=()),
    )


def story_text(story: JobStory, *, width: int) -> str:
    """Return the page for a terminal of `width` characters."""
    found, console = [], Console(width=width, no_color=True, force_terminal=False)
    for line in story.explanation:
        found += wrap(
            line, max(width, 2 * _LABEL_WIDTH), subsequent_indent=" " * _LABEL_WIDTH, break_on_hyphens=False
        ) or [""]
    return "\n".join([*found, "", document_text(story.report, console)])


class JobScreen(Screen[None]):
    """Shows the story of one job; the app reads it in a worker and gives it to `show`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "app.pop_screen", "Back"),
        ("p", "app.pause", "Pause"),
        ("r", "app.resume", "Resume"),
        ("q", "app.quit", "Quit"),
    ]

    def __init__(self, job_id: str, *, is_ascii: bool) -> None:
        super().__init__()
        self.job_id = job_id
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
        return story_text(self._story, width=self.size.width - 2)


def in_ascii(text: str) -> str:
    """Return the text for a terminal that shows ASCII only."""
    return text.translate(_IN_ASCII).encode("ascii", "replace").decode()
