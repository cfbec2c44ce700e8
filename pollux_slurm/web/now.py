"""The page of now: GPUs by node, jobs, moves under way, last decisions, as texts for a template."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.now.cluster import ClusterNow, NodeNow
from pollux_slurm.now.job_table import columns_for, has_warning
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.report.document.document import Kind, text_of
from pollux_slurm.report.document.page import Table
from pollux_slurm.text import ago_text, plural

MOST_JOBS, MOST_DECISIONS = 200, 20
_ON_OTHER_PAGES = ("speedup", "restarts", "checkpoint_bytes", "age", "nodes", "decision")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbouring GPUs of a node: of one `job`, or free, or of others where that is empty."""

    job: str
    text: str
    num_gpus: int
    style: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node as a row of blocks."""

    name: str
    text: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NowPage:
    """All that the page shows, in the order in which it does."""

    daemon: str
    is_served: bool
    totals: str
    nodes: tuple[NodeRow, ...]
    jobs: Table
    moves: Table | None
    decisions: Table | None


def now_page(picture: ClusterNow) -> NowPage:
    """Return the page of a picture."""
    active = [job for job in picture.jobs if not job.record.state.is_over]
    shown = active[:MOST_JOBS]
    styles = {job.record.slurm_job_id: index for index, job in enumerate(active)}
    total = sum(node.num_gpus for node in picture.nodes)
    free = sum(node.num_free for node in picture.nodes)
    running = sum(job.record.allocation.num_gpus > 0 for job in active)
    columns = columns_for(shown, without=_ON_OTHER_PAGES)
    rows = tuple(tuple(column.text(job, picture) for column in columns) for job in shown)
    return NowPage(
        daemon=picture.daemon_sentence,
        is_served=picture.missing is None,
        totals=f"{total - free:,} of {plural(total, 'GPU')} held; {plural(running, 'job')} hold GPUs, "
        f"{len(active) - running:,} wait.",
        nodes=tuple(_node(node, styles) for node in picture.nodes),
        jobs=Table(
            columns=tuple(column.title for column in columns),
            keys=tuple(column.key for column in columns),
            rows=rows,
            values=tuple(
                (*row[:3], job.record.account, *row[4:]) for row, job in zip(rows, shown, strict=True)
            ),
            texts=tuple(place for place, column in enumerate(columns) if place and column.is_words),
            note=_note(picture, shown, len(active)),
        ),
        moves=_moves(picture),
        decisions=_decisions(picture),
    )


def _note(picture: ClusterNow, shown: list[JobNow], num_active: int) -> str:
    notes = []
    if any(has_warning(job, picture) for job in shown):
        notes.append("A ! after a state: pollux explain JOB says what to look at.")
    if len(shown) < num_active:
        of_all = f"{len(shown):,} of {num_active:,} jobs, the oldest first"
        notes.append(f"{of_all}; all are on the page of jobs.")
    return " ".join(notes)


def _node(node: NodeNow, styles: dict[str, int]) -> NodeRow:
    blocks = [
        Block(
            job=job,
            text=f"{job} ×{number}" if number > 1 else job,
            num_gpus=number,
            style=styles.get(job, 7) % 8,
        )
        for job, number in node.held
    ]
    rest = node.num_gpus - sum(block.num_gpus for block in blocks) - node.num_other
    if node.num_other:
        blocks.append(Block(job="", text=f"others ×{node.num_other}", num_gpus=node.num_other, style=-1))
    if rest > 0:
        word = "free" if node.num_free else node.state.value
        blocks.append(Block(job="", text=f"{word} ×{rest}", num_gpus=rest, style=-2))
    return NodeRow(name=node.name, text=node.gpu_type or "GPU", blocks=tuple(blocks))


def _moves(picture: ClusterNow) -> Table | None:
    rows = tuple(
        (
            job.record.slurm_job_id,
            text_of(job.record.name, Kind.TEXT, most=30),
            str(move.source),
            str(move.target),
            "in place" if move.way.value == "in_place" else "by requeue",
            move.step.text,
            ago_text(move.times[0][1] if move.times else None, picture.read_at),
        )
        for job, move in picture.moves
    )
    return (
        Table(
            columns=("job", "name", "from", "to", "way", "step", "planned"),
            keys=("slurm_job_id", "name", "from", "to", "way", "step", "planned"),
            rows=rows,
            texts=(1, 2, 3, 4, 5),
        )
        if rows
        else None
    )


def _decisions(picture: ClusterNow) -> Table | None:
    rows = tuple(
        (one.slurm_job_id, str(one.allocation), one.reason, ago_text(one.at, picture.read_at))
        for one in picture.decisions[:MOST_DECISIONS]
    )
    return (
        Table(
            columns=("job", "allocation", "bound by", "decided"),
            keys=("slurm_job_id", "allocation", "reason", "at"),
            rows=rows,
            texts=(1, 2),
        )
        if rows
        else None
    )
