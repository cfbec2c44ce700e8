"""Jobs with one thread a core (`--hint=nomultithread`) on nodes with two: Slurm counts in cores and CPUs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pollux_slurm.model import Allocation, JobShape, JobState, SlurmJob
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.commands.command_client import CommandClient
from tests.conftest import running_sandbox
from tests.waiting import wait_until

# As the launcher starts a job's processes: one task a node, with all GPUs.
SCRIPT = """#!/bin/sh
gpus=$((SLURM_GPUS_ON_NODE * SLURM_JOB_NUM_NODES)) nodes=$SLURM_JOB_NUM_NODES
unset $(env | grep -oE '^SLURM_(NTASKS|NPROCS|TASKS|GPUS|CPUS|MEM|TRES)[A-Z_]*')
srun --nodes=$nodes --ntasks=$nodes --ntasks-per-node=1 --mem=0 --gpus=$gpus \\
    --cpu-bind=none --gpu-bind=none sh -c 'echo run $SLURM_RESTART_COUNT on $SLURMD_NODENAME'
exec sleep 600
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--cpus-per-gpu=2", "--mem-per-gpu=100"), id="by GPU"),
        # The same shapes; test_hazards.py has jobs by task, with one thread a core.
        pytest.param(("--cpus-per-task=2", "--mem=100"), id="by task", marks=pytest.mark.full),
    ],
)
def test_that_a_job_with_one_thread_a_core_starts_in_each_new_shape(
    slurm_programs: None, tmp_path: Path, options: tuple[str, ...]
) -> None:
    nodes = NodeGroup(num_nodes=2, cpus_per_node=16, threads_per_core=2)
    with running_sandbox(nodes) as sandbox:
        client, log = CommandClient(sandbox.runner(timeout_s=60)), tmp_path / "log"
        given = ["--requeue", "--hint=nomultithread", "--gpus=1", f"--output={log}", "--open-mode=append"]
        job_id = client.submit(SCRIPT, [*given, *options], [], {**os.environ, **sandbox.env})

        def wait_for(state: JobState) -> SlurmJob:
            def found() -> SlurmJob | None:
                job = client.read_job(job_id)
                return job if job is not None and job.state is state else None

            job = wait_until(found, timeout_s=60, what=f"the job to be {state.value}", every_s=0.1)
            assert job is not None
            return job

        job = wait_for(JobState.RUNNING)
        # Two cores, four CPUs.
        assert (job.cpus_per_gpu or job.num_cpus, job.num_cpus) == (4, 4)
        for shape in ({"n1": 2}, {"n0": 2, "n1": 2}, {"n0": 4}, {"n1": 1}):
            target = Allocation.of(shape)
            client.requeue_hold(job_id)
            waiting = wait_for(JobState.PENDING)
            client.reshape(job_id, JobShape.of(target, cpus_per_gpu=4), known=waiting)
            client.release(job_id)
            job = wait_for(JobState.RUNNING)
            assert job.allocation == target
            assert job.cpus_by_node == tuple((name, 4 * gpus) for name, gpus in target.gpus_by_node)
            assert job.memory_mb_by_node == tuple((name, 100 * gpus) for name, gpus in target.gpus_by_node)
            run = f"run {job.restart_count} on {target.nodes[-1]}"
            wait_until(lambda run=run: run in log.read_text(), timeout_s=60, what=run)
