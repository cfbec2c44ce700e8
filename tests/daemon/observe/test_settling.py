"""How often rounds query Slurm's accounting database for estimated runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pollux_slurm.daemon.observe import accounted_runs
from tests.daemon.harness import Harness


def test_that_rounds_a_few_seconds_apart_query_slurmdbd_once(harness: Harness) -> None:
    asked: list[list[str]] = []

    def past_runs(job_ids: Sequence[str], since: datetime) -> tuple[()]:
        asked.append(list(job_ids))
        return ()

    job_id = harness.submit(gpus=1)
    daemon = harness.daemon(past_runs=past_runs)
    harness.run_until(daemon, until=lambda: harness.has_stepped(job_id), seconds=8)
    harness.slurm.forget(job_id)
    for _ in range(2):  # only then it counts as over, with an estimated end
        daemon.round()
    harness.clock.advance(accounted_runs.CORRECTED_EVERY.total_seconds())
    assert asked == []
    for _ in range(5):
        harness.clock.advance(1)
        daemon.round()
    assert asked == [[job_id]]
    harness.clock.advance(accounted_runs.CORRECTED_EVERY.total_seconds())
    daemon.round()
    assert asked == [[job_id], [job_id]], "what it does not know is asked for again"
