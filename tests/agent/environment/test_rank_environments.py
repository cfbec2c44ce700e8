"""The variables of each process, by its rank."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.agent.environment.rank_environments import rank_environments
from tests.agent.environment.test_layout import UNEVEN


def test_that_ranks_count_over_uneven_nodes_in_order() -> None:
    first = rank_environments(UNEVEN, 0, {})
    second = rank_environments(UNEVEN, 1, {"SLURM_RESTART_COUNT": "3"})
    assert [env["RANK"] for env in first] == ["0", "1", "2", "3"]
    assert [env["LOCAL_RANK"] for env in first] == ["0", "1", "2", "3"]
    assert second == [
        {
            "RANK": "4",
            "POLLUX_RANK": "4",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "5",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.1",
            "MASTER_PORT": "24600",
            "OMP_NUM_THREADS": "1",
            "POLLUX_GPUS_PER_NODE": "4,1",
            "POLLUX_RESTART_COUNT": "3",
            "POLLUX_RUN_SECRET": "of this run",
            "SLURM_RESTART_COUNT": "3",
        }
    ]


def test_that_the_users_environment_is_kept_without_our_own_variable() -> None:
    (env,) = rank_environments(
        RunLayout(nodes=(("localhost", 1),), master_addr="::1", master_port=5, secret="s"),
        0,
        {
            "OMP_NUM_THREADS": "7",
            "HOME": "/root",
            "POLLUX_STEP": "x",
            "RANK": "9",
            "POLLUX_RENDEZVOUS_FILE": "/x",
            "POLLUX_RANK": "9",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        },
    )
    assert (env["OMP_NUM_THREADS"], env["HOME"], env["RANK"]) == ("7", "/root", "0")
    assert env["POLLUX_RANK"] == "0"
    assert not {"POLLUX_STEP", "POLLUX_RENDEZVOUS_FILE", "TORCHELASTIC_USE_AGENT_STORE"} & set(env)


def test_that_the_processes_of_one_node_get_the_rendezvous_file() -> None:
    alone = RunLayout(nodes=(("n0", 2),), master_addr="127.0.0.1", master_port=5, secret="s")
    environments = rank_environments(alone, 0, {}, rendezvous_file=Path("/tmp/x/ranks"))
    assert {env["POLLUX_RENDEZVOUS_FILE"] for env in environments} == {"/tmp/x/ranks"}
