"""GPUs by node and plots over time, as characters."""

from __future__ import annotations

from pollux_slurm.cli.top.drawings import node_lines
from pollux_slurm.now.cluster import ClusterNow, NodeNow, NodeState
from pollux_slurm.now.jobs import JobNow
from pollux_slurm.store.contract.interface import DaemonStatus
from tests.store.builders import at


def picture_of(*nodes: NodeNow, jobs: tuple[JobNow, ...] = ()) -> ClusterNow:
    return ClusterNow(
        read_at=at(0),
        daemon=DaemonStatus(),
        missing=None,
        slurm=None,
        slurm_missing=None,
        nodes=nodes,
        jobs=jobs,
    )


def node(name: str, state: NodeState = NodeState.UP, *held: tuple[str, int], num_other: int = 0) -> NodeNow:
    return NodeNow(name=name, gpu_type="t4", num_gpus=4, state=state, held=held, num_other=num_other)


def test_that_each_gpu_is_one_cell_with_its_jobs_letter() -> None:
    picture = picture_of(
        node("a", NodeState.UP, ("9", 2), ("10", 1)),
        node("b", NodeState.UP, ("10", 1), num_other=1),
        node("c", NodeState.DRAINED, ("9", 1)),
        node("d", NodeState.DOWN),
    )
    assert [line.plain for line in node_lines(picture, width=20, most=9, chosen="10")] == [
        "a      t4 aab.",
        "b      t4 b#..",
        "c      t4 a---",
        "d      t4 xxxx",
    ]


def test_that_nodes_beyond_the_room_are_counted_with_their_free_gpus() -> None:
    picture = picture_of(*(node(f"n{number}") for number in range(6)))
    lines = [line.plain for line in node_lines(picture, width=30, most=2, chosen=None)]
    assert lines == ["n0     t4 ....  n1     t4 ....", "and 4 more nodes with 16 free GPUs"]
