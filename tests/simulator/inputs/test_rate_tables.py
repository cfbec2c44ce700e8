"""The table of rates in Gavel's form, and its generated trace."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.simulator import load_applications
from pollux_slurm.simulator.inputs.rate_tables import generate_gavel_workload, read_rate_table

TABLE = {
    "v100": {
        "('A3C', 1)": {"null": 2.0},
        "('LM (batch size 5)', 1)": {"null": 8.0, "('A3C', 1)": [1.0, 2.0]},
        "('LM (batch size 5)', 2)": {"null": 9.0},
        "('only here', 1)": {"null": 1.0},
    },
    "k80": {"('A3C', 1)": {"null": 1.0}, "('LM (batch size 5)', 1)": {"null": 1.0}},
    "k80_unconsolidated": {},
}


def table(folder: Path, document: object = TABLE) -> Path:
    file = folder / "rates.json"
    file.write_text(json.dumps(document))
    return file


def test_that_models_have_their_rates_on_one_gpu_of_each_type(tmp_path: Path) -> None:
    found = read_rate_table(table(tmp_path))
    assert list(found) == ["LM (batch size 5)", "A3C"], "those without a batch size come last"
    model = found["LM (batch size 5)"]
    assert (model.initial_batch_size, model.gpu_types) == (5, {"v100", "k80"})
    assert model.step_time((1,), 5, "v100").step_s == 1 / 8
    assert model.step_time((1,), 5, "k80").step_s == 1.0
    assert model.step_time((1,), 5).step_s == 1 / 8, "plain nodes are V100"
    assert model.epoch_end(0) == 8 * 3600, "one training is an hour on a V100"
    with pytest.raises(TraceError, match="no rate on 2 GPUs"):
        model.step_time((2,), 5, "v100")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected rates by GPU type in JSON, among them v100"),
        ({"v100": {"A3C": {"null": 1.0}}}, "expected {TYPE"),
        ({"v100": {"('A3C', 1)": {"null": "fast"}}}, "expected {TYPE"),
        ({"v100": {"('A3C', 1)": {"null": 0.0}}}, "no model has a rate on one GPU of each type"),
    ],
)
def test_that_another_document_is_refused(tmp_path: Path, document: object, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_rate_table(table(tmp_path, document))


def test_that_generated_jobs_have_the_published_lengths_and_arrivals(tmp_path: Path) -> None:
    applications = read_rate_table(table(tmp_path))
    jobs = generate_gavel_workload(applications, jobs_per_hour=4.0, num_jobs=4000, seed=1)
    assert jobs[0].submitted_s == 0
    assert jobs[-1].submitted_s / 3600 == pytest.approx(1000, rel=0.05)
    minutes = np.array([60 * job.work for job in jobs])
    assert minutes.min() > 10**1.5
    assert minutes.max() < 10**4
    assert np.mean(minutes > 1000) == pytest.approx(0.2, abs=0.02)
    assert np.median(np.log10(minutes[minutes < 1000])) == pytest.approx(2.25, abs=0.05)
    assert np.mean([job.application == "A3C" for job in jobs]) == pytest.approx(0.5, abs=0.03)
    assert generate_gavel_workload(applications, jobs_per_hour=4.0, num_jobs=9, seed=1) == jobs[:9]
    assert generate_gavel_workload(applications, jobs_per_hour=4.0, num_jobs=9, seed=2) != jobs[:9]


SEVERAL = {
    "v100": {
        "('A3C', 1)": {"null": 2.0},
        "('LM (batch size 5)', 1)": {"null": 8.0},
        "('LM (batch size 5)', 2)": {"null": 12.0},
        "('LM (batch size 5)', 4)": {"null": 16.0},
        "('LM (batch size 5)', 8)": {"null": 32.0},
    },
    "k80": {
        "('A3C', 1)": {"null": 1.0},
        "('LM (batch size 5)', 1)": {"null": 1.0},
        "('LM (batch size 5)', 2)": {"null": 0.0},
    },
}


def test_that_rates_on_several_gpus_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    model = read_rate_table(table(tmp_path, SEVERAL), most_gpus=4)["LM (batch size 5)"]
    assert [1 / model.step_time((gpus,), 5, "v100").step_s for gpus in (1, 2, 3, 4)] == [8, 12, 12, 16]
    assert model.most_gpus == 4
    with pytest.raises(TraceError, match="no rate on 8 GPUs"):
        model.step_time((4, 4), 5, "v100")
    with pytest.raises(TraceError, match="no rate on 2 GPUs"):
        model.step_time((2,), 5, "k80")


def test_that_jobs_of_several_gpus_train_for_the_drawn_time_on_theirs(tmp_path: Path) -> None:
    """Only the model with rates on several GPUs has such jobs. All jobs come at once."""
    applications = read_rate_table(table(tmp_path, SEVERAL), most_gpus=8)
    jobs = generate_gavel_workload(applications, jobs_per_hour=math.inf, num_jobs=4000, seed=1)
    assert {job.submitted_s for job in jobs} == {0.0}
    for gpus, part in ((1, 0.7), (2, 0.1), (4, 0.15), (8, 0.05)):
        of_size = [job for job in jobs if job.num_replicas == gpus]
        assert len(of_size) / len(jobs) == pytest.approx(part, abs=0.02)
        assert {job.application for job in of_size} >= {"LM (batch size 5)"}
        assert gpus == 1 or "A3C" not in {job.application for job in of_size}
    minutes = np.array(
        [
            60 * job.work * model.step_time((1,), 5).step_s ** -1 * model.step_time((gpus,), 5).step_s
            for job, model, gpus in ((job, applications[job.application], job.num_replicas) for job in jobs)
        ]
    )
    assert minutes.min() > 10**1.5
    assert minutes.max() < 10**4
    assert np.mean(minutes > 1000) == pytest.approx(0.2, abs=0.02)


def test_that_a_table_serves_as_traces(tmp_path: Path) -> None:
    assert list(load_applications(table(tmp_path))) == ["LM (batch size 5)", "A3C"]


def test_that_a_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a rate above 0"):
        generate_gavel_workload(read_rate_table(table(tmp_path)), jobs_per_hour=0, num_jobs=1, seed=0)
