"""The tutorials that need a cluster: their commands in their order, as a newcomer types them.

docs/tutorials/first-job.md and docs/tutorials/shadow.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, blocks_of, run_script

pytestmark = [pytest.mark.e2e, pytest.mark.slurm]

# What a reader does between two blocks: look until all jobs have reported, on a machine of any speed.
LOOK = """
for look in $(seq 300); do
  pollux status --json | python -c '
import json, sys
jobs = json.load(sys.stdin)
sys.exit(not jobs or any(job["goodput"] is None for job in jobs))
' && break
  sleep 10
done
"""


# A slower device and fewer GPUs than the page's: the same commands leave the cores to what else is tested.
SMALLER = (("--emulate-device 0.01,0.006", "--emulate-device 0.06,0.04"), ("--max-gpus 8", "--max-gpus 2"))


@pytest.fixture
def home() -> Iterator[Path]:
    """A home with a short name: Slurm's sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="pollux-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.parametrize("name", ["first-job.md", "shadow.md"])
def test_that_a_newcomer_can_type_every_command(name: str, home: Path, slurm_programs: None) -> None:
    page = ROOT / "docs" / "tutorials" / name
    blocks = [block for block in blocks_of(page) if block.mark and block.mark.startswith("run by")]
    assert len(blocks) >= 6
    shutil.copytree(ROOT / "examples", home / "examples")
    script = ["set -e", "set -m"]
    for block in blocks:
        text = block.text
        for there, here in SMALLER:
            text = text.replace(there, here)
        script.append(text)
        if "pollux sbatch" in block.text:
            script.append(LOOK)
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("POLLUX_", "SLURM_"))}
    environ |= {
        "HOME": str(home),
        "USER": "root",
        "POLLUX_AGENT_REPORT_INTERVAL_S": "2",
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}:/usr/sbin",
    }
    try:
        run_script(script, cwd=home, environ=environ, timeout_s=1200)
    finally:
        down = [sys.executable, "-m", "pollux_slurm", "sandbox", "down"]
        subprocess.run(down, env=environ, check=False, capture_output=True, timeout=120)
