from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.slurm.parsing.node_json import parse_node


def node(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": "n0",
        "state": "mixed",
        "state_flags": [],
        "gres": "gpu:t4:4",
        "gres_used": "gpu:t4:1(IDX:0)",
        "cpus": 8,
        "alloc_cpus": 2,
        "real_memory": 8192,
        "alloc_memory": 1000,
        "partitions": ["main"],
    }
    content.update(changes)
    return content


@pytest.mark.parametrize(
    ("changes", "available"),
    [
        ({"state": "idle"}, True),
        ({"state": "allocated"}, True),
        ({"state": "mixed", "state_flags": ["COMPLETING", "PLANNED"]}, True),
        ({"state": ["IDLE", "CLOUD"]}, True),
        ({"state": "idle", "state_flags": ["DRAIN"]}, False),
        ({"state": ["MIXED", "DRAIN"]}, False),
        ({"state": ["IDLE", "NOT_RESPONDING"]}, False),
        ({"state": ["IDLE", "MAINTENANCE", "RESERVED"]}, False),
        ({"state": ["IDLE", "A_FLAG_OF_LATER"]}, False),
        ({"state": "down"}, False),
        ({"state": "unknown"}, False),
        ({"state": "error"}, False),
    ],
)
def test_that_only_a_node_where_jobs_start_is_available(changes: dict[str, Any], available: bool) -> None:
    assert parse_node(node(**changes)).available is available


def test_that_a_node_with_several_gpu_types_is_not_available() -> None:
    shown = parse_node(node(gres="gpu:t4:2,gpu:a100:2", gres_used="gpu:t4:1(IDX:0),gpu:a100:0(IDX:N/A)"))
    assert (shown.available, shown.gpu_type, shown.num_gpus, shown.used_gpus) == (False, None, 4, 1)
    assert "several types" in shown.state


@pytest.mark.parametrize(("changes", "gpus"), [({"gres": "gpu:::"}, 0), ({"gres_used": "gpu:t4:a:b"}, 4)])
def test_that_a_node_whose_gpus_cannot_be_read_is_one_node_less(changes: dict[str, Any], gpus: int) -> None:
    shown = parse_node(node(**changes))
    assert (shown.available, shown.num_gpus, shown.used_gpus) == (False, gpus, gpus)
    assert shown.gres_problem is not None
    assert str(*changes.values()) in shown.gres_problem
    assert shown.gres_problem in shown.state


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({"gres": "gpu:t4:4,nsight:no_consume:1", "gres_used": "gpu:t4:1(IDX:0),nsight:0"}, 1),
        ({"gres_used": "gpu:t4:1(IDX:0),shard:t4:2(2/8,0/8,0/8,0/8)"}, 4),
        ({"gres_used": "gpu:t4:0(IDX:N/A),mps:t4:1(IDX:0)"}, 4),  # 22.05
        ({"gres_used": "gpu:t4:0(IDX:N/A),mps:t4:50(50/100,0/100,0/100,0/100)"}, 4),
        ({"gres_used": "gpu:t4:1(IDX:0),mps:t4:0(0/100,0/100,0/100,0/100)"}, 1),
    ],
)
def test_that_no_gpu_is_free_where_parts_of_gpus_are_used(changes: dict[str, Any], used: int) -> None:
    shown = parse_node(node(**changes))
    assert (shown.available, shown.num_gpus, shown.used_gpus) == (True, 4, used)


@pytest.mark.parametrize("gres", ["", "(null)", None, "shard:8"])
def test_that_a_node_without_gpus_has_none(gres: str | None) -> None:
    shown = parse_node(node(gres=gres, gres_used="N/A"))
    assert (shown.num_gpus, shown.used_gpus, shown.gpu_type, shown.available) == (0, 0, None, True)


def test_that_resources_reserved_for_the_system_do_not_count() -> None:
    shown = parse_node(node(effective_cpus=6, specialized_memory=192))
    assert (shown.num_cpus, shown.memory_mb) == (6, 8000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("name", ""),
        ("state", None),
        ("state", 3),
        ("gres_used", 7),
        ("cpus", None),
        ("alloc_cpus", "2"),
        ("alloc_memory", -1),
        ("real_memory", True),
        ("partitions", [1]),
    ],
)
def test_that_a_malformed_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(SlurmReadError, match=f"node .*{field}"):
        parse_node(node(**{field: value}))
