"""ElasticFlow's tables of rates, and its generated trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pollux_slurm.errors import TraceError, UsageError
from pollux_slurm.simulator.inputs.elasticflow_trace import (
    generate_elasticflow_workload,
    read_elasticflow_tables,
)

MODELS = ("bert", "deepspeech2", "gpt2", "inception3", "resnet50", "vgg16")


def tables(folder: Path, *, sizes: tuple[int, ...] = (32, 64, 128, 256)) -> Path:
    """Write a table for each model: n GPUs make n/2 steps a second, up to 16."""
    for model in MODELS:
        rows = [f"{size},0.5,1,2,4,8,0" for size in sizes]
        (folder / f"{model}.csv").write_text("\n".join(["global_batch_size,1,2,4,8,16,32", *rows]) + "\n")
    return folder


def test_that_each_model_and_batch_size_is_an_application(tmp_path: Path) -> None:
    found = read_elasticflow_tables(tables(tmp_path))
    assert len(found) == 24
    assert found["bert (batch size 64)"].step_time((8, 8), 4).step_s == 1 / 8
    assert found["bert (batch size 64)"].step_time((7,), 10).step_s == 1 / 2, "the rate of 4 GPUs"
    assert found["bert (batch size 64)"].most_gpus == 16, "a rate of 0 is none"


def test_that_missing_rates_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no rates of resnet50 \(batch size 256\)"):
        read_elasticflow_tables(tables(tmp_path, sizes=(32, 64, 128)))


def test_that_jobs_have_their_lengths_at_their_users_size(tmp_path: Path) -> None:
    """A job on n GPUs is n times as fast as on one, so its work is n times its length."""
    applications = read_elasticflow_tables(tables(tmp_path))
    jobs = generate_elasticflow_workload(applications, num_jobs=3000, mean_interval_s=100.0, seed=2)
    lengths_s = np.array([((job.finish_by_s or 0.0) - job.submitted_s) / 1.5 for job in jobs])
    sizes = np.array([job.num_replicas for job in jobs])
    assert [job.work for job in jobs] == pytest.approx((sizes * lengths_s / 3600).tolist())
    assert jobs[-1].submitted_s == pytest.approx(300_000, rel=0.05)
    assert np.mean([job.num_replicas == 1 for job in jobs]) == pytest.approx(0.83, abs=0.02)
    assert np.mean([job.num_replicas == 8 for job in jobs]) == pytest.approx(0.10, abs=0.02)
    assert np.mean(lengths_s > 60 * 10**2.5) == pytest.approx(0.2, abs=0.02)
    assert lengths_s.min() > 600
    assert lengths_s.max() < 600_000


def test_that_nothing_is_generated_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an interval and a tightness above 0"):
        generate_elasticflow_workload({}, num_jobs=1, mean_interval_s=0.0, seed=0)
