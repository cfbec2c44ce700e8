"""What a process reads from its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.agent.environment.job_environment import (
    process_age_s,
    read_environment,
    refusal_of_processes,
)
from pollux_slurm.errors import ConfigError


def test_that_a_plain_process_is_alone_and_does_not_report() -> None:
    alone = read_environment({})
    assert (alone.rank, alone.world_size, alone.gpus_per_node) == (0, 1, (1,))
    assert (alone.checkpoint_dir, alone.token, alone.config.store.url) == (None, None, None)


def test_that_the_launchers_variables_are_read(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("1000-" + "5e" * 32 + "\n")
    token.chmod(0o600)
    environment = read_environment(
        {
            "RANK": "4",
            "WORLD_SIZE": "5",
            "LOCAL_RANK": "0",
            "POLLUX_GPUS_PER_NODE": "4,1",
            "POLLUX_RESTART_COUNT": "3",
            "POLLUX_CHECKPOINT_DIR": "/data/job",
            "POLLUX_TOKEN_FILE": str(token),
            "POLLUX_STORE_URL": "sqlite:////data/pollux.db",
        }
    )
    assert (environment.rank, environment.world_size, environment.gpus_per_node, environment.num_nodes) == (
        4,
        5,
        (4, 1),
        2,
    )
    assert (environment.restart_count, environment.checkpoint_dir, environment.token) == (
        3,
        Path("/data/job"),
        "1000-" + "5e" * 32,
    )
    assert environment.config.store.url == "sqlite:////data/pollux.db"


def test_that_torchruns_variables_give_the_nodes() -> None:
    assert read_environment({"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2"}).gpus_per_node == (2, 2, 2)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
        ({"RANK": "-1"}, "RANK"),
        ({"RANK": "٣", "WORLD_SIZE": "9"}, "RANK"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "4", "POLLUX_GPUS_PER_NODE": f"4,{'9' * 5000}"}, "does not add up"),
        ({"WORLD_SIZE": "4", "POLLUX_GPUS_PER_NODE": "2,1"}, "does not add up"),
        ({"WORLD_SIZE": "4", "POLLUX_GPUS_PER_NODE": "4,x"}, "does not add up"),
        ({"WORLD_SIZE": "4", "POLLUX_GPUS_PER_NODE": "4,0"}, "does not add up"),
        ({"POLLUX_TOKEN_FILE": "/nonexistent/token"}, "cannot be read"),
        ({"POLLUX_RESTART_COUNT": "1.5"}, "POLLUX_RESTART_COUNT"),
        ({"SLURM_STEP_NUM_TASKS": "2", "POLLUX_CHECKPOINT_DIR": "/data/job"}, "srun has started 2 processes"),
        # Each of two processes of `pollux run` has started a torchrun, which counts its own from 0.
        ({"POLLUX_RANK": "1", "RANK": "0", "WORLD_SIZE": "2"}, "rank 1 of pollux run has become RANK=0"),
    ],
)
def test_that_contradicting_variables_are_refused_by_name(environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_environment(environ)


def test_that_a_member_of_a_training_in_the_store_knows_its_place(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("1000-" + "5e" * 32)
    token.chmod(0o600)
    complete = {
        "POLLUX_MEMBERSHIP": "store",
        "POLLUX_MEMBER": "17.0",
        "POLLUX_JOINS": "3",
        "POLLUX_ADDRESS": "10.0.0.7",
        "POLLUX_TOKEN_FILE": str(token),
        "POLLUX_STORE_URL": f"sqlite:///{tmp_path}/pollux.db",
    }
    found = read_environment(complete)
    assert found.is_joining
    assert found.membership is not None
    assert (found.membership.member, found.membership.joins) == ("17.0", 3)
    assert found.membership.host == "10.0.0.7"
    assert not read_environment({**complete, "POLLUX_JOINS": ""}).is_joining
    for name in ("POLLUX_ADDRESS", "POLLUX_TOKEN_FILE", "POLLUX_STORE_URL"):
        with pytest.raises(ConfigError, match="POLLUX_MEMBERSHIP=store needs"):
            read_environment({**complete, name: ""})


def test_that_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("1000-" + "5e" * 32)
    token.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod go-rwx"):
        read_environment({"POLLUX_TOKEN_FILE": str(token)})


def test_that_an_empty_token_is_refused(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("\n")
    token.chmod(0o600)
    with pytest.raises(ConfigError, match="does not contain a token"):
        read_environment({"POLLUX_TOKEN_FILE": str(token)})


def test_that_the_age_of_a_process_includes_its_imports() -> None:
    age_s = process_age_s()
    assert 0 < age_s <= process_age_s()


def test_that_processes_that_do_not_know_each_other_are_told_what_has_started_them() -> None:
    refusal = refusal_of_processes({"SLURM_STEP_NUM_TASKS": "4"}) or ""
    assert refusal.startswith("srun has started 4 processes of this training (SLURM_STEP_NUM_TASKS)")
    assert refusal.endswith("In place of srun, write: pollux run -- python train.py")
    assert "mpirun has started 2" in (refusal_of_processes({"OMPI_COMM_WORLD_SIZE": "2"}) or "")
    for environ in (
        {},
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},  # one task, or a batch script
        {"SLURM_STEP_NUM_TASKS": "4", "RANK": "0", "WORLD_SIZE": "4"},  # pollux run, torchrun, the script
    ):
        assert refusal_of_processes(environ) is None
