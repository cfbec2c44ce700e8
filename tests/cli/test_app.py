"""The imports that every command of `pollux` has."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("words", [["--help"], ["status", "--help"], ["simulate", "--help"]], ids=" ".join)
def test_that_help_imports_nothing_that_takes_long(words: list[str]) -> None:
    script = (
        "import sys\nfrom pollux_slurm.cli import main\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=300, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "pollux_slurm.cli.app" in loaded
    slow = {"numpy", "scipy", "sqlalchemy", "jinja2", "prometheus_client", "pollux_slurm.config"}
    assert not slow & set(loaded)
