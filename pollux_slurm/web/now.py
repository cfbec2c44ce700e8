"""The page of now, as texts: GPUs by node, jobs up to a limit, moves under way, last decisions."""

from __future__ import annotations

from dataclasses import dataclass

from pollux_slurm.document.columns import Data
from pollux_slurm.now.cluster import ClusterNow, NodeNow
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.now.tables import decisions_data, has_warning, jobs_data, moves_data
from pollux_slurm.text import plural

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
class NodeOnPage:
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
    nodes: tuple[NodeOnPage, ...]
    jobs: Data
    moves: Data
    decisions: Data


def now_page(picture: ClusterNow) -> NowPage:
    """Return the page of a picture."""
    active = [job for job in picture.jobs if not job.record.state.is_over]
    shown = active[:MOST_JOBS]
    styles = {job.record.slurm_job_id: index for index, job in enumerate(active)}
    return NowPage(
        daemon=picture.daemon_sentence,
        is_served=picture.missing is None,
        totals=f"{picture.num_held:,} of {plural(picture.num_gpus, 'GPU')} held; "
        f"jobs: {picture.jobs_sentence}.",
        nodes=tuple(_node(node, styles) for node in picture.nodes),
        jobs=jobs_data(picture, shown, without=_ON_OTHER_PAGES, note=_note(picture, shown, len(active))),
        moves=moves_data(picture),
        decisions=decisions_data(picture, most=MOST_DECISIONS),
    )


def _note(picture: ClusterNow, shown: list[JobNow], num_active: int) -> str:
    notes = []
    if any(has_warning(job, picture) for job in shown):
        notes.append("A ! after a state: pollux explain JOB says what to look at.")
    if len(shown) < num_active:
        of_all = f"{len(shown):,} of {num_active:,} jobs, the oldest first"
        notes.append(f"{of_all}; all are on the page of jobs.")
    return " ".join(notes)


def _node(node: NodeNow, styles: dict[str, int]) -> NodeOnPage:
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
    return NodeOnPage(name=node.name, text=node.gpu_type or "GPU", blocks=tuple(blocks))
