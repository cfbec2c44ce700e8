"""Resources that jobs share by place: the GPUs of each cell of nodes, places for multi-node jobs, node parts.

A *class* is the jobs that may use the same nodes. A *cell* is the nodes of one GPU type that the same classes
may use, so GPUs that are free in one partition do not count in another. Nodes that accept no new jobs, or
that no job here may use, are in no cell. Jobs on them may stay.

A cell has A resources: its GPUs; its places for multi-node jobs, one a node; and parts of its nodes. The
measures of parts (`_parts`) count a share for more than its GPUs if the rest of the node is of little use:
three GPUs of four count as the whole node, two as half, one as nothing.

Legend: J jobs, C columns, n nodes, T GPU types, E classes, X cells; S = A·X shared resources in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pollux_slurm.policy.candidates.candidates import Candidates
from pollux_slurm.policy.problem.configurations import ConfigurationColumns
from pollux_slurm.policy.problem.node_sets import Cluster, NodeSet, members_of, need
from pollux_slurm.policy.problem.speedup_tables import SpeedupTables

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Need = tuple[int, int, int]

# Limits for clusters with many partitions. Beyond so many classes, a job counts as one that may use every
# node. Beyond so many cells, they are not divided further. The upper bound stays valid.
MAX_CLASSES, MAX_CELLS = 16, 24


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resources:
    """The use of shared resources, and their amounts. S counts resources first, then cells.

    `use` (A, C, X) is the use of a column that is placed in one cell, `stay_use` (J', S) that of each current
    allocation, `total` (S,) the amounts. `may` (E, C, X) marks the cells in which a class may have a column.
    `possible` (J, C) marks the columns for which a job finds enough GPUs, CPUs and memory beside the jobs
    that stay; None if it finds them for all. `class_of` (J,) is each job's class, `cell_of` (n,) each node's
    cell, −1 for none, and `kind_of` (X,) each cell's GPU type.
    """

    use: FloatArray
    stay_use: FloatArray
    total: FloatArray
    may: BoolArray
    possible: BoolArray | None
    class_of: IntArray
    cell_of: IntArray
    kind_of: IntArray


def shared_resources(candidates: Candidates, cluster: Cluster) -> Resources:
    """Return the resources of a cluster that jobs share, and their use by each candidate."""
    tables = candidates.tables
    masks, class_of = _classes(candidates, cluster)
    cells, kind_of = _cells(masks, cluster, len(tables.kinds))
    facts = cluster.facts
    cell_of, inside = facts.cached(("cells", tuple(cells)), lambda: _cell_of(cells, len(cluster.names)))
    rows, where, gpus = _current_gpus(candidates, cluster)
    fixed = np.concatenate(
        [candidates.settled, np.ones(len(candidates.all_jobs) - candidates.num_jobs, dtype=bool)]
    )
    left = _left(candidates, cluster, fixed, rows, where, gpus)
    size = _sizes(candidates, cluster, fixed, left)
    widest = cluster.max_gpus_per_node
    largest = tuple([int(size[here].max(initial=0)) for here in inside])
    parts, use = facts.cached(
        ("use", tables.columns, largest, widest), lambda: _uses(tables.columns, largest, widest)
    )

    wide = np.bincount(rows, minlength=len(candidates.all_jobs))[rows] > 1
    spans = np.bincount(where[wide], minlength=len(size))
    current_use = np.zeros((len(candidates.all_jobs), len(use), len(cells)))
    somewhere = cell_of[where] >= 0
    np.add.at(current_use[:, 1], (rows[somewhere & wide], cell_of[where[somewhere & wide]]), 1.0)
    # What stays whatever happens is off the nodes' sizes already.
    counted = somewhere & ~fixed[rows]
    at = (rows[counted], cell_of[where[counted]])
    np.add.at(current_use[:, 0], at, gpus[counted])
    for number, part in enumerate(parts):
        np.add.at(current_use[:, 2 + number], at, part[at[1], gpus[counted]])

    total = np.zeros((len(use), len(cells)))
    # Jobs over several nodes that share one already may go on doing so.
    places = np.maximum(spans, cluster.capacity[:, 0] > 0)
    for cell, here in enumerate(inside):
        total[0, cell] = size[here].sum()
        total[1, cell] = places[here].sum()
        total[2:, cell] = parts[:, cell, size[here]].sum(axis=1)
    return Resources(
        use=use,
        stay_use=current_use.reshape(len(current_use), total.size),
        total=total.reshape(-1),
        may=_allowed(candidates, cluster, masks, cells, kind_of),
        possible=_possible(candidates, cluster, masks, class_of, left)
        if cluster.is_tight or fixed.any()
        else None,
        class_of=class_of,
        cell_of=cell_of,
        kind_of=kind_of,
    )


def _cell_of(cells: Sequence[NodeSet], num_nodes: int) -> tuple[IntArray, list[BoolArray]]:
    """Return each node's cell (n,), −1 for none, and which nodes are in each."""
    cell_of = np.full(num_nodes, -1, dtype=np.int64)
    for cell, nodes in enumerate(cells):
        cell_of[list(members_of(nodes))] = cell
    return cell_of, [cell_of == cell for cell in range(len(cells))]


def _uses(
    columns: ConfigurationColumns, largest: Sequence[int], widest: int
) -> tuple[FloatArray, FloatArray]:
    """Return `_parts` by measure and cell, given the `largest` node of each cell, and what columns use."""
    measures = (1,) if widest <= 4 else (1, 2, 3)
    parts = np.array([[_parts(m, size, widest) for size in largest] for m in measures])
    share = np.minimum(columns.per_node, widest)  # 0 where shares are free to choose
    use = np.empty((2 + len(measures), len(share), len(largest)))
    use[0] = columns.num_gpus[:, None]
    use[1] = np.where(columns.num_nodes > 1, columns.num_nodes, 0)[:, None]
    use[2:] = parts[:, :, share].transpose(0, 2, 1) * columns.num_nodes[:, None]
    return parts, use


def _classes(candidates: Candidates, cluster: Cluster) -> tuple[list[NodeSet], IntArray]:
    """Return the nodes of each class, that of most jobs first, and each job's class (J,)."""
    if all(job.partition_nodes is None for job in candidates.jobs):
        return [cluster.open], np.zeros(candidates.num_jobs, dtype=np.int64)
    known: dict[frozenset[str] | None, NodeSet] = {None: cluster.open}
    sets = []
    for job, settled in zip(candidates.jobs, candidates.settled.tolist(), strict=True):
        if job.partition_nodes not in known:
            known[job.partition_nodes] = cluster.eligible(job)
        # A job that stays as it is asks for no node.
        sets.append(None if settled else known[job.partition_nodes])
    counted = Counter(nodes for nodes in sets if nodes is not None).most_common()
    order = [nodes for nodes, _ in counted] or [cluster.open]
    if len(order) > MAX_CLASSES:
        order = [*[nodes for nodes in order if nodes != cluster.open][: MAX_CLASSES - 1], cluster.open]
    index = {nodes: number for number, nodes in enumerate(order)}
    other = index.get(cluster.open, 0)
    found = [other if nodes is None else index.get(nodes, other) for nodes in sets]
    return order, np.array(found, dtype=np.int64)


def _cells(masks: list[NodeSet], cluster: Cluster, num_kinds: int) -> tuple[list[NodeSet], IntArray]:
    """Return the nodes of each cell and its GPU type (X,); there is one cell at least."""
    anyone = 0
    for mask in masks:
        anyone |= mask
    cells = [
        (nodes, kind)
        for kind, of_kind in enumerate(cluster.of_kind[:num_kinds])
        if (nodes := of_kind & anyone)
    ]
    for mask in masks:
        parts = [(part, kind) for nodes, kind in cells for part in (nodes & mask, nodes & ~mask) if part]
        if len(parts) <= MAX_CELLS or len(parts) == len(cells):
            cells = parts
    cells = cells or [(0, 0)]
    return [nodes for nodes, _ in cells], np.array([kind for _, kind in cells], dtype=np.int64)


def _current_gpus(candidates: Candidates, cluster: Cluster) -> tuple[IntArray, IntArray, IntArray]:
    """Return row, node and GPUs of all current allocations."""
    found = [
        (row, cluster.index[name], gpus)
        for row, job in enumerate(candidates.all_jobs)
        for name, gpus in job.current.gpus_by_node
    ]
    rows, nodes, gpus = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return rows, nodes, gpus


def _left(
    candidates: Candidates,
    cluster: Cluster,
    fixed: BoolArray,
    rows: IntArray,
    nodes: IntArray,
    gpus: IntArray,
) -> IntArray:
    """Return what those who can change may use of each node, (n, 3): all but the GPUs of others."""
    left: IntArray = cluster.capacity.copy()
    stays = fixed[rows]
    if stays.any():
        needs = np.array([need(candidates.all_jobs[row]) for row in rows[stays].tolist()], dtype=np.int64)
        np.subtract.at(left, nodes[stays], gpus[stays, None] * needs)
        np.maximum(left, 0, out=left)
    return left


def _sizes(candidates: Candidates, cluster: Cluster, fixed: BoolArray, left: IntArray) -> IntArray:
    """Return how many GPUs of each node (n,) those who can change may use at most."""
    size: IntArray = left[:, 0]
    if cluster.is_tight and not fixed.all():
        # No GPU takes less of CPUs and memory than one of the least demanding job does.
        least = np.array([need(job) for job in candidates.all_jobs], dtype=np.int64)[~fixed].min(axis=0)
        size = np.min([left[:, part] // each for part, each in enumerate(least.tolist()) if each], axis=0)
    return size


def _possible(
    candidates: Candidates, cluster: Cluster, masks: list[NodeSet], class_of: IntArray, left: IntArray
) -> BoolArray:
    """Return which columns (J, C) those nodes could hold for each job that can change, were they all away."""
    found = np.ones((candidates.num_jobs, len(candidates.tables.num_gpus)), dtype=bool)
    known: dict[tuple[int, Need], BoolArray] = {}
    for row, number in enumerate(class_of.tolist()):
        if candidates.settled[row]:
            continue
        key = (number, need(candidates.jobs[row]) if cluster.is_tight else (1, 0, 0))
        if key not in known:
            usable = np.zeros(len(left), dtype=bool)
            usable[list(members_of(masks[number]))] = True
            known[key] = fitting(candidates.tables, left, cluster.kind, usable, key[1])
        found[row] = known[key]
    return found


def fitting(
    tables: SpeedupTables,
    left: IntArray,
    kind_of: IntArray,
    usable: BoolArray,
    job: Need,
    counted: Sequence[int] = (0, 1, 2),
) -> BoolArray:
    """Return which columns have enough `usable` nodes (n,) with enough `left` (n, 3) on each, (C,).

    Only what is `counted` of a job's needs of GPUs, CPUs and memory has to suffice.
    """
    most = np.min([left[:, part] // job[part] for part in counted if job[part] > 0], axis=0)
    share = np.maximum(tables.per_node, 1)
    several = np.where(tables.per_node > 0, tables.num_nodes, 2)
    top = int(share.max(initial=1))
    found = tables.num_gpus == 0
    for kind in range(len(tables.kinds)):
        here = np.clip(most[usable & (kind_of == kind)], 0, top)
        at_least = np.bincount(here, minlength=top + 1)[::-1].cumsum()[::-1]
        found |= (tables.kind == kind) & (at_least[share] >= several)
    return np.asarray(found, dtype=bool)


def _allowed(
    candidates: Candidates, cluster: Cluster, masks: list[NodeSet], cells: list[NodeSet], kind_of: IntArray
) -> BoolArray:
    """Return in which cells a column may stand for a class, (E, C, X): none where nodes do not suffice."""
    columns, facts = candidates.tables.columns, cluster.facts

    def make() -> BoolArray:
        return _found_allowed(columns, cluster, masks, cells, kind_of)

    if cluster.at_least is not facts.at_least:  # a node has more GPUs allocated than it has
        return make()
    return facts.cached(("allowed", columns, tuple(masks), tuple(cells)), make)


def _found_allowed(
    columns: ConfigurationColumns,
    cluster: Cluster,
    masks: list[NodeSet],
    cells: list[NodeSet],
    kind_of: IntArray,
) -> BoolArray:
    inside = np.array([[bool(mask & nodes) for nodes in cells] for mask in masks], dtype=bool)
    large = np.array(
        [[bool(nodes & at_least) for nodes in cells] for at_least in cluster.at_least], dtype=bool
    )
    kinds, shares = (
        columns.kind.tolist(),
        np.minimum(columns.per_node, cluster.max_gpus_per_node + 1).tolist(),
    )
    wanted = set(zip(kinds, shares, strict=True))
    enough = np.zeros((len(masks), len(kinds)), dtype=bool)
    for row, mask in enumerate(masks):
        room = {
            (kind, share): (mask & cluster.of_kind[kind] & cluster.at_least[max(share, 1)]).bit_count()
            for kind, share in wanted
        }
        count = np.array([room[pair] for pair in zip(kinds, shares, strict=True)], dtype=np.int64)
        enough[row] = count >= np.where(columns.per_node > 0, columns.num_nodes, 2)
    same = columns.kind[:, None] == kind_of
    found: BoolArray = inside[:, None, :] & (same & large[shares])[None] & enough[:, :, None]
    return found


def _parts(m: int, size: int, widest: int) -> FloatArray:
    """Return u(k), k from 0 to `widest`: with x = k/size, x where (m + 1)·x is whole, else ⌊(m + 1)·x⌋/m.

    u(a) + u(b) ≤ u(a + b) up to `size`, the largest node's, so Σ u(shares) on a node is at most u of the node
    (Fekete and Schepers, 2001).
    """
    gpus = np.arange(widest + 1)
    whole, rest = np.divmod((m + 1) * gpus, max(size, 1))
    return np.where(rest == 0, gpus / max(size, 1), whole / m)
