"""What the demo shows while it runs: the GPUs of each node, the jobs, and what happened and why.

`Story` notices events in the store; `screen` draws one picture of 80 columns. A log gets the events alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rich.console import Group
from rich.table import Table
from rich.text import Text

from pollux_slurm.document.columns import Kind, text_of
from pollux_slurm.model import JobState, ReallocationStep, ReallocationWay
from pollux_slurm.store.contract.interface import JobRecord, Reallocation, Store
from pollux_slurm.store.journal.move_costs import reallocation_costs
from pollux_slurm.text import number_text

LETTERS = "ABCDEFGH"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red", "white", "bright_cyan")
_EVENTS_SHOWN = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, `at_s` seconds after the demo's start."""

    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{clock(self.at_s)}  {self.text}"


class Story:
    """The events of a run, in the order in which the store shows them."""

    def __init__(self, begin: datetime) -> None:
        self._begin = begin
        self._told: set[tuple[object, ...]] = set()
        self.events: list[Event] = []

    def update(self, store: Store) -> list[Event]:
        """Read the store; return what is new since the last call."""
        records = sorted(store.jobs.all(), key=lambda record: record.submitted_at)
        moves = [move for record in records for move in store.journal.reallocations(record.slurm_job_id)]
        names = {record.slurm_job_id: name_of(record) for record in records}
        found: list[Event] = []
        for record in records:
            self._add(found, ("arrives", record.slurm_job_id), record.submitted_at, arrival_text(record))
            if record.started_at is not None and record.allocation:
                text = f"{name_of(record)} starts on {record.allocation}"
                self._add(found, ("starts", record.slurm_job_id), record.started_at, text)
        for move in moves:
            if not move.moves_running or ((move.id, "planned") in self._told and not move.step.is_end):
                continue
            self._add(found, (move.id, "planned"), move.times[0][1], plan_text(move, moves, names, store))
            if move.step.is_end:
                text = end_text(move, names[move.slurm_job_id])
                self._add(found, (move.id, "ended"), move.times[-1][1], text)
        for record in records:
            if record.state.is_over and record.finished_at is not None:
                took = clock((record.finished_at - record.submitted_at).total_seconds())
                text = f"{name_of(record)} has {record.state.value} after {took}; its GPUs are free"
                self._add(found, ("ends", record.slurm_job_id), record.finished_at, text)
        found.sort(key=lambda event: event.at_s)
        self.events += found
        return found

    def _add(self, found: list[Event], key: tuple[object, ...], at: datetime, text: str) -> None:
        if key not in self._told:
            self._told.add(key)
            found.append(Event(at_s=(at - self._begin).total_seconds(), text=text))


def arrival_text(record: JobRecord) -> str:
    """Return what a job asks for when it arrives."""
    low, high = record.terms.min_gpus, record.terms.max_gpus
    number = f"{low} or more" if high is None else str(low) if low == high else f"{low} to {high}"
    return f"{name_of(record)} arrives and asks for {number} GPUs"


def plan_text(
    move: Reallocation, moves: Iterable[Reallocation], names: Mapping[str, str], store: Store
) -> str:
    """Return where a job goes and why; with its predicted goodput while the last round planned the move."""
    name, source, target = names[move.slurm_job_id], move.source.num_gpus, move.target.num_gpus
    way = "in place" if move.way is ReallocationWay.IN_PLACE else "by requeue"
    if target > source:
        decided = store.rounds.decision(move.slurm_job_id)
        planned_at, just_before = move.times[0][1], timedelta(seconds=2)
        goodput = None
        if decided is not None and planned_at - just_before <= decided.at <= planned_at:
            goodput = decided.job.goodput
        predicted = "" if goodput is None else f" (predicted: {number_text(goodput)} examples/s)"
        return f"{name} grows {source} → {target} GPUs {way}: free GPUs make it faster{predicted}"
    if target < source:
        takers = sorted(
            names[other.slurm_job_id]
            for other in moves
            if other.target.num_gpus > other.source.num_gpus
            and abs((other.times[0][1] - move.times[0][1]).total_seconds()) < 1.0
        )
        why = f"to make room for {', '.join(takers)}" if takers else "others gain more from them"
        return f"{name} shrinks {source} → {target} GPUs {way}: {why}"
    return f"{name} goes {move.source} → {move.target} {way}"


