"""Adaptive jobs that take all memory of their nodes, whatever their GPUs: a share of it for each GPU. Pure.

So Slurm reads --mem=0, and a job for which neither its owner nor the site names an amount. One GPU of such a
job would keep every other GPU of its node idle. In a new shape, each of its GPUs brings the part of a node's
memory that is a GPU's; of several kinds of nodes that it may use, the smallest part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pollux_slurm.model import ClusterSnapshot, SlurmJob, SlurmNode
from pollux_slurm.slurm.parsing.comment_terms import decode_comment
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment


def takes_whole_memory(job: SlurmJob) -> bool:
    """Return whether an adaptive job requests no amount of memory, where Slurm gives out memory at all."""
    return (
        job.memory_per_gpu_mb is None
        and job.requested_gpus > 0
        and not job.state.is_over
        and (decode_comment(job.comment) is not None or parse_wing_comment(job.comment) is not None)
    )


def with_shares_of_memory(snapshot: ClusterSnapshot) -> ClusterSnapshot:
    """Return the snapshot in which these jobs request a share of memory for each GPU."""
    jobs = (_with_share(job, snapshot.nodes) if takes_whole_memory(job) else job for job in snapshot.jobs)
    return dataclasses.replace(snapshot, jobs=tuple(jobs))


def _with_share(job: SlurmJob, nodes: Sequence[SlurmNode]) -> SlurmJob:
    usable = [node for node in nodes if node.num_gpus and job.may_run_on(node)]
    share_mb = min((node.memory_mb // node.num_gpus for node in usable), default=0)
    return dataclasses.replace(job, memory_per_gpu_mb=share_mb, memory_by_node=True) if share_mb else job
