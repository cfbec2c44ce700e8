from __future__ import annotations

import os
from pathlib import Path

import pytest

from pollux_slurm.config import SlurmConfig
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm import connect
from pollux_slurm.slurm.connection import COMMANDS


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    for command in COMMANDS:
        program = tmp_path / command
        program.write_text(
            "#!/bin/sh\necho 'fatal: Could not establish a configuration source' >&2\nexit 1\n"
        )
        program.chmod(0o755)
    return tmp_path


def test_that_a_machine_without_slurm_raises_with_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable, match=r"no squeue on PATH: .*apt-get install slurm-client"):
        connect(SlurmConfig(), {"PATH": str(tmp_path)})


def test_that_only_bin_dir_is_searched_when_it_is_set(bin_dir: Path) -> None:
    (bin_dir / "sbatch").unlink()
    with pytest.raises(SlurmUnavailable, match=f"no sbatch in {bin_dir}"):
        connect(SlurmConfig(bin_dir=str(bin_dir)), dict(os.environ))


def test_that_a_missing_slurm_conf_is_named(bin_dir: Path) -> None:
    with pytest.raises(SlurmUnavailable, match=r"SLURM_CONF=/nowhere/slurm\.conf: no such file"):
        connect(SlurmConfig(bin_dir=str(bin_dir)), {"SLURM_CONF": "/nowhere/slurm.conf"})


@pytest.mark.skipif(Path("/etc/slurm/slurm.conf").exists(), reason="this machine belongs to a cluster")
def test_that_a_machine_without_slurm_conf_raises(bin_dir: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "XDG_STATE_HOME": str(bin_dir / "state")}
    with pytest.raises(SlurmUnavailable, match=r"no slurm\.conf on this machine: set SLURM_CONF"):
        connect(SlurmConfig(bin_dir=str(bin_dir)), environ)
    (bin_dir / "state" / "pollux" / "sandbox").mkdir(parents=True)
    with pytest.raises(SlurmUnavailable, match=r'point this shell at it: eval "\$\(pollux sandbox env\)"'):
        connect(SlurmConfig(bin_dir=str(bin_dir)), environ)


def test_that_the_client_reaches_the_cluster_that_the_environment_names(sandbox: Sandbox) -> None:
    client = connect(SlurmConfig(), {**os.environ, **sandbox.env})
    assert client.settings()["ClusterName"] == "sandbox"
    assert client.version().split(".")[0].isdecimal()
