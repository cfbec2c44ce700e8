"""A replica that dies is found by all, whatever their main threads wait for."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.torch.session.current_session import current_session
from tests.torch.ranks import start

pytestmark = pytest.mark.torch


def wait_for_ever(directory: str, number: int) -> None:
    """Join with other replicas, then wait for something that does not come; one of them dies."""
    os.environ |= {"POLLUX_MEMBERSHIP": directory, "POLLUX_MEMBER": os.environ["RANK"]}
    pt.init_process_group("gloo", checkpoint_dir=directory, in_place=True)
    if current_session().rank == number:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10_000)


def end_at_different_times(directory: str) -> None:
    os.environ |= {"POLLUX_MEMBERSHIP": directory, "POLLUX_MEMBER": os.environ["RANK"]}
    pt.init_process_group("gloo", checkpoint_dir=directory, in_place=True)
    session = current_session()
    session.finish()
    if session.rank != 0:
        # As some scripts do, so that nothing of theirs hangs at the end.
        os._exit(0)
    # Longer than the grace for a replica that died.
    time.sleep(7.0)


def test_that_all_replicas_end_after_one_was_killed(tmp_path: Path) -> None:
    run = start(tmp_path, 3, wait_for_ever, str(tmp_path), 1)
    assert run.wait() == [1, -signal.SIGKILL, 1], run.output()
    assert run.output().count("replica 1 has ended, and the others cannot train without it") == 1


@pytest.mark.full
def test_that_a_replica_may_end_later_than_the_others(tmp_path: Path) -> None:
    run = start(tmp_path, 3, end_at_different_times, str(tmp_path))
    assert run.wait() == [0, 0, 0], run.output()
