"""Time each page of `pollux web` over a year of jobs: the processor time of its making, without a browser."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone

from starlette.testclient import TestClient

from pollux_slurm.web.app import make_app
from pollux_slurm.web.server import opened_source

YEAR = "since=2025-01-01&until=2026-01-01"


def page_times(url: str, *, num_jobs: int) -> Iterator[tuple[str, float]]:
    """Yield each page's address and the median of five makings in seconds, as on the year's last day."""
    ranged = ("jobs", "cluster", "rounds", "moves", "fairness", "accounts", "accounts/account3")
    with opened_source(url) as source:
        source = replace(source, clock=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc))
        client = TestClient(make_app(source, hosts=None, token=None))
        for page in ("", f"jobs/{num_jobs - 1}", *(f"{name}?{YEAR}" for name in ranged)):
            client.get(f"/{page}").raise_for_status()
            times = []
            for _ in range(5):
                before = time.process_time()
                client.get(f"/{page}")
                times.append(time.process_time() - before)
            yield f"/{page}", statistics.median(times)
