"""The oracle's rates and steps, by hand on the made application."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator import Cluster, NodeGroup, read_application
from pollux_slurm.simulator.engine.job import SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies.user_rates import UserRates, type_counts
from tests.simulator.builders import made_application, made_job, write_traces


def job_of(folder: Path, *, num_replicas: int, batch_size: int = 8) -> SimulatedJob:
    return SimulatedJob(
        job=made_job("a", num_replicas=num_replicas, batch_size=batch_size),
        application=made_application(folder),
        choose_batch=lambda job: user_batch(job.job, job.application, job.num_gpus),
    )


def test_that_a_rate_is_that_of_packed_gpus_of_the_type(tmp_path: Path) -> None:
    """A step on two GPUs takes 0.4 s and 0.1 s of synchronisation; a type twice as fast saves 0.2 s."""
    cluster = Cluster(
        groups=(
            NodeGroup(num_nodes=1),
            NodeGroup(num_nodes=1, gpu_type="a100", speed=2.0),
            NodeGroup(num_nodes=1, gpus_per_node=1, gpu_type="one"),
        )
    )
    rates = UserRates().of([job_of(tmp_path, num_replicas=2)], cluster)
    assert rates[0].tolist() == pytest.approx([1 / 0.5, 1 / 0.3, 0.0])
    assert type_counts(cluster) == [4, 4, 1]


def test_that_a_type_without_a_step_time_has_no_rate(tmp_path: Path) -> None:
    """On the type `few`, one GPU alone was measured; without another type, that is an error."""
    folder = write_traces(tmp_path / "made")
    (folder / "placements-few.csv").write_text("placement,local_bsz,step_time,sync_time\n1,2,1,0\n1,16,1,0\n")
    (folder / "scalability-few.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
    few = NodeGroup(num_nodes=1, gpu_type="few")
    job = SimulatedJob(
        job=made_job("a", num_replicas=2),
        application=read_application(folder),
        choose_batch=lambda job: user_batch(job.job, job.application, job.num_gpus),
    )
    rates = UserRates().of([job], Cluster(groups=(NodeGroup(num_nodes=1), few)))
    assert rates[0].tolist() == pytest.approx([1 / 0.5, 0.0])
    with pytest.raises(TraceError, match=r"job a: .*made"):
        UserRates().of([job], Cluster(groups=(few,)))


def test_that_steps_left_count_what_remains_of_the_epoch(tmp_path: Path) -> None:
    """At M0, a step is a unit of progress: 100 in the first epoch, 50.25 in the second."""
    job, rates = job_of(tmp_path, num_replicas=1), UserRates()
    assert rates.steps(job) == rates.steps_left(job) == pytest.approx(150.25)
    job.progress = 40.0
    assert rates.steps_left(job) == pytest.approx(110.25)
    job.progress, job.epoch = 120.0, 1
    assert rates.steps_left(job) == pytest.approx(30.25)


def test_that_a_step_of_a_larger_batch_counts_for_its_gain(tmp_path: Path) -> None:
    """At 32, four times M0, the gain is (0.75 + 1)/(0.75/4 + 1)."""
    job = job_of(tmp_path, num_replicas=1, batch_size=32)
    assert UserRates().steps_left(job) == pytest.approx(150.25 / (1.75 / 1.1875))
