"""The page of now: GPUs by node, jobs, moves under way, last decisions, as texts for a template."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.now.cluster import ClusterNow, NodeNow
from pollux_slurm.now.promises import slack_of
from pollux_slurm.report.document.document import Kind, text_of
from pollux_slurm.report.document.page import Table
from pollux_slurm.text import UNKNOWN, ago_text, plural

MOST_JOBS, MOST_DECISIONS = 200, 20


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
    asks = any(job.record.terms.finish_by is not None for job in shown)
    running = sum(job.record.allocation.num_gpus > 0 for job in active)
    rows = tuple(
        (
            job.record.slurm_job_id,
            text_of(job.record.name, Kind.TEXT, most=30),
            text_of(job.record.user_name, Kind.TEXT, most=20),
            text_of(job.record.account, Kind.TEXT, most=30),
            picture.state_of(job),
            text_of(job.record.allocation.num_gpus, Kind.COUNT),
            text_of(None if batch is None else batch.global_batch_size, Kind.COUNT),
            text_of(None if measured is None else measured.goodput, Kind.NUMBER),
            UNKNOWN if sample is None else f"{sample.epoch}/{sample.total_epochs or '?'}",
            ago_text(None if sample is None else sample.at, picture.read_at),
            *([slack_of(job.record)] if asks else []),
        )
        for job in shown
        for sample, measured in [(job.record.sample, job.measured)]
        for batch in [None if measured is None else measured.batch]
    )
    return NowPage(
        daemon=picture.daemon_sentence,
        is_served=picture.missing is None,
        totals=f"{total - free:,} of {plural(total, 'GPU')} held; {plural(running, 'job')} hold GPUs, "
        f"{len(active) - running:,} wait.",
        nodes=tuple(_node(node, styles) for node in picture.nodes),
        jobs=Table(
            columns=(
                "job",
                "name",
                "user",
                "account",
                "state",
                "GPUs",
                "batch",
                "goodput (/s)",
                "epoch",
                "reported",
                *(["slack"] if asks else []),
            ),
            keys=(
                "slurm_job_id",
                "name",
                "user_name",
                "account",
                "state",
                "gpus",
                "batch",
                "goodput",
                "epoch",
                "at",
                *(["slack"] if asks else []),
            ),
            rows=rows,
            values=tuple(
                (*row[:3], job.record.account, *row[4:]) for row, job in zip(rows, shown, strict=True)
            ),
            texts=(1, 2, 3, 4),
            note=""
            if len(shown) == len(active)
            else f"{len(shown):,} of {len(active):,} jobs, the oldest first; all are on the page of jobs.",
        ),
        moves=_moves(picture),
        decisions=_decisions(picture),
    )


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
