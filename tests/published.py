"""The published measurements of the Pollux artifact, if this machine has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def traces_dir() -> Path:
    """Return the folder with a sub-folder for each application; skips the test where there is none.

    `POLLUX_TRACES` names it; otherwise it is looked for beside the checkout.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "osdi21" / "traces"
    folder = Path(os.environ.get("POLLUX_TRACES", beside))
    if not folder.is_dir():
        pytest.skip(f"no published traces at {folder}: set POLLUX_TRACES to the folder that holds bert/, ...")
    return folder


def workload_file(number: int) -> Path:
    """Return a published workload; it lies beside the traces."""
    return traces_dir().parent / "workloads" / f"workload-{number}.csv"
