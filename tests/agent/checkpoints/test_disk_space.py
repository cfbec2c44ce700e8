"""Whether another checkpoint fits, on a small file system of its own where this user may mount one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.agent.checkpoints import disk_space
from pollux_slurm.agent.checkpoints.disk_space import free_bytes, has_room
from tests.launch.node.stand_in_container import needs_namespaces, write_container

# Writes three checkpoints of argv[2] numbers of four bytes; prints what was told of each, and the files left.
WRITE = """
import sys
from datetime import datetime, timezone
from pathlib import Path
import torch
from pollux_slurm.agent.checkpoints.lineage import claim_run
from pollux_slurm.errors import CheckpointError
folder = Path(sys.argv[1])
run = claim_run(folder, restart_count=0, host="n0", pid=1, at=datetime.now(timezone.utc))
for _ in range(3):
    try:
        written = run.write(lambda file: torch.save(torch.zeros(int(sys.argv[2])), file))
        print(written.has_room_for_next)
    except CheckpointError as error:
        print(type(error).__name__)
print(len(list((folder / "checkpoints").iterdir())))
"""


@needs_namespaces
@pytest.mark.torch
@pytest.mark.parametrize(
    ("num_kbytes", "told"),
    [
        (200, "True True True 2"),
        (400, "True True True 2"),  # there is no room for three: the oldest makes way
        (700, "False DiskFullError DiskFullError 1"),
    ],
)
def test_that_a_disk_without_room_for_another_checkpoint_is_told(
    tmp_path: Path, num_kbytes: int, told: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    container = write_container(tmp_path, before=f"mount -t tmpfs -o size=1m none {disk}")
    command = [str(container), sys.executable, "-c", WRITE, str(disk / "job"), str(num_kbytes * 250)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert " ".join(done.stdout.split()) == told


def test_that_asking_for_room_leaves_no_file(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet") is not None
    assert has_room(tmp_path, 1000)
    assert not has_room(tmp_path, 1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_that_free_space_decides_where_none_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space.ctypes, "CDLL", lambda *_, **__: object())
    assert has_room(tmp_path, 1000)
    assert not has_room(tmp_path, 1 << 60)
