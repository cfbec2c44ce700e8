"""Jobs as they measured themselves: passes of a second and a tenth for each example, batches of 10."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.model import BatchLimits, GradientStatistics, Objective, ThroughputParameters
from pollux_slurm.simulator import Cluster, Delays, SimulationResult, simulate, slurm_rules
from pollux_slurm.simulator.policies import PolluxPolicy, SlurmPolicy
from pollux_slurm.simulator.results.summary import make_outcome
from pollux_slurm.simulator.site.measured_jobs import (
    MeasuredApplication,
    MeasuredDelays,
    MeasuredJob,
    MeasuredQueue,
    applications_of,
    load_applications,
    queue_text,
    read_queue,
    workload_of,
)

THETA = ThroughputParameters(
    alpha_g=1.0, beta_g=0.1, alpha_n=0.8, beta_n=0.0, alpha_l=0.5, beta_l=0.25, gamma=1.0
)
# A noise scale of 30: a batch of 30 is worth (30 + 10)/(30 + 30) of its size.
NOISY, CLEAR = GradientStatistics(sqr=1.0, var=3.0), GradientStatistics(sqr=1.0, var=0.0)
JOB = MeasuredJob(
    name="7 fit",
    submitted_s=0.0,
    start_gpus=1,
    num_epochs=3,
    examples_per_epoch=100.0,
    limits=BatchLimits(initial_batch_size=10, max_batch_size=40, min_atomic=5, accumulation=True),
    throughput=THETA,
    statistics=((0, CLEAR), (2, NOISY)),
    max_gpus=8,
    account="vision",
)
FIXED = dataclasses.replace(JOB, limits=BatchLimits(initial_batch_size=10, min_atomic=1))
DELAYS = MeasuredDelays(
    notice_s=1.0,
    checkpoint_s=0.5,
    requeue_s=3.0,
    start_s=2.0,
    launch_s=4.0,
    launch_per_gpu_s=1.5,
    num_moves=3,
    num_starts=2,
)


def run(
    *jobs: MeasuredJob, interval_s: float = 60.0, nodes: int = 1, delays: Delays | None = None
) -> SimulationResult:
    queue = MeasuredQueue(jobs=jobs)
    return simulate(
        workload_of(queue),
        applications_of(queue),
        PolluxPolicy(Objective()),
        Cluster(num_nodes=nodes, interval_s=interval_s),
        rules=slurm_rules(delays=delays or DELAYS.as_delays()),
    )


def test_that_step_times_are_the_models() -> None:
    application = MeasuredApplication(JOB)
    alone, near, far = (application.step_time(placement, 10) for placement in ((1,), (3,), (2, 1)))
    assert (alone.micro_batch_s, alone.sync_s) == (2.0, 0.0)
    assert near.step_s == pytest.approx(2.0 + 0.75)
    assert far.step_s == pytest.approx(2.0 + 0.8)


def test_that_epochs_end_with_the_data_and_useful_progress_depends_on_the_noise() -> None:
    application = MeasuredApplication(JOB)
    assert [application.epoch_end(epoch) for epoch in range(3)] == [10.0, 20.0, 30.0]
    assert application.step_progress(30, 2) == 3.0
    assert application.iterations(20, 2) == 15.0
    assert application.useful_part(30, 2) == pytest.approx(40 / 60)
    assert application.useful_part(30, 1) == pytest.approx(1 / 3)
    assert [application.statistics(10, epoch) for epoch in range(3)] == [CLEAR, CLEAR, NOISY]


def test_that_limits_are_the_jobs_own() -> None:
    application = MeasuredApplication(JOB)
    assert (application.least_gpus, application.most_gpus, application.batch_sizes) == (1, 8, (10, 20, 40))
    narrow = MeasuredApplication(dataclasses.replace(JOB, max_gpus=None, min_gpus=2))
    assert (narrow.least_gpus, narrow.most_gpus) == (2, 8)
    fixed = MeasuredApplication(FIXED)
    assert (fixed.max_batch_size, fixed.max_atomic, fixed.batch_sizes) == (10, 10, (10,))


def test_that_slurm_starts_a_job_at_its_submission_and_not_at_a_round() -> None:
    """Submitted at 7 s, RUNNING after 2 s, its first step 4 + 1.5 s later; then 30 steps of 2 s."""
    first = dataclasses.replace(FIXED, max_gpus=1, submitted_s=0.0, num_epochs=1)
    late = dataclasses.replace(FIXED, max_gpus=1, submitted_s=7.0, name="8 late")
    _, job = run(first, late).jobs
    assert job.first_started_s == 7.0
    assert job.finished_s == pytest.approx(7 + 2 + 5.5 + 60)
    assert job.gpu_seconds - job.lost_gpu_seconds == pytest.approx(60)


def test_that_a_job_waits_where_no_node_has_its_size_unused() -> None:
    """The first owns three of four GPUs: the second waits for a round, which may shrink the first."""
    first = dataclasses.replace(FIXED, min_gpus=3, max_gpus=3, start_gpus=3)
    second = dataclasses.replace(FIXED, min_gpus=2, max_gpus=2, start_gpus=2, name="8", submitted_s=5.0)
    one, two = run(first, second, interval_s=10.0).jobs
    assert two.first_started_s is not None
    assert one.finished_s is not None
    assert two.first_started_s >= one.finished_s


def test_that_two_jobs_submitted_at_once_do_not_get_the_same_gpus() -> None:
    jobs = [dataclasses.replace(FIXED, min_gpus=3, max_gpus=3, start_gpus=3, name=name) for name in "ab"]
    result = run(*jobs, interval_s=10.0)
    assert max(record.gpus_used for record in result.rounds) == 3


def test_that_larger_batches_end_sooner_and_make_less_useful_progress() -> None:
    """Without noise, all progress beyond that of a batch of 10 is useless, but the data are used up."""
    result = run(dataclasses.replace(JOB, statistics=((0, NOISY),)), interval_s=5.0)
    (job,) = result.jobs
    assert job.progress == 30.0
    assert 0.5 * 30 < job.useful_progress < 0.95 * 30
    assert job.total_useful_progress == pytest.approx(job.useful_progress)
    made = sum(sum(record.goodput.values()) for record in result.rounds) * 5 / 10
    assert made == pytest.approx(job.useful_progress, rel=0.02)


@pytest.mark.parametrize("job", [JOB, FIXED], ids=["adaptive", "fixed"])
def test_that_a_job_that_is_alone_has_a_fairness_ratio_of_one(job: MeasuredJob) -> None:
    """It chooses batches for what they are worth; through its data it would be sooner with the largest."""
    result = run(dataclasses.replace(job, examples_per_epoch=20000.0, max_gpus=1))
    outcome = make_outcome(result, policy="pollux", objective=None, workload="w", wall_s=1.0)
    assert outcome.summary.rho_worst == pytest.approx(1.0, abs=0.02)
    assert outcome.summary.avg_goodput == pytest.approx(1.0, abs=0.02), "of one GPU by itself"


def test_that_a_fixed_batch_is_split_unevenly_and_stays_whole() -> None:
    """10 examples on 4 GPUs: 3 on the fullest, 1.3 s for a pass and 1 s to synchronise; ten steps."""
    quartet = dataclasses.replace(FIXED, min_gpus=4, max_gpus=4, start_gpus=4, num_epochs=1)
    (job,) = run(quartet, interval_s=5.0).jobs
    assert job.finished_s == pytest.approx(2 + 4 + 4 * 1.5 + 10 * 2.3)
    assert job.useful_progress == job.progress == 10.0
    (alone,) = simulate(
        workload_of(MeasuredQueue(jobs=(quartet,))),
        applications_of(MeasuredQueue(jobs=(quartet,))),
        SlurmPolicy(),
        Cluster(num_nodes=1, interval_s=5.0),
        rules=slurm_rules(delays=Delays(start_s=0, launch_s=0, backfill_s=0), slurm_starts=False),
    ).jobs
    assert alone.finished_s == pytest.approx(5 + 10 * 2.3), "and so is a rigid user's"


def test_that_slurm_starts_no_job_under_a_policy_that_places_every_job_itself() -> None:
    queue = MeasuredQueue(jobs=(FIXED,))
    (job,) = simulate(
        workload_of(queue),
        applications_of(queue),
        SlurmPolicy(),
        Cluster(num_nodes=1),
        rules=slurm_rules(delays=DELAYS.as_delays(), slurm_starts=False),
    ).jobs
    assert job.first_started_s == 60.0


def test_that_launches_take_longer_with_more_replicas() -> None:
    assert DELAYS.as_delays().time_to_first_step_s("7 fit", restore=True, num_gpus=4) == pytest.approx(4 + 6)
    assert DELAYS.as_delays().write_s("7 fit") == 0.5


def test_that_a_written_queue_is_read_back_equal(tmp_path: Path) -> None:
    queue = MeasuredQueue(jobs=(JOB, dataclasses.replace(FIXED, name="8", max_gpus=None)), delays=DELAYS)
    file = tmp_path / "jobs.json"
    file.write_text(queue_text(queue))
    assert read_queue(file) == queue
    assert list(load_applications(file)) == ["7 fit", "8"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_epochs": 0}, "trains 0 epochs"),
        ({"num_epochs": 10**9}, "epochs"),
        ({"examples_per_epoch": 0.0}, "examples"),
        ({"statistics": ()}, "from epoch 0"),
        ({"statistics": ((1, CLEAR),)}, "from epoch 0"),
        ({"statistics": ((0, CLEAR), (0, NOISY))}, "ascending"),
        ({"start_gpus": 9}, "limits"),
        ({"min_gpus": 0}, "limits"),
        ({"submitted_s": -1.0}, "submission"),
        ({"throughput": dataclasses.replace(THETA, alpha_g=-1.0)}, "alpha_g"),
        ({"throughput": dataclasses.replace(THETA, alpha_g=0.0, beta_g=0.0)}, "time of a micro-batch"),
        ({"statistics": ((0, GradientStatistics(sqr=-1.0, var=1.0)),)}, "sqr"),
    ],
)
def test_that_impossible_measurements_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = tmp_path / "jobs.json"
    file.write_text(queue_text(MeasuredQueue(jobs=(dataclasses.replace(JOB, **changes),))))
    with pytest.raises(TraceError, match=message):
        read_queue(file)


def test_that_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    for text in ("", "{}", '{"format": "pollux-problem", "version": 1, "problem": {}}'):
        file.write_text(text)
        with pytest.raises(TraceError, match="not a file of pollux simulate export"):
            read_queue(file)
    file.write_text(queue_text(MeasuredQueue(jobs=(JOB, JOB))))
    with pytest.raises(TraceError, match="two jobs"):
        read_queue(file)
    file.write_text(queue_text(MeasuredQueue(jobs=(JOB,), delays=dataclasses.replace(DELAYS, launch_s=-1.0))))
    with pytest.raises(TraceError, match="launch_s"):
        read_queue(file)
    with pytest.raises(TraceError, match="No such file"):
        read_queue(tmp_path / "none.json")
