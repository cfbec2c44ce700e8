"""`pollux run -- torchrun ...`: recognised, told what the job has, and its options for that refused."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.agent.environment.job_environment import read_environment
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.node.torchrun import starts_torchrun, torchrun_environment, torchrun_exit_code
from tests.agent.environment.test_layout import UNEVEN


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun train.py --nnodes=2", True),
        ("/opt/venv/bin/torchrun --max-restarts 2 --tee=3 -m mine.train", True),
        ("torchrun --log-dir logs train.py", True),
        ("torchrun --no-python ./train --standalone", True),
        ("python3.11 -u -m torch.distributed.run train.py", True),
        ("python -m torch.distributed.launch --use_env train.py", True),
        ("python -mtorch.distributed.run train.py", True),
        ("python -W ignore -X dev -um torch.distributed.run train.py", True),
        ("python -Wmodule -m mine", False),
        ("python -W -m torch.distributed.run", False),
        ("python -m mine.train torch.distributed.run", False),
        ("python train.py torchrun", False),
        ("python -c torchrun", False),
        ("python", False),
        ("mytorchrun train.py", False),
    ],
)
def test_that_torchrun_is_recognised(command: str, expected: bool) -> None:
    assert starts_torchrun(command.split()) is expected


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("torchrun --nproc-per-node=4 train.py", "--nproc-per-node"),
        ("torchrun --nproc_per_node 4 train.py", "--nproc_per_node"),
        ("torchrun --log-dir logs --nnodes 2 train.py", "--nnodes"),
        ("torchrun --standalone train.py", "--standalone"),
        ("torchrun -r3 --nnodes=2 train.py", "--nnodes"),
        ("torchrun -t 3 --nnodes=2 train.py", "--nnodes"),
        ("python -W ignore -mtorch.distributed.run --nnodes=2 train.py", "--nnodes"),
        ("torchrun -m --rdzv-end=n0:29500 mine.train", "--rdzv-end"),
        ("python -m torch.distributed.run --master_addr=n0 train.py", "--master_addr"),
    ],
)
def test_that_what_pollux_run_decides_is_refused(command: str, option: str) -> None:
    with pytest.raises(UsageError, match=f"torchrun's option {option}: leave it out"):
        starts_torchrun(command.split())


def test_that_each_nodes_torchrun_is_told_its_part_of_uneven_nodes() -> None:
    layout = dataclasses.replace(UNEVEN, starts_torchrun=True)
    assert type(layout).decode(layout.encode()) == layout
    second = torchrun_environment(layout, 1, {"HOME": "/root", "PET_NNODES": "7"})
    assert {name: value for name, value in second.items() if name.startswith("PET_")} == {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "24600",
        "PET_RDZV_BACKEND": "static",
    }
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK"} & set(second)
    timeout = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    assert int(second[timeout]) > 600  # a checkpoint may take longer than torchrun's 30 s
    assert torchrun_environment(layout, 1, {timeout: "60"})[timeout] == "60"
    assert (second["POLLUX_GPUS_PER_NODE"], second["HOME"]) == ("4,1", "/root")
    assert "POLLUX_RANK" not in second  # torchrun counts the ranks
    # The variables that torchrun adds for its process are those of one rank of that layout.
    place = read_environment({**second, "RANK": "4", "LOCAL_RANK": "0", "WORLD_SIZE": "5"})
    assert (place.rank, place.gpus_per_node, place.secret) == (4, (4, 1), "of this run")


def test_that_a_batch_script_that_calls_torchrun_itself_counts_slurms_restarts() -> None:
    environ = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "SLURM_RESTART_COUNT": "3"}
    assert read_environment(environ).restart_count == 3
    assert read_environment({**environ, "POLLUX_RESTART_COUNT": "0"}).restart_count == 0


@pytest.mark.parametrize(
    ("code", "was_stopped", "expected"), [(1, True, 143), (1, False, 1), (0, True, 0), (0, False, 0)]
)
def test_that_a_torchrun_that_was_stopped_has_the_exit_code_of_that(
    code: int, was_stopped: bool, expected: int
) -> None:
    assert torchrun_exit_code(code, was_stopped=was_stopped) == expected
