"""Parse one node of `sinfo --json` (22.05) or `scontrol show nodes --json` (from 23.11) to a `SlurmNode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pollux_slurm.model import SlurmNode
from pollux_slurm.slurm.parsing.gres import GpuCount, count_gpus, parse_gres
from pollux_slurm.slurm.parsing.json_fields import Fields

_UP = frozenset({"IDLE", "MIXED", "ALLOCATED"})
# Flags with which new jobs still start. Any other flag (DRAIN, NOT_RESPONDING, MAINTENANCE, RESERVED,
# POWERED_DOWN, one of a later release, ...) makes a node unavailable.
_FLAGS_OF_AVAILABLE = frozenset(
    {"CLOUD", "COMPLETING", "DYNAMIC_FUTURE", "DYNAMIC_NORM", "PLANNED", "PERFCTRS", "EXTERNAL"}
)
# Slurm's resources that are parts of GPUs.
_PARTS_OF_GPUS = frozenset({"shard", "mps"})
# A job's speed on such a node is unknown.
SEVERAL_GPU_TYPES = "GPUs of several types"


def parse_node(content: Mapping[str, Any]) -> SlurmNode:
    """Return the node. Raises `SlurmReadError` that names node and field for what cannot be parsed."""
    name = content.get("name")
    fields = Fields(content, f"node {name if isinstance(name, str) and name else '(unnamed)'}")
    states = [word.upper() for word in (*fields.words("state"), *fields.words("state_flags"))]
    if not states or not fields.text("name"):
        raise fields.bad("state" if name else "name")
    gpus, used = _gpus(fields, "gres"), _gpus(fields, "gres_used")
    problem = SEVERAL_GPU_TYPES if gpus is not None and len(gpus.types) > 1 else None
    if gpus is None or used is None:
        text = fields.text("gres" if gpus is None else "gres_used")
        problem = f"generic resources {text[:80]!r} cannot be read"
        used = gpus = gpus or count_gpus(())
    num_cpus = fields.number("effective_cpus")  # without those reserved for the system; not in 22.05
    reserved_mb = fields.number("specialized_memory") or 0
    return SlurmNode(
        name=fields.text("name"),
        gpu_type=gpus.type,
        num_gpus=gpus.count,
        # Slurm does not always show whose the parts of GPUs are: no GPU of the node counts as free.
        used_gpus=used.count if _PARTS_OF_GPUS.isdisjoint(used.others) else gpus.count,
        num_cpus=fields.count("cpus") if num_cpus is None else num_cpus,
        used_cpus=fields.count("alloc_cpus"),
        memory_mb=max(fields.count("real_memory") - reserved_mb, 0),
        used_memory_mb=fields.count("alloc_memory"),
        available=is_available(states) and problem is None,
        state="+".join(states).lower() + ("" if problem is None else f" ({problem})"),
        partitions=fields.words("partitions"),
        features=_features(fields),
        draining="DRAIN" in states,
        responds="DOWN" not in states,
        hostname=fields.text("hostname", ""),
        last_busy_at=fields.time("last_busy"),
        gres_problem=problem,
        threads_per_core=max(fields.number("threads") or 1, 1),
    )


def is_available(states: Sequence[str]) -> bool:
    """Return whether new jobs start on a node with this state and these flags."""
    return states[0] in _UP and _FLAGS_OF_AVAILABLE.issuperset(states[1:])


def _features(fields: Fields) -> frozenset[str]:
    """Return the active features; 22.05 writes them as one string."""
    words = fields.words("active_features")
    return frozenset(feature for word in words for feature in word.split(",") if feature)


def _gpus(fields: Fields, key: str) -> GpuCount | None:
    """Return the GPUs that a field names; None where it cannot be read: that is one node less."""
    try:
        return count_gpus(parse_gres(fields.text(key, "")))
    except ValueError:
        return None
