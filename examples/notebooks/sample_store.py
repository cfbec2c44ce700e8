"""A year of made-up jobs, for notebooks and tutorials: python sample_store.py sample.db --jobs 2000

The notebooks look at the store of POLLUX_STORE_URL, or without one at such a year in a new file.
"""

from __future__ import annotations

import argparse
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
    return make_store(Path(tempfile.mkdtemp(prefix="pollux-sample-")) / "pollux.db", num_jobs)


def make_store(path: Path, num_jobs: int) -> str:
    """Make an SQLite store with `num_jobs` jobs in the year 2025 at `path`, and return its URL."""
    url = f"sqlite:///{path.absolute()}"
    open_store(url, create=True).close()
    database = open_database(url)
    with database.write() as connection:
        num_nodes = max(num_jobs // 500, 4)
        fill_history(connection, num_jobs, num_nodes=num_nodes, num_active=0, round_text_bytes=32)
    database.close()
    return url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="a new file")
    parser.add_argument("--jobs", type=int, default=1000, help="jobs in the year (default: %(default)s)")
    options = parser.parse_args()
    if options.file.exists():
        parser.error(f"{options.file} exists")
    print(make_store(options.file, options.jobs))


if __name__ == "__main__":
    main()
