"""A wing's program whose step cannot begin: it says so, since only a wing that is lost is started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.launch.anchor import wing_program
from pollux_slurm.launch.anchor.link import LinkListener, connect
from pollux_slurm.launch.anchor.order import Order
from pollux_slurm.launch.submit.wing_request import PROGRAM

DEADLINE_S = 60.0


def order_for(folder: Path, port: int, *, directory: Path) -> Path:
    """Write the order of an anchor at a port of this machine; return its file."""
    order = Order(
        command=("true",),
        directory=str(directory),
        anchor_id="1",
        address="127.0.0.1",
        port=port,
        link_secret="s",
        run_secret="r",
        num_processes=None,
        kill_after_s=15.0,
        wrapper=(),
        srun_arguments=(),
    )
    order.write(folder / "p.order")
    return folder / "p.order"


def test_that_a_wing_that_meets_no_anchor_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm shows it as completed: three that have failed before their processes would fail the job."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    environ = {"SLURM_JOB_ID": "10", "SLURM_JOB_NUM_NODES": "1", "SLURM_GPUS_ON_NODE": "1"}
    for name, value in ({"SLURMD_NODENAME": "n0"} | environ).items():
        monkeypatch.setenv(name, value)
    order = order_for(tmp_path, port, directory=tmp_path)
    monkeypatch.setattr(sys, "argv", ["wing", str(order)])
    monkeypatch.setattr(wing_program, "connect", lambda *where: connect(*where, timeout_s=0))
    with pytest.raises(SystemExit) as ended:
        wing_program.main()
    assert ended.value.code == 0
    assert f"the anchor cannot be reached at 127.0.0.1, port {port}" in capsys.readouterr().err


def test_that_a_wing_whose_step_cannot_begin_says_how_it_ends(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "scontrol").chmod(0o755)
    config = tmp_path / "pollux.toml"
    config.write_text(f'[slurm]\nbin_dir = "{tmp_path}"\n')
    listener = LinkListener("s")
    order = order_for(tmp_path, listener.port, directory=tmp_path / "gone")
    job = {"SLURM_JOB_ID": "10", "SLURM_JOB_NUM_NODES": "1", "SLURMD_NODENAME": socket.gethostname()}
    environ = {**os.environ, "POLLUX_CONFIG": str(config), "SLURM_GPUS_ON_NODE": "1", **job}
    wing = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(order)],
        env=environ, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        link, hello = listener.messages.get(timeout=DEADLINE_S)
        assert hello is not None
        assert hello["processes"] == {socket.gethostname(): 1}
        link.send({"go": {"restart_count": 0, "members": [], "own": ["0.0.n0.0"], "joins": None}})
        assert listener.messages.get(timeout=DEADLINE_S) == (link, {"exit": 1})
        assert listener.messages.get(timeout=DEADLINE_S) == (link, None)
        _, said = wing.communicate(timeout=DEADLINE_S)
        assert wing.returncode == 1
        assert f"the job's directory {tmp_path}/gone is not on this node: No such file or directory" in said
    finally:
        wing.kill()
        wing.wait()
        listener.close()
