"""Drawings in characters: each node's GPUs, one cell per GPU, and small plots over time. Pure."""

from __future__ import annotations

import string

from rich.text import Text

from pollux_slurm.now.cluster import ClusterNow, NodeNow, NodeState
from pollux_slurm.text import shown

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits
_COLOURS = ("green", "yellow", "blue", "magenta", "cyan", "red")
LEGEND = "letter: job  . free  # other jobs  - drained  x down"


def letters_of(picture: ClusterNow) -> dict[str, str]:
    """Return a letter for each job that holds GPUs; with more than 62 such jobs, letters repeat."""
    holders = sorted({job_id for node in picture.nodes for job_id, _ in node.held}, key=_by_number)
    return {job_id: LETTERS[index % len(LETTERS)] for index, job_id in enumerate(holders)}


def _by_number(job_id: str) -> tuple[int, str]:
    return (len(job_id), job_id)


def letter_style(letter: str) -> str:
    """Return the colour of a job's letter. Colour repeats what the letter says."""
    return _COLOURS[LETTERS.index(letter) % len(_COLOURS)]


def node_lines(picture: ClusterNow, *, width: int, most: int, chosen: str | None) -> list[Text]:
    """Return the nodes in columns, at most `most` lines of `width`; the cells of job `chosen` are reversed.

    Nodes that do not fit are counted in the last line.
    """
    letters = letters_of(picture)
    drawn = [_node(node, letters, chosen) for node in picture.nodes]
    column = min(max((one.cell_len for one in drawn), default=1), width)
    per_line = max((width + 2) // (column + 2), 1)
    room = most if len(drawn) <= most * per_line else most - 1
    lines = []
    for first in range(0, min(len(drawn), room * per_line), per_line):
        line = Text(no_wrap=True, overflow="ellipsis")
        for one in drawn[first : first + per_line]:
            one.pad_right(column + 2 - one.cell_len)
            line.append_text(one)
        line.rstrip()
        lines.append(line)
    hidden = picture.nodes[room * per_line :]
    if hidden:
        free = sum(node.num_free for node in hidden)
        lines.append(Text(f"and {len(hidden)} more nodes with {free} free GPUs"))
    return lines


def _node(node: NodeNow, letters: dict[str, str], chosen: str | None) -> Text:
    text = Text(f"{shown(node.name)[:16]:<6} {shown(node.gpu_type)[:8]} ")
    for job_id, num_gpus in node.held:
        letter = letters[job_id]
        style = f"reverse bold {letter_style(letter)}" if job_id == chosen else letter_style(letter)
        text.append(letter * num_gpus, style=style)
    text.append("#" * node.num_other, style="dim")
    empty = {NodeState.UP: ".", NodeState.DRAINED: "-", NodeState.DOWN: "x"}[node.state]
    text.append(empty * max(node.num_gpus - node.num_held, 0))
    return text
