"""The fields of a shape: each that an earlier one may have set is set again or cleared."""

from __future__ import annotations

from typing import Any

import pytest

from pollux_slurm.model import Allocation, JobShape
from pollux_slurm.slurm.commands.shape_update import shape_fields
from pollux_slurm.slurm.parsing.core_requests import in_cpus
from pollux_slurm.slurm.parsing.job_json import parse_job
from tests.slurm.parsing.test_job_json import pending


@pytest.mark.parametrize(
    ("changes", "shape", "expected"),
    [
        (
            {},
            JobShape.of(Allocation.of({"n0": 2, "n1": 2})),
            {"TresPerJob": "gres:gpu:4", "TresPerNode": "gres:gpu:2"},
        ),
        (
            {},
            JobShape(num_gpus=3),
            {"NumNodes": "1-1", "TresPerJob": "gres:gpu:3", "TresPerNode": "gres:gpu:3"},
        ),
        (
            {"tres_per_job": "gres:gpu:t4:1"},
            JobShape.of(Allocation.of({"n0": 4, "n1": 1})),
            {"TresPerJob": "gres:gpu:t4:5", "TresPerNode": ""},
        ),
        (
            {"tres_per_job": "", "tres_per_node": "gres:gpu:a100:1"},
            JobShape(num_gpus=2, gpu_type="a100"),
            {"TresPerJob": "gres:gpu:a100:2", "TresPerNode": "gres:gpu:a100:2"},
        ),
        # --gpus=5 --nodes=2 --mem=4000: 1600 MB a GPU, 533 a CPU
        ({"memory_per_node": 4000}, JobShape(num_gpus=4, cpus_per_gpu=3), {"MinMemoryCPU": "533"}),
    ],
)
def test_that_a_shape_becomes_fields(
    changes: dict[str, Any], shape: JobShape, expected: dict[str, str]
) -> None:
    fields = shape_fields(shape, parse_job(pending(**changes)))
    assert {key: fields.get(key) for key in expected} == expected


def test_that_one_thread_a_core_is_requested_in_cores_by_one_task_for_each_gpu() -> None:
    job = in_cpus(parse_job(pending(threads_per_core=1, cpus_per_tres="gres:gpu:2")), 2)
    assert (job.cpus_per_gpu, job.threads_per_core) == (4, 2)
    fields = shape_fields(JobShape.of(Allocation.of({"n0": 2, "n1": 2}), cpus_per_gpu=4), job)
    assert (fields["NumTasks"], fields["TasksPerNode"], fields["CPUsPerTask"]) == ("4", "2", "2")
    assert (fields["NumCPUs"], fields["CpusPerTres"]) == ("8", "")
    usual = shape_fields(JobShape.of(Allocation.of({"n0": 2}), cpus_per_gpu=2), parse_job(pending()))
    assert (usual["NumTasks"], usual["CPUsPerTask"], usual["CpusPerTres"]) == ("1", "1", "gres:gpu:2")


def test_that_memory_is_left_alone_where_it_already_follows() -> None:
    shown = parse_job(pending(memory_per_tres="gres:gpu:1000", memory_per_node=4000))
    assert "MinMemoryCPU" not in shape_fields(JobShape(num_gpus=4), shown)
