"""How often a round asks Slurm's accounting database for what is estimated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pollux_slurm.daemon.observe import accounted_runs
from tests.daemon.world import World


def test_that_rounds_in_quick_succession_ask_slurmdbd_once(world: World) -> None:
    asked: list[list[str]] = []

    def past_runs(job_ids: Sequence[str], since: datetime) -> tuple[()]:
        asked.append(list(job_ids))
        return ()

    job_id = world.submit(gpus=1)
    daemon = world.daemon(past_runs=past_runs)
    world.settle(daemon, until=lambda: world.has_stepped(job_id), seconds=8)
    world.slurm.forget(job_id)
    for _ in range(2):  # only then it is taken for over, and its end for a guess
        daemon.round()
    world.clock.advance(accounted_runs.SETTLED_EVERY.total_seconds())
    assert asked == []
    for _ in range(5):
        world.clock.advance(1)
        daemon.round()
    assert asked == [[job_id]]
    world.clock.advance(accounted_runs.SETTLED_EVERY.total_seconds())
    daemon.round()
    assert asked == [[job_id], [job_id]], "what it does not know is asked for again"
