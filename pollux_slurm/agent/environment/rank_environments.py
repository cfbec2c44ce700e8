"""The environment variables that `pollux run` sets for each process, which `job_environment.py` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pollux_slurm.agent.environment.layout import (
    ADDRESS_VARIABLE,
    JOINS_VARIABLE,
    MEMBER_VARIABLE,
    MEMBERSHIP_VARIABLE,
    RANK_VARIABLE,
    RENDEZVOUS_VARIABLE,
    SECRET_VARIABLE,
    STEP_VARIABLE,
    STORE,
    RunLayout,
    RunMembership,
)
from pollux_slurm.agent.environment.tracker_runs import tracker_variables
from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.errors import LaunchError

# A training process may start `pollux run`, or submit a job that does. With TORCHELASTIC_USE_AGENT_STORE, no
# rank would open the port where they meet.
_OF_ANOTHER_RUN = frozenset(
    {
        *(STEP_VARIABLE, RENDEZVOUS_VARIABLE, RANK_VARIABLE),
        *(MEMBERSHIP_VARIABLE, MEMBER_VARIABLE, JOINS_VARIABLE, ADDRESS_VARIABLE),
        *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE"),
    }
)


def place_variables(gpus_per_node: Sequence[int], *, node_index: int, rank: int) -> dict[str, str]:
    """Return the variables that say which replica a process is, of how many, and on which node.

    POLLUX_GPUS_PER_NODE lists the number of processes of each node in rank order.
    """
    return {
        "RANK": str(rank),
        RANK_VARIABLE: str(rank),
        "WORLD_SIZE": str(sum(gpus_per_node)),
        "LOCAL_WORLD_SIZE": str(gpus_per_node[node_index]),
        "NODE_RANK": str(node_index),
        "GROUP_RANK": str(node_index),
        "GROUP_WORLD_SIZE": str(len(gpus_per_node)),
        "POLLUX_GPUS_PER_NODE": ",".join(map(str, gpus_per_node)),
    }


def rank_environments(
    layout: RunLayout, node_index: int, environ: Mapping[str, str], *, rendezvous_file: Path | None = None
) -> list[dict[str, str]]:
    """Return the environment of each process of one node, for torch.distributed and the library.

    It extends `environ`, without another run's variables. `rendezvous_file` is for the processes of a single
    node. Only rank 0 gets the variables of its trackers: a second process in the same tracker's run would
    write over its values.
    """
    gpus_per_node = [count for _, count in layout.nodes]
    first_rank = sum(gpus_per_node[:node_index])
    common = {key: value for key, value in environ.items() if key not in _OF_ANOTHER_RUN}
    # One thread per process, as torchrun sets it: otherwise each process uses all CPUs.
    common.setdefault("OMP_NUM_THREADS", "1")
    common |= {
        "MASTER_ADDR": layout.master_addr,
        "MASTER_PORT": str(layout.master_port),
        SECRET_VARIABLE: layout.secret,
        "POLLUX_RESTART_COUNT": environ.get("SLURM_RESTART_COUNT") or "0"
        if layout.restart_count is None
        else str(layout.restart_count),
    }
    if rendezvous_file is not None:
        common[RENDEZVOUS_VARIABLE] = str(rendezvous_file)
    local_ranks = range(gpus_per_node[node_index])
    if layout.membership is None:
        places = [
            place_variables(gpus_per_node, node_index=node_index, rank=first_rank + local_rank)
            for local_rank in local_ranks
        ]
    else:
        own = layout.membership.own[first_rank : first_rank + len(local_ranks)]
        address = layout.membership.addresses[node_index]
        places = [_member_variables(layout.membership, member, address) for member in own]
    environments = [
        common | place | {"LOCAL_RANK": str(local_rank)}
        for local_rank, place in zip(local_ranks, places, strict=True)
    ]
    directory = environ.get("POLLUX_CHECKPOINT_DIR")
    if places[0]["RANK"] == "0":
        environments[0] |= tracker_variables(Path(directory) if directory else None, environ)
    return environments


def _member_variables(membership: RunMembership, member: str, address: str) -> dict[str, str]:
    """Return the place of a process in its generation, and what it needs to take part in later ones."""
    generation = Generation(
        number=membership.joins or 0,
        members=tuple(Member(id=name, node=node) for name, node in membership.members),
    )
    rank = generation.rank_of(member)
    if rank is None:
        raise LaunchError(f"process {member} does not belong to generation {generation.number}")
    nodes = list(dict.fromkeys(one.node for one in generation.members))
    place = place_variables(
        generation.gpus_per_node, node_index=nodes.index(generation.members[rank].node), rank=rank
    )
    joins = {} if membership.joins is None else {JOINS_VARIABLE: str(membership.joins)}
    return place | joins | {MEMBERSHIP_VARIABLE: STORE, MEMBER_VARIABLE: member, ADDRESS_VARIABLE: address}
