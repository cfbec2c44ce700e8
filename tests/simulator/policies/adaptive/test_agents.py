"""When agents of simulated jobs fit their models anew."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from pollux_slurm.goodput import Observation
from pollux_slurm.model import GoodputModel
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.policies.adaptive.agents import Agents
from tests.simulator.builders import made_application, made_job


@pytest.fixture
def job(tmp_path: Path) -> SimulatedJob:
    """A job that has measured four batch sizes on one GPU."""
    agents = Agents()
    one = SimulatedJob(
        job=made_job("a"), application=made_application(tmp_path), choose_batch=agents.choose_batch
    )
    one.allocation, one.gpu_type, one.measured.by_type = ((0, 1),), "t4", {"t4": {}}
    for size in (4, 5, 6, 7):
        measure(one, 1, 1, size)
    return one


def measure(job: SimulatedJob, num_nodes: int, num_gpus: int, size: int) -> None:
    job.measured.by_type["t4"][num_nodes, num_gpus, size] = Observation(
        num_nodes=num_nodes,
        num_gpus=num_gpus,
        atomic_batch_size=size,
        micro_batch_s=0.1 + 0.01 * size * size,  # no line: every one moves the fit
        last_time_s=0.1 + 0.01 * size * size + 0.02 * (num_gpus - 1),
    )


def known(agents: Agents, job: SimulatedJob) -> GoodputModel:
    found = agents.model(job, "t4")
    assert found is not None
    return found


def test_that_a_size_measured_for_the_first_time_makes_a_fit(job: SimulatedJob) -> None:
    agents = Agents()
    before = known(agents, job)
    measure(job, 1, 2, 4)
    after = known(agents, job)
    assert after.throughput != before.throughput
    assert (before.max_gpus_seen, after.max_gpus_seen) == (1, 2)
    measure(job, 2, 2, 4)
    assert known(agents, job).throughput != after.throughput, "two GPUs on two nodes are another size"


def test_that_batch_sizes_make_a_fit_once_they_are_a_quarter_more(job: SimulatedJob) -> None:
    agents = Agents()
    for size in (8, 9, 10, 11):
        measure(job, 1, 1, size)
    fitted = [known(agents, job).throughput]  # to eight
    for size in (12, 13, 14, 15):
        measure(job, 1, 1, size)
        fitted.append(known(agents, job).throughput)
    changed = [after != before for before, after in itertools.pairwise(fitted)]
    assert changed == [False, True, False, False], "at ten, and then at twelve and a half"