def end_text(move: Reallocation, name: str) -> str:
    """Return how a move ended, with what it cost."""
    if move.step is not ReallocationStep.CONFIRMED:
        why = f" ({move.reason})" if move.reason else ""
        return f"{name}: the move to {move.target} is {move.step.value.replace('_', ' ')}{why}; it trains on"
    cost = reallocation_costs(move)
    stood = cost.standstill_s if move.way is ReallocationWay.IN_PLACE else cost.total_s
    lost = "" if stood is None else f"; it stood still for {stood:.1f} s"
    return f"{name} trains with {move.target.num_gpus} GPUs on {move.target}{lost}"


def screen(
    records: Sequence[JobRecord], events: Sequence[Event], *, gpus_by_node: Mapping[str, int], at_s: float
) -> Group:
    """Return the picture of one moment."""
    active = [record for record in records if not record.state.is_over]
    marks = {record.slurm_job_id: index for index, record in enumerate(records)}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "job", "state"):
        table.add_column(column, no_wrap=True)
    for column in ("GPUs", "batch", "examples/s", "epoch"):
        table.add_column(column, no_wrap=True, justify="right")
    for record in active:
        sample, mark = record.sample, marks[record.slurm_job_id]
        table.add_row(
            _lettered(mark),
            name_of(record),
            _state_text(record),
            str(record.allocation.num_gpus or "-"),
            str(sample.batch.global_batch_size) if sample and sample.batch else "-",
            number_text(sample.goodput) if sample and sample.goodput is not None else "-",
            f"{sample.epoch}/{sample.total_epochs or '?'}" if sample else "-",
        )
    return Group(
        Text.assemble(("pollux demo ", "bold"), clock(at_s), _totals(active, gpus_by_node)),
        gpu_picture(active, marks, gpus_by_node),
        Text(),
        table,
        Text(),
        Text("What happened, and why", style="bold"),
        *(Text(str(event), no_wrap=False) for event in events[-_EVENTS_SHOWN:]),
    )


def gpu_picture(
    records: Iterable[JobRecord], marks: Mapping[str, int], gpus_by_node: Mapping[str, int]
) -> Text:
    """Return one cell for each GPU: the letter of the job that holds it, a dot where none does."""
    picture = Text()
    held = [(record.slurm_job_id, dict(record.allocation.gpus_by_node)) for record in records]
    for node, num_gpus in gpus_by_node.items():
        cells = [marks[job] for job, nodes in held for _ in range(nodes.get(node, 0))]
        picture.append(f"{node} [")
        for mark in cells:
            picture.append(" ")
            picture.append_text(_lettered(mark))
        picture.append(" ." * max(num_gpus - len(cells), 0) + " ]   ")
    return picture


def name_of(record: JobRecord) -> str:
    """Return a job's name, without what could move the terminal's cursor, and short enough for a table."""
    return text_of(record.name, Kind.TEXT, most=24)


def clock(seconds: float) -> str:
    """Return minutes and seconds."""
    whole = max(int(seconds), 0)
    return f"{whole // 60}:{whole % 60:02}"


def _totals(active: Sequence[JobRecord], gpus_by_node: Mapping[str, int]) -> str:
    held, total = sum(record.allocation.num_gpus for record in active), sum(gpus_by_node.values())
    waiting = sum(record.state is JobState.PENDING for record in active)
    return f"   {held} of {total} GPUs held by {len(active) - waiting} jobs, {waiting} waiting"


def _lettered(mark: int) -> Text:
    return Text(LETTERS[mark % len(LETTERS)], style=f"bold {COLOURS[mark % len(COLOURS)]}")


def _state_text(record: JobRecord) -> str:
    move = record.open_reallocation
    if move is None or not move.moves_running:
        return "waits" if record.state is JobState.PENDING else "trains"
    return f"to {move.target.num_gpus} GPUs"
