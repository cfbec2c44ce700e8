"""Places for a job that was taken out of a `State`: where one of its candidates fits, and which is best.

The fullest nodes that still have room are filled first. A job that can move in place keeps its wings where
that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence

from pollux_slurm.policy.candidates.candidate import Candidate
from pollux_slurm.policy.candidates.in_place_moves import Wing
from pollux_slurm.policy.candidates.placed_state import Placement, State
from pollux_slurm.policy.problem.node_sets import NodeSet, members_of, node_set


def find_place(state: State, job: int, candidate: Candidate) -> Placement | None:
    """Return a place for `candidate` of a job that was taken out, None where it does not fit.

    The fullest nodes that still have room are filled first, in the problem's order among equals. Of a job
    that can move in place, nodes of wings that it can keep come before them.
    """
    if candidate.num_gpus == 0 and not state.is_running[job]:
        return Placement(candidate, ())
    if not state.may_have(job, candidate):
        return None
    if candidate.stays:
        return Placement(candidate, state.current[job]) if state.fits_current(job) else None
    if candidate.num_gpus == 0:
        return Placement(candidate, ())
    nodes = state.nodes_with_room(job, candidate)
    if not nodes:
        return None
    if candidate.in_place:
        kept = _find_keeping_wings(state, job, candidate, nodes)
        if kept is not None:
            return kept
    if candidate.num_nodes == 1:
        for k in range(candidate.per_node + 1, len(state.at_least)):
            fuller = nodes & ~state.at_least[k]
            if fuller:
                break
        return placed_at(state, job, candidate, (((fuller & -fuller).bit_length() - 1, candidate.per_node),))
    if not candidate.per_node:  # free to choose
        return _spread(state, job, candidate, nodes)
    if nodes.bit_count() < candidate.num_nodes:
        return None
    chosen = _fullest(state, nodes, candidate.per_node, candidate.num_nodes)
    return placed_at(state, job, candidate, tuple((node, candidate.per_node) for node in sorted(chosen)))


def fit_on(state: State, job: int, candidate: Candidate, nodes: Sequence[int]) -> Placement | None:
    """Return `candidate` placed on exactly these nodes, None where it does not fit."""
    if candidate.stays:
        return find_place(state, job, candidate)
    chosen = node_set(nodes)
    if chosen & ~state.nodes_with_room(job, candidate) or not state.may_have(job, candidate):
        return None
    if candidate.is_uneven:
        return _spread(state, job, candidate, chosen)
    return placed_at(state, job, candidate, tuple((node, candidate.per_node) for node in sorted(nodes)))


def placed_at(state: State, job: int, candidate: Candidate, gpus: tuple[tuple[int, int], ...]) -> Placement:
    """Return a candidate with its place: of the two ways to reach it, the one that this place has."""
    other = candidate.other
    moves = state.in_place
    if other is not None and moves is not None and candidate.in_place != moves.is_place_in_place(job, gpus):
        candidate = other
    return Placement(candidate, gpus)


def has_room(state: State, job: int, candidate: Candidate, gpus: Sequence[tuple[int, int]]) -> bool:
    """Whether a taken-out job may stand exactly there, limits and moves aside."""
    fits = state.nodes_with_room(job, candidate)
    return all((fits & state.room(job, count)) >> node & 1 for node, count in gpus)


def _fullest(state: State, nodes: NodeSet, per_node: int, count: int) -> list[int]:
    """Return so many nodes of a set, those that have room for `per_node` GPUs and little more first."""
    chosen: list[int] = []
    for k in range(per_node + 1, len(state.at_least)):
        for node in members_of(nodes & ~state.at_least[k]):
            if len(chosen) == count:
                return chosen
            chosen.append(node)
        nodes &= state.at_least[k]
    return chosen


def _find_keeping_wings(state: State, job: int, candidate: Candidate, nodes: NodeSet) -> Placement | None:
    """Return a place among `nodes`, with room, that keeps wings of the job with many GPUs.

    Of equals it keeps more wings, so that the job can leave one of them later. Beside them, the fullest nodes
    are filled first, and other nodes of the job last.
    """
    wings = () if state.in_place is None else state.in_place.wings.get(job, ())
    if candidate.is_uneven:
        return _spread_beside_wings(state, job, candidate, nodes, wings)
    count, share = candidate.num_nodes, candidate.per_node
    own = 0
    for wing in wings:
        own |= wing.nodes
    usable = [
        wing
        for wing in wings
        if not wing.nodes & ~nodes and wing.nodes.bit_count() <= count and wing.fits(share)
    ]

    def kept_gpus(wing: Wing) -> int:
        on_its_nodes = sum([other.num_gpus for other in usable if not other.nodes & ~wing.nodes])
        return min(on_its_nodes, share * wing.nodes.bit_count())

    # Of as many GPUs, small wings are more wings.
    for first in sorted(usable, key=lambda wing: (-kept_gpus(wing), wing.num_gpus)):
        chosen = first.nodes
        for wing in usable:
            if (chosen | wing.nodes).bit_count() <= count:
                chosen |= wing.nodes
        found = list(members_of(chosen))
        for rest in (nodes & ~own, nodes & own & ~chosen):
            found += _fullest(state, rest, share, count - len(found))
        if len(found) == count:
            placed = placed_at(state, job, candidate, tuple((node, share) for node in sorted(found)))
            if placed.candidate.in_place:
                return placed
    return None


def _spread_beside_wings(
    state: State, job: int, candidate: Candidate, nodes: NodeSet, wings: Sequence[Wing]
) -> Placement | None:
    """Return a place that is free to choose: wings of the job as they are, the rest on other nodes."""
    own, chosen, rest = 0, dict[int, int](), candidate.num_gpus
    for wing in wings:
        own |= wing.nodes
        total = wing.num_gpus
        if total <= rest and all(
            node not in chosen and (nodes & state.room(job, gpus)) >> node & 1 for node, gpus in wing.gpus
        ):
            chosen.update(wing.gpus)
            rest -= total
    if rest:
        others = _split(state, job, rest, min(rest, state.cluster.max_gpus_per_node), nodes & ~own)
        chosen.update(others or ())
        rest = 0 if others else rest
    if rest or len(chosen) < 2:
        return None
    placed = placed_at(state, job, candidate, tuple(sorted(chosen.items())))
    return placed if placed.candidate.in_place else None


def _spread(state: State, job: int, candidate: Candidate, nodes: NodeSet) -> Placement | None:
    """Return K GPUs on the emptiest of these nodes, the rest on the fullest that has room for it."""
    most = min(candidate.num_gpus - 1, state.cluster.max_gpus_per_node)  # on two nodes at least
    if nodes.bit_count() < 2:
        return None
    found = _split(state, job, candidate.num_gpus, most, nodes)
    return None if found is None else placed_at(state, job, candidate, tuple(sorted(found)))


def _split(state: State, job: int, num_gpus: int, most: int, nodes: NodeSet) -> list[tuple[int, int]] | None:
    """Return nodes and shares of so many GPUs, at most `most` on a node; None where they do not fit."""
    room = [nodes, *(nodes & state.room(job, k) for k in range(1, most + 1))]
    rest, found = num_gpus, list[tuple[int, int]]()
    if sum(each.bit_count() for each in room[1:]) < rest:
        return None
    k = most
    while True:
        while not room[k]:
            k -= 1
        if k >= rest:
            fullest = rest
            while not (exact := room[fullest] & ~(room[fullest + 1] if fullest < most else 0)):
                fullest += 1
            found.append(((exact & -exact).bit_length() - 1, rest))
            return found
        lowest = room[k] & -room[k]
        found.append((lowest.bit_length() - 1, k))
        rest -= k
        for below in range(k + 1):
            room[below] &= ~lowest
