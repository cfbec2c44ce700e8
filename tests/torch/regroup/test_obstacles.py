"""Scripts that cannot regroup are found, with a reason that names the cure."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from pollux_slurm.torch.regroup.obstacles import Obstacles

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("alone")]


class Trainer:
    def __init__(self, **values: Any) -> None:
        self.__dict__ |= values


def find(*, rank_changes: bool = False, hears: bool = False, **variables: Any) -> str | None:
    """Return what is found where a script has these variables."""
    namespace: dict[str, Any] = {}
    exec(f"def script({', '.join(variables)}):\n    import sys\n    return sys._getframe()", namespace)
    found: FrameType = namespace["script"](**variables)
    return Obstacles(watches=True).find([found], rank_changes=rank_changes, hears=hears)


@pytest.mark.parametrize(
    "variables",
    [
        {"world_size": 1},
        {"WORLD_SIZE": 1},
        {"num_replicas": 1},
        {"args": Namespace(world_size=1)},
        {"trainer": Trainer(world_size=1)},
        {"self": Trainer(args=Namespace(world_size=1))},
        {"self": Trainer(trainer=Trainer(config=Namespace(world_size=1)))},
    ],
    ids=["local", "upper case", "replicas", "namespace", "object", "object's", "deep"],
)
def test_that_a_kept_world_size_is_found_unless_the_script_hears_of_changes(variables: Any) -> None:
    reason = find(**variables)
    assert reason is not None
    assert "on_regroup" in reason
    assert find(**variables, hears=True) is None


def test_that_a_kept_rank_matters_only_where_ranks_change() -> None:
    assert find(rank=0) is None
    reason = find(rank=0, rank_changes=True)
    assert reason is not None
    assert reason.startswith("it keeps rank = 0 in a variable")


@pytest.mark.parametrize("name", ["is_main", "is_master_process", "master_process", "is_rank_0", "rank_zero"])
def test_that_a_kept_answer_to_who_is_first_is_found_where_ranks_change(name: str) -> None:
    assert find(**{name: True}) is None
    assert find(rank_changes=True, **{name: False}) is None
    reason = find(rank_changes=True, **{name: True})
    assert reason is not None
    assert reason.startswith(f"it keeps {name} = True in a variable")


def test_that_a_kept_sampler_is_found_unless_the_script_hears_of_changes() -> None:
    sampler: Any = DistributedSampler([1, 2, 3], shuffle=False)
    loader: Any = DataLoader([1, 2, 3], sampler=sampler)  # type: ignore[arg-type]
    for variables in ({"sampler": sampler}, {"loader": loader}, {"trainer": Trainer(validation=loader)}):
        reason = find(**variables)
        assert reason is not None
        assert "DistributedSampler" in reason
        assert find(**variables, hears=True) is None
    assert find(loader=DataLoader([1, 2, 3])) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "variables",
    [{"world_size": 2}, {"size": 1}, {"local_rank": 0}, {"rank_loss": 0}, {"record": {"replicas": 1}}],
)
def test_that_other_variables_are_no_obstacle(variables: Any) -> None:
    assert find(rank_changes=True, **variables) is None


def test_that_process_groups_of_the_script_are_found() -> None:
    reason = find(group=dist.group.WORLD)
    assert reason is not None
    assert reason.startswith("it keeps group, a process group, in a variable")
    groups = [dist.new_group(backend="gloo") for _ in range(2)]
    reason = find(hears=True)
    assert reason is not None
    assert reason.startswith("it has made process groups of its own")
    del groups


def test_that_a_captured_cuda_graph_is_found() -> None:
    obstacles = Obstacles(watches=True)
    assert obstacles.find([], rank_changes=False, hears=True) is None
    # Without a GPU nothing can be captured, but the attempt is seen.
    with contextlib.suppress(AttributeError, RuntimeError):
        torch.cuda.CUDAGraph.capture_begin(object())  # type: ignore[arg-type]
    reason = obstacles.find([], rank_changes=False, hears=True)
    assert reason is not None
    assert "CUDA graph" in reason
