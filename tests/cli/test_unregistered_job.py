"""`pollux status` and `explain` of a job right after its submission, on a real Slurm."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.store import open_store
from tests.cli.inside import pollux


def test_that_a_job_just_submitted_is_shown_before_a_daemon_registers_it(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/pollux.db"
    store = open_store(url, create=True)
    for name, value in {**sandbox.env, "POLLUX_STORE_URL": url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    options = ("--parsable", "-o", "log", "--begin=now+1hour", "--wrap=true")
    assert pollux("sbatch", *options).returncode == 0
    adaptive = capfd.readouterr().out.strip()  # sbatch itself has printed it
    plain = sandbox.runner().run("sbatch", *options).stdout.strip()
    try:
        line_start = f"job {adaptive} was submitted "
        unlooked = "is pending (BeginTime); it is not registered: no daemon has run on this store"
        for words in (("status",), ("status", adaptive), ("explain", adaptive)):
            shown = pollux(*words)
            assert (shown.returncode, shown.stderr) == (0, "")
            (line,) = (line for line in shown.stdout.splitlines() if line.startswith(line_start))
            assert unlooked in line
            assert "no active adaptive jobs" not in shown.stdout
        store.lease.acquire("ctl:1:a", ttl_s=600, at=datetime.now(timezone.utc), interval_s=60, watch_s=10)
        assert "the daemon reads Slurm every 10 s" in pollux("explain", adaptive).stdout
        assert "is not adaptive: submit it with pollux sbatch" in pollux("explain", plain).stdout
        assert f"job {plain} " not in pollux("status").stdout
        unknown = pollux("status", "999999")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "job 999999 is not known as an adaptive job" in unknown.stderr
    finally:
        sandbox.runner().run("scancel", adaptive, plain)
        store.close()
