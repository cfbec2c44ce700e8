"""SLAQ by hand: the loss falls by e^(−5·done)·(1 − e^(−5·part)) in a round."""

from __future__ import annotations

from pollux_slurm.simulator import Cluster
from pollux_slurm.simulator.policies import SlaqPolicy
from tests.simulator.rated import hours, job_of

LINEAR = {gpus: float(gpus) for gpus in range(1, 9)}
NODE = Cluster(num_nodes=1, gpus_per_node=4, interval_s=360.0)


def shares(*jobs: tuple[float, dict[int, float]], cluster: Cluster = NODE) -> list[int]:
    """Return the GPUs of jobs of an hour with these parts done and rates."""
    made = [
        job_of(hours(f"j{index}", 1.0, "m (batch size 8)"), rates, done=done)
        for index, (done, rates) in enumerate(jobs)
    ]
    given = SlaqPolicy().allocate(0.0, made, cluster)
    return [sum(gpus for _, gpus in given.get(job.job.name, ())) for job in made]


def test_that_the_young_job_gets_the_gpus() -> None:
    """Half done, a second GPU lowers the loss by 0.020; for the young job by 0.239, a third by 0.145."""
    assert shares((0.5, LINEAR), (0.0, LINEAR)) == [1, 3]


def test_that_equal_jobs_share_equally() -> None:
    assert shares((0.1, LINEAR), (0.1, LINEAR)) == [2, 2]


def test_that_a_gpu_that_makes_a_job_no_faster_stays_idle() -> None:
    assert shares((0.0, {1: 1.0, 2: 1.0, 3: 1.0})) == [1]


def test_that_of_too_many_jobs_the_youngest_run() -> None:
    assert shares(*[(part / 10, LINEAR) for part in (3, 0, 2, 1, 4)]) == [1, 1, 1, 1, 0]


def test_that_a_job_that_one_gpu_ends_in_the_round_gains_nothing_from_a_second() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=3, interval_s=360.0)
    slow = {1: 1.0, 2: 1.0001}
    made = [
        job_of(hours("ends", 1.0, "m (batch size 8)"), LINEAR, done=0.95),
        job_of(hours("goes on", 1.0, "slow (batch size 8)"), slow, done=0.5),
    ]
    given = SlaqPolicy().allocate(0.0, made, cluster)
    assert {name: sum(gpus for _, gpus in one) for name, one in given.items()} == {"ends": 1, "goes on": 2}
