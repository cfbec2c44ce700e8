"""Moves in place where Slurm lets each job open its own GPUs only (ConstrainDevices)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pollux_slurm.config import SlurmConfig
from pollux_slurm.model import Allocation, JobState, ReallocationStep, ReallocationWay
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm import connect
from pollux_slurm.store import open_store
from tests.conftest import running_sandbox
from tests.e2e.test_in_place import SETTINGS
from tests.e2e.user_commands import UserCommands

pytestmark = [pytest.mark.e2e, pytest.mark.slurm, pytest.mark.torch, pytest.mark.full]

DEVICES = Path("/sys/fs/cgroup/devices")
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\nConstrainDevices=yes\n"
# A range of the kernel's for local use: no driver answers, but who may open them is checked first.
MAJOR = 240
# Enters a cgroup and prints the devices in a folder that it may open there.
PROBE = """
import os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as procs:
    procs.write(str(os.getpid()))
for name in sorted(os.listdir(sys.argv[2])):
    try:
        os.open(sys.argv[2] + "/" + name, os.O_RDONLY)
    except PermissionError:
        continue
    except OSError:  # no driver has it
        print(name)
"""


@pytest.fixture
def user(slurm_programs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserCommands]:
    if os.geteuid() != 0 or not os.access(DEVICES, os.W_OK):
        pytest.skip("takes root and a writable cgroup v1 hierarchy of devices")
    settings = tmp_path / "pollux.toml"
    settings.write_text(SETTINGS)
    monkeypatch.setenv("POLLUX_CONFIG", str(settings))
    with running_sandbox(NodeGroup(num_nodes=2), kill_wait_s=10) as sandbox:
        constrain_devices(sandbox)
        url = f"sqlite:///{tmp_path}/pollux.db"
        user = UserCommands(
            directory=tmp_path,
            slurm=connect(SlurmConfig(), {**os.environ, **sandbox.env}),
            slurm_env=sandbox.env,
            store=open_store(url, create=True),
            store_url=url,
        )
        yield user
        user.close()


def constrain_devices(sandbox: Sandbox) -> None:
    """Give the sandbox's GPUs devices of their own, and let Slurm constrain them."""
    conf = Path(sandbox.env["SLURM_CONF"])
    (conf.parent / "cgroup.conf").write_text(CGROUP_CONF)
    conf.write_text(re.sub("^TaskPlugin=.*$", "TaskPlugin=task/cgroup", conf.read_text(), flags=re.MULTILINE))
    for gpu in sandbox.layout.device_dir.iterdir():
        gpu.unlink()
        os.mknod(gpu, 0o20666, os.makedev(MAJOR, int(gpu.name.removeprefix("gpu"))))
    for name in ("slurmctld", "n0", "n1"):
        sandbox = sandbox.stop(name).start(name)
    sandbox.wait_idle(timeout_s=120)


def devices_of(job_id: str, node: str, device_dir: Path) -> list[int]:
    """Return the GPUs that a process in the step of a job may open."""
    (step,) = DEVICES.glob(f"slurm_{node}/uid_*/job_{job_id}/step_0")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(step), str(device_dir)], capture_output=True, text=True, check=True
    )
    return [int(name.removeprefix("gpu")) for name in done.stdout.split()]


def test_that_wings_on_one_node_train_together_though_each_may_open_its_own_gpus_only(
    user: UserCommands,
) -> None:
    job_id = user.digits(
        "apart", "--gpus=2", "--nodelist=n0", "--in-place", epochs=10, max_gpus=4, pass_s="0.02,0.02"
    )
    user.wait(lambda: user.gpus(job_id) == 2, "its start", every_s=0.5)
    user.start_daemon()

    def grown() -> bool:
        return any(
            move.way is ReallocationWay.IN_PLACE and move.step is ReallocationStep.CONFIRMED
            for move in user.store.journal.reallocations(job_id)
        )

    user.wait(grown, "a move in place", every_s=0.5)
    job = user.slurm.read_job(job_id)
    assert job is not None
    wings = [wing for wing in job.wings if wing.state is JobState.RUNNING]
    assert job.allocation == Allocation.of({"n0": 4})
    gpus = Path(user.slurm_env["SLURM_CONF"]).parents[1] / "dev"
    seen = [devices_of(wing.job_id, "n0", gpus) for wing in wings]
    assert sorted(number for own in seen for number in own) == [0, 1, 2, 3]
    assert len(seen) == 2
    record = user.wait_over(job_id)
    assert record.state is JobState.COMPLETED, user.log()
    result = json.loads((user.directory / "apart.json").read_text())
    assert [(epoch["min"], epoch["max"]) for epoch in result["audit"]] == [(1, 1)] * result["epochs"]
