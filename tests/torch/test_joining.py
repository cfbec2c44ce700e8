import dataclasses
from pathlib import Path

import pytest
import torch.distributed as dist

from pollux_slurm.agent.environment import JobEnvironment, read_environment
from pollux_slurm.errors import LaunchError
from pollux_slurm.torch.joining import make_sure_of


def rank(number: int, **others: object) -> JobEnvironment:
    environ = {"RANK": str(number), "WORLD_SIZE": "2", "POLLUX_CHECKPOINT_DIR": "/shared/7"}
    return dataclasses.replace(read_environment(environ), **{"token": "a" * 64, **others})  # type: ignore[arg-type]


def test_that_the_ranks_of_a_run_know_each_other() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    make_sure_of(store, rank(0))
    make_sure_of(store, rank(1))


@pytest.mark.parametrize(
    "other",
    [
        {"token": "b" * 64},
        {"checkpoint_dir": Path("/shared/8")},
        {"restart_count": 1},
        {"gpus_per_node": (1, 1)},
    ],
)
def test_that_a_rank_of_another_run_is_turned_away(other: dict[str, object]) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    make_sure_of(store, rank(0))
    with pytest.raises(LaunchError, match="another job"):
        make_sure_of(store, rank(1, **other))


def test_that_the_secret_of_a_job_is_not_in_the_store() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    make_sure_of(store, rank(0))
    assert b"a" * 8 not in store.get("pollux/run")
