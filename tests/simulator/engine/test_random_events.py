"""What is drawn from a seed: means, and the same again."""

from __future__ import annotations

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.simulator import Failures
from pollux_slurm.simulator.engine.random_events import Outages, draw_adaptive, draw_unmanaged_jobs


def test_that_nodes_fail_with_their_mean_time_and_come_back() -> None:
    """20 nodes for 100 times 1,000 s of being up and 100 s of being down."""
    outages = Outages(Failures(mtbf_s=1000, repair_s=100), 20, seed=1)
    num_failures = num_down = 0
    for at_s in range(0, 110_000, 50):
        num_failures += len(outages.between(at_s, at_s + 50))
        num_down += len(outages.down(at_s + 50))
    assert num_failures == pytest.approx(2000, rel=0.1)
    assert num_down / (20 * 2200) == pytest.approx(1 / 11, rel=0.1)


def test_that_an_outage_begins_at_its_time() -> None:
    at_s = Outages(Failures(mtbf_s=1000, repair_s=100), 1, seed=1).between(0, 1e6)[0]
    outages = Outages(Failures(mtbf_s=1000, repair_s=100), 1, seed=1)
    assert outages.between(0, at_s - 1) == {}
    assert outages.down(at_s - 1) == frozenset()
    assert outages.between(at_s - 1, at_s) == {0: at_s}
    assert outages.down(at_s) == {0}
    assert outages.between(at_s, at_s + 100) == {}
    assert outages.down(at_s + 100) == frozenset()


def test_that_without_failures_nothing_fails() -> None:
    outages = Outages(None, 3, seed=1)
    assert outages.between(0, 1e9) == {}
    assert outages.down(1e9) == frozenset()


def test_that_unmanaged_jobs_use_the_requested_share() -> None:
    jobs = draw_unmanaged_jobs(seed=2, share=0.25, num_gpus=64, hours=200, mean_duration_s=1800)
    used = sum(job.duration_s * job.num_gpus for job in jobs) / (64 * 200 * 3600)
    assert used == pytest.approx(0.25, rel=0.1)
    assert {job.num_gpus for job in jobs} == {1, 2, 4}
    assert jobs == draw_unmanaged_jobs(seed=2, share=0.25, num_gpus=64, hours=200, mean_duration_s=1800)
    assert draw_unmanaged_jobs(seed=2, share=0.0, num_gpus=64, hours=200) == ()


@pytest.mark.parametrize("options", [{"share": 1.0}, {"share": -0.1}, {"hours": 0}, {"num_gpus": 0}])
def test_that_impossible_unmanaged_jobs_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SimulationError):
        draw_unmanaged_jobs(**{"seed": 1, "share": 0.1, "num_gpus": 8, "hours": 1.0} | options)  # type: ignore[arg-type]


def test_that_a_larger_adaptive_share_contains_a_smaller_one() -> None:
    few, more = (draw_adaptive(160, share, seed=4) for share in (0.2, 0.5))
    assert (len(few), len(more)) == (32, 80)
    assert few < more
    assert len(draw_adaptive(160, 1.0, seed=4)) == 160
    assert draw_adaptive(160, 0.2, seed=5) != few
