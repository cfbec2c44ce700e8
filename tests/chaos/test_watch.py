"""What the watch reports as wrong, on processes and snapshots made for the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pollux_slurm.system.process_control import ProcessRecord
from tests.chaos.verdict import lineage_errors
from tests.chaos.watch import Replica, overlaps, oversold
from tests.daemon.builders import job, node, snapshot


def replica(job_id: str, run: str, node: str, *gpus: str) -> Replica:
    process = ProcessRecord(name="python", pid=1, start_ticks=1, boot_id="")
    return Replica(process=process, job_id=job_id, run=run, slurm_id=job_id, node=node, gpus=frozenset(gpus))


def words(*seen: Replica, lost: str = "") -> list[str]:
    return [word for word, _, _ in overlaps(list(seen), lost_nodes=frozenset({lost}))]


def test_that_replicas_of_one_run_and_of_jobs_side_by_side_are_right() -> None:
    assert not words(
        replica("1", "0", "n0", "0"), replica("1", "0", "n1", "0"), replica("2", "3", "n0", "1", "2")
    )


def test_that_two_jobs_on_a_gpu_and_two_runs_of_a_job_are_wrong() -> None:
    assert words(replica("1", "0", "n0", "0", "1"), replica("2", "0", "n0", "1")) == [
        "jobs 1 and 2 train on GPU 1 of n0 at once"
    ]
    assert words(replica("1", "0", "n0", "0"), replica("1", "1", "n1", "0")) == [
        "job 1 trains in runs 0 and 1 at once"
    ]


def test_that_a_lost_node_does_not_count() -> None:
    assert not words(replica("1", "0", "n0", "0"), replica("1", "1", "n1", "0"), lost="n0")


def test_that_more_gpus_than_a_node_has_are_wrong() -> None:
    jobs = [job("1", on={"n0": 3}), job("2", on={"n0": 2})]
    assert oversold(snapshot([node("n0")], jobs[:1])) == []
    assert oversold(snapshot([node("n0")], jobs)) == ["n0: 5 of 4 GPUs are given to running jobs"]


@pytest.mark.parametrize(
    ("starts", "is_right"),
    [
        ([None, "0-1", "1-1"], True),
        ([None, "0-1", "0-1", "2-1"], True),  # run 1 wrote nothing
        ([None, "0-1", "0-2"], False),  # run 0 wrote that when run 1 had begun
        ([None, "0-1", "1-1", "0-1"], False),
        ([None, "0-1", None], False),  # started from the beginning
    ],
)
def test_that_a_run_goes_on_only_in_its_line(
    tmp_path: Path, starts: list[str | None], is_right: bool
) -> None:
    (tmp_path / "runs").mkdir()
    for number, start in enumerate(starts):
        name = None
        if start is not None:
            run, sequence = (int(part) for part in start.split("-"))
            name = f"{run:06d}-{sequence:06d}-{'0' * 64}.pt"
        (tmp_path / "runs" / f"{number:06d}.json").write_text(
            json.dumps({"run_number": number, "resumed_from": name})
        )
    assert (lineage_errors(tmp_path) == []) is is_right
