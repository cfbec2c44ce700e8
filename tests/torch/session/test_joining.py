import dataclasses
import socket
import tempfile
from pathlib import Path

import pytest
import torch.distributed as dist

from pollux_slurm.agent.environment.job_environment import JobEnvironment, read_environment
from pollux_slurm.errors import LaunchError
from pollux_slurm.torch.coordination.side_channel import SideChannel
from pollux_slurm.torch.session.joining import claim_next_run, join_group, verify_rank_0


def rank(number: int, **others: object) -> JobEnvironment:
    environ = {"RANK": str(number), "WORLD_SIZE": "2", "POLLUX_CHECKPOINT_DIR": "/shared/7"}
    return dataclasses.replace(read_environment(environ), **{"token": "a" * 64, "secret": "a" * 64, **others})  # type: ignore[arg-type]


def test_that_a_rank_accepts_rank_0_of_its_run() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    verify_rank_0(store, rank(0))
    verify_rank_0(store, rank(1))


@pytest.mark.parametrize(
    "other",
    [
        {"token": "b" * 64},
        {"secret": "another"},
        {"checkpoint_dir": Path("/shared/8")},
        {"restart_count": 1},
        {"gpus_per_node": (1, 1)},
    ],
)
def test_that_a_rank_of_another_run_is_refused(other: dict[str, object]) -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    verify_rank_0(store, rank(0))
    with pytest.raises(LaunchError, match="another job"):
        verify_rank_0(store, rank(1, **other))


def test_that_rank_0_of_another_generation_is_refused() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    verify_rank_0(store, rank(0), generation=1)
    with pytest.raises(LaunchError, match="another job"):
        verify_rank_0(store, rank(1), generation=2)


def test_that_the_secret_of_a_job_is_not_in_the_store() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    verify_rank_0(store, rank(0))
    assert b"a" * 8 not in store.get("pollux/run")


def test_that_a_job_warns_once_of_others_who_may_change_its_checkpoints(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = read_environment({"POLLUX_JOB_ID": "7"})
    side_channel: SideChannel[None] = SideChannel(rank=0, world_size=1, group=None)
    # Not in pytest's own folder, which no other user can enter.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        for _ in range(2):
            claim_next_run(side_channel, alone, folder)
        (message,) = caplog.messages
        assert message.startswith(
            f"everybody may write in {folder}, and so can change what job 7 goes on from"
        )
        folder.chmod(0o755)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        claim_next_run(side_channel, alone, Path(name))
    assert len(caplog.messages) == 1


def test_that_the_error_of_a_port_in_use_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taker:
        port = taker.getsockname()[1]
        for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", str(port))):
            monkeypatch.setenv(name, value)
        with pytest.raises(LaunchError, match=f"port {port} of .* has been taken by another process"):
            join_group(rank(0), "gloo")
