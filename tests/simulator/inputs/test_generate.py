"""Generated workloads, compared with the published ones."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.simulator import Application, WorkloadJob, read_applications, read_workload
from pollux_slurm.simulator.inputs.generate import (
    CLASSES,
    HOURLY_SHARES,
    PUBLISHED_CHOICES,
    class_of,
    fastest_batch_size,
    generate_workload,
    tuned_choices,
    with_users,
)
from pollux_slurm.simulator.inputs.workload import workload_text
from tests.published import traces_dir, workload_file
from tests.simulator.builders import made_application


@functools.cache
def published_traces() -> Mapping[str, Application]:
    return read_applications(traces_dir())


def published_jobs() -> Sequence[WorkloadJob]:
    return [job for number in (1, 3, 6) for job in read_workload(workload_file(number), published_traces())]


def expected_shares() -> dict[str, float]:
    return {name: kind.share / len(kind.applications) for kind in CLASSES for name in kind.applications}


def test_that_tuned_sizes_from_the_traces_are_those_of_the_published_workloads() -> None:
    found = {name: tuned_choices(application) for name, application in published_traces().items()}
    assert found == dict(PUBLISHED_CHOICES)
    seen = {(job.application, job.num_replicas, job.batch_size) for job in published_jobs()}
    assert seen == {
        (name, one.num_replicas, one.batch_size) for name, several in found.items() for one in several
    }


def test_that_the_published_jobs_could_have_been_drawn_from_this_recipe() -> None:
    """Not unlikely (p > 1 %) by application, by tuned size and by hour of arrival."""
    jobs = published_jobs()
    shares = expected_shares()
    counts = Counter(job.application for job in jobs)
    assert (
        chisquare([counts[name] for name in shares], [share * len(jobs) for share in shares.values()]).pvalue
        > 0.01
    )
    for name, choices in PUBLISHED_CHOICES.items():
        sizes = Counter(job.num_replicas for job in jobs if job.application == name)
        if len(choices) > 1:
            assert chisquare([sizes[choice.num_replicas] for choice in choices]).pvalue > 0.01, name
    hours = Counter(int(job.submitted_s // 3600) for job in jobs)
    assert (
        chisquare([hours[hour] for hour in range(8)], [share * len(jobs) for share in HOURLY_SHARES]).pvalue
        > 0.01
    )


def test_that_generated_jobs_follow_the_recipe() -> None:
    jobs = generate_workload(seed=11, load=50)
    assert len(jobs) == 8000
    shares = expected_shares()
    counts = Counter(job.application for job in jobs)
    assert (
        chisquare([counts[name] for name in shares], [share * 8000 for share in shares.values()]).pvalue
        > 0.01
    )
    hours = Counter(int(job.submitted_s // 3600) for job in jobs)
    assert (
        chisquare([hours[hour] for hour in range(8)], [share * 8000 for share in HOURLY_SHARES]).pvalue > 0.01
    )
    minutes = Counter(int(job.submitted_s // 60) % 60 for job in jobs)
    assert chisquare([minutes[minute] for minute in range(60)]).pvalue > 0.01
    sizes = Counter(job.num_replicas for job in jobs if job.application == "cifar10")
    assert chisquare([sizes[size] for size in (6, 8, 12, 16)]).pvalue > 0.01


def test_that_a_seed_gives_the_same_workload_everywhere() -> None:
    first = generate_workload(seed=7)[:3]
    assert [(job.name, job.submitted_s, job.num_replicas, job.batch_size) for job in first] == [
        ("ncf-0", 55.0, 1, 32768),
        ("cifar10-1", 114.0, 8, 2048),
        ("deepspeech2-2", 125.0, 8, 320),
    ]
    assert generate_workload(seed=7) == generate_workload(seed=7)
    assert generate_workload(seed=7) != generate_workload(seed=8)


@given(
    seed=st.integers(0, 10**9),
    load=st.floats(0.01, 3),
    hours=st.floats(0.1, 30),
    num_gpus=st.integers(1, 100),
)
def test_that_any_workload_is_within_its_bounds(seed: int, load: float, hours: float, num_gpus: int) -> None:
    jobs = generate_workload(seed=seed, load=load, hours=hours, num_gpus=num_gpus)
    times = [job.submitted_s for job in jobs]
    assert times == sorted(times)
    assert all(0 <= time < 3600 * hours and time == int(time) for time in times)
    assert all(1 <= job.num_replicas <= num_gpus for job in jobs)
    assert len({job.name for job in jobs}) == len(jobs)
    expected = load * num_gpus * 2.5 * hours / 8
    assert 0.3 * expected - 1 <= len(jobs) <= 2 * expected + 1


def test_that_users_are_drawn_by_zipf_or_uniformly_and_change_nothing_else() -> None:
    plain = generate_workload(seed=3, load=6.0)
    zipf, equal = with_users(plain, 4, seed=1), with_users(plain, 4, seed=1, equal=True)
    assert [dataclasses.replace(job, user="") for job in zipf] == list(plain)
    assert with_users(plain, 4, seed=1) == zipf != with_users(plain, 4, seed=2)
    counts = [[Counter(job.user for job in jobs)[f"user{i}"] for i in range(4)] for jobs in (zipf, equal)]
    # 960 jobs, of which 12/25, 6/25, 4/25 and 3/25 are expected, or 240 each; three standard deviations.
    assert counts[0] == pytest.approx([461, 230, 154, 115], abs=47)
    assert counts[1] == pytest.approx([240] * 4, abs=41)
    with pytest.raises(UsageError, match="among 0 users"):
        with_users(plain, 0, seed=1)


def test_that_accounts_change_nothing_else() -> None:
    plain, shared = generate_workload(seed=3), generate_workload(seed=3, num_accounts=4)
    assert {job.account for job in plain} == {""}
    assert {job.account for job in shared} == {"account0", "account1", "account2", "account3"}
    assert [job.name for job in plain] == [job.name for job in shared]


def test_that_a_written_workload_is_read_as_it_was(tmp_path: Path) -> None:
    jobs = generate_workload(seed=3, num_accounts=2)
    file = tmp_path / "w.csv"
    file.write_text(workload_text(jobs))
    assert read_workload(file, set(PUBLISHED_CHOICES)) == jobs


@pytest.mark.parametrize(
    ("load", "hours", "num_gpus", "message"),
    [
        (-1.0, 8.0, 64, "load of a workload must be above 0, not -1"),
        (0.0, 8.0, 64, "load"),
        (math.nan, 8.0, 64, "load"),
        (1.0, -2.0, 64, "length in hours"),
        (1.0, math.inf, 64, "length in hours"),
        (1.0, 8.0, 0, "0 GPUs"),
        (1e9, 8.0, 64, "too many"),
    ],
)
def test_that_numbers_that_make_no_workload_are_refused(
    load: float, hours: float, num_gpus: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        generate_workload(seed=0, load=load, hours=hours, num_gpus=num_gpus)


def test_that_a_missing_application_is_named() -> None:
    with pytest.raises(TraceError, match=r"needs traces of application 'cifar10' \(there are: ncf\)"):
        generate_workload(seed=0, choices={"ncf": PUBLISHED_CHOICES["ncf"]})


def test_that_users_request_gpus_that_are_used_half_to_four_fifths(tmp_path: Path) -> None:
    """At batch 32, 37 steps: two passes of 1 s alone, 0.5 s on up to 8 GPUs: 4 times as fast as alone."""
    made = made_application(tmp_path)
    assert [(choice.num_replicas, choice.batch_size) for choice in tuned_choices(made)] == [(6, 32), (8, 32)]
    assert fastest_batch_size(made, 40) is None, "that is below the smallest batch of a GPU"


def test_that_gpu_time_determines_the_class() -> None:
    names = [class_of(hours).applications[0] for hours in (0.0, 0.99, 1.0, 10.0, 99.0, 100.0, 5000.0)]
    assert names == ["cifar10", "cifar10", "deepspeech2", "yolov3", "yolov3", "imagenet", "imagenet"]


def test_that_the_shares_are_whole() -> None:
    assert np.isclose(sum(HOURLY_SHARES), 1)
    assert np.isclose(sum(kind.share for kind in CLASSES), 1)
