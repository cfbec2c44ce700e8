"""The table of rates in Gavel's form, and its generated trace."""

from __future__ import annotations

import json
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


def test_that_a_table_serves_as_traces(tmp_path: Path) -> None:
    assert list(load_applications(table(tmp_path))) == ["LM (batch size 5)", "A3C"]


def test_that_a_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a rate above 0"):
        generate_gavel_workload(read_rate_table(table(tmp_path)), jobs_per_hour=0, num_jobs=1, seed=0)
