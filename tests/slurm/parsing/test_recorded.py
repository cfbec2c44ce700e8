"""Each release's own answers, recorded from private clusters with the same jobs on the same nodes.

Recorded on 22.05.8, 24.11.5 and 26.05.5; fields that nobody reads were left out. The cluster: n0 to n2 with
four t4, n3 with eight a100. Job names are in `recorded_as`.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.model import Allocation, JobState, SlurmJob, SlurmNode
from pollux_slurm.slurm.parsing.job_json import parse_job
from pollux_slurm.slurm.parsing.json_fields import release
from pollux_slurm.slurm.parsing.node_json import parse_node

FOLDER = Path(__file__).parents[1] / "recorded"
RELEASES = ("22.05", "24.11", "26.05")


class Recording:
    def __init__(self, name: str) -> None:
        self.name = name
        content: Any = json.loads((FOLDER / f"slurm-{name}.json").read_text())
        self.release = release(content["squeue"])
        self.ids: dict[str, str] = content["recorded_as"]
        self.jobs = [parse_job(job) for job in content["squeue"]["jobs"]]
        self._raw = {str(job["job_id"]): job for job in content["squeue"]["jobs"]}
        self.nodes: list[SlurmNode] = [parse_node(node) for node in content["nodes"]["nodes"]]

    def array_of(self, job: SlurmJob) -> str:
        number: Any = self._raw[job.job_id]["array_job_id"]
        return str(number["number"] if isinstance(number, dict) else number)

    def job(self, name: str) -> SlurmJob:
        return next(job for job in self.jobs if job.job_id == self.ids[name])


@pytest.fixture(params=RELEASES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return Recording(request.param)


def test_that_the_release_is_read(recording: Recording) -> None:
    year, month = recording.name.split(".")
    assert recording.release == (int(year), int(month))


def test_that_an_uneven_job_is_read_by_node(recording: Recording) -> None:
    job = recording.job("uneven")
    assert job.allocation == Allocation.of({"n0": 4, "n1": 1})
    assert job.cpus_by_node == (("n0", 8), ("n1", 2))
    assert job.memory_mb_by_node == (("n0", 4000), ("n1", 1000))
    assert (job.cpus_per_gpu, job.memory_per_gpu_mb, job.requested_gpus, job.num_cpus) == (2, 1000, 5, 10)
    assert (job.state, job.held, job.unschedulable_reason) == (JobState.RUNNING, False, None)
    assert (job.requested_gpu_type, job.memory_by_node) == ("t4", False)


def test_that_a_hostile_name_and_comment_come_through(recording: Recording) -> None:
    job = recording.job("uneven")
    assert job.name == 'train "x" JobState=FAILED\n☃'
    assert job.comment == "mine pollux/1:x\x1b[0m"


def test_that_times_are_aware_and_in_order(recording: Recording) -> None:
    job = recording.job("exit3")
    assert isinstance(job.submitted_at, datetime)
    assert job.started_at is not None
    assert job.ended_at is not None
    assert job.submitted_at.utcoffset() == timedelta(0)
    assert job.submitted_at <= job.started_at <= job.ended_at
    assert recording.job("uneven").ended_at is None
    assert recording.job("held").started_at is None


def test_that_memory_by_node_becomes_memory_by_gpu(recording: Recording) -> None:
    job = recording.job("a100")  # --gres=gpu:a100:2 --mem=4000 -c4
    assert job.allocation == Allocation.of({"n3": 2})
    assert (job.requested_gpus, job.cpus_per_gpu, job.memory_per_gpu_mb) == (2, None, 2000)
    assert (job.requested_gpu_type, job.memory_by_node) == ("a100", True)


def test_that_a_held_job_is_pending_and_held(recording: Recording) -> None:
    job = recording.job("held")
    assert (job.state, job.held, job.reason) == (JobState.PENDING, True, "JobHeldUser")
    assert (job.requested_gpus, job.allocation) == (1, Allocation())


def test_that_a_requeued_job_that_is_still_being_killed_is_not_ready(recording: Recording) -> None:
    job = recording.job("requeuing")
    assert (job.state, job.held, job.restart_count) == (JobState.COMPLETING, False, 1)
    assert (job.allocation, job.cpus_by_node) == (Allocation(), ())


def test_that_a_suspended_job_keeps_its_gpus(recording: Recording) -> None:
    job = recording.job("suspended")
    assert (job.state, job.held, job.allocation.num_gpus) == (JobState.SUSPENDED, False, 1)


@pytest.mark.parametrize(("name", "exit_code"), [("exit3", 3), ("killed", 137)])
def test_that_exit_codes_are_those_of_a_shell(recording: Recording, name: str, exit_code: int) -> None:
    job = recording.job(name)
    assert (job.state, job.exit_code) == (JobState.FAILED, exit_code)


def test_that_each_started_array_task_is_a_job_and_the_rest_cannot_be_moved(recording: Recording) -> None:
    array = recording.ids["array"]
    waiting = recording.job("array")
    assert "array" in (waiting.unschedulable_reason or "")
    running = next(
        job for job in recording.jobs if recording.array_of(job) == array and job.state is JobState.RUNNING
    )
    assert running.job_id != array
    assert running.unschedulable_reason is None
    assert running.allocation.num_gpus == 1


def test_that_a_job_that_may_not_be_requeued_is_unschedulable(recording: Recording) -> None:
    assert "requeue" in (recording.job("norequeue").unschedulable_reason or "")


@pytest.mark.parametrize("name", RELEASES[:2])  # 26.05.5 shows no sign of --exclusive in its JSON
def test_that_a_job_that_wants_whole_nodes_cannot_be_moved(name: str) -> None:
    assert "--exclusive" in (Recording(name).job("exclusive").unschedulable_reason or "")


def test_that_limits_in_minutes_become_seconds(recording: Recording) -> None:
    assert recording.job("uneven").time_limit_s == 5400


def test_that_nodes_show_types_totals_and_use(recording: Recording) -> None:
    n0, n1, n2, n3 = recording.nodes
    assert (n0.gpu_type, n0.num_gpus, n0.num_cpus, n0.memory_mb) == ("t4", 4, 8, 8192)
    assert (n0.used_gpus, n0.used_cpus, n0.used_memory_mb) == (4, 8, 4000)
    assert (n2.used_gpus, n2.used_cpus, n2.used_memory_mb) == (0, 0, 0)
    assert (n3.gpu_type, n3.num_gpus, n3.used_gpus) == ("a100", 8, 2)
    assert all(node.available and node.partitions == ("main",) for node in recording.nodes)
    assert "completing" in n1.state


def test_that_jobs_and_nodes_agree_on_the_gpus_in_use(recording: Recording) -> None:
    for node in recording.nodes:
        held = sum(job.allocation.as_dict().get(node.name, 0) for job in recording.jobs)
        assert node.used_gpus == held
