"""The store that the notebooks look at: that of POLLUX_STORE_URL, or a year of made-up jobs in a new file."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # from a checkout, wherever the notebook's kernel was started
    sys.path.insert(0, str(ROOT))

from benchmarks.store_history import fill_history  # noqa: E402
from pollux_slurm.store import open_store  # noqa: E402
from pollux_slurm.store.access.opening import open_database  # noqa: E402


def store_url(num_jobs: int = 1000) -> str:
    """Return the URL of POLLUX_STORE_URL; else of a new SQLite file with `num_jobs` jobs in the year 2025."""
    if url := os.environ.get("POLLUX_STORE_URL"):
        return url
    url = f"sqlite:///{tempfile.mkdtemp(prefix='pollux-sample-')}/pollux.db"
    open_store(url, create=True).close()
    database = open_database(url)
    with database.write() as connection:
        fill_history(connection, num_jobs)
    database.close()
    return url
