"""`pollux status` and `explain` of a job right after its submission, on a real Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.store import open_store


def test_that_a_job_just_submitted_is_shown_before_a_daemon_registers_it(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/pollux.db"
    store = open_store(url, create=True)
    environ = {**os.environ, **sandbox.env, "POLLUX_STORE_URL": url}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )

    def pollux(*words: str) -> subprocess.CompletedProcess[str]:
        return typed(sys.executable, "-m", "pollux_slurm", *words)

    adaptive = pollux("sbatch", "--parsable", "-o", "log", "--begin=now+1hour", "--wrap=true").stdout.strip()
    plain = typed("sbatch", "--parsable", "-o", "log", "--begin=now+1hour", "--wrap=true").stdout.strip()
    try:
        line_start = f"job {adaptive} was submitted "
        unlooked = "is pending (BeginTime); it is not registered: no daemon has run on this store"
        for words in (("status",), ("status", adaptive), ("explain", adaptive)):
            shown = pollux(*words)
            assert (shown.returncode, shown.stderr) == (0, "")
            (line,) = (line for line in shown.stdout.splitlines() if line.startswith(line_start))
            assert unlooked in line
            assert "no active adaptive jobs" not in shown.stdout
        store.acquire_lease("ctl:1:a", ttl_s=600, at=datetime.now(timezone.utc), interval_s=60, watch_s=10)
        assert "the daemon reads Slurm every 10 s" in pollux("explain", adaptive).stdout
        assert "is not adaptive: submit it with pollux sbatch" in pollux("explain", plain).stdout
        assert f"job {plain} " not in pollux("status").stdout
        unknown = pollux("status", "999999")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "job 999999 is not known as an adaptive job" in unknown.stderr
    finally:
        typed("scancel", adaptive, plain)
        store.close()
