"""Micro-batches that did not fit into memory: recorded on disk, and the processes start again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.agent.checkpoints.out_of_memory import (
    MemoryBound,
    num_bounds,
    read_bounds,
    record_bound,
    rerun_with_smaller_batches,
)
from pollux_slurm.errors import CheckpointError

BOUND = MemoryBound(loader="loader-0", failed=64, largest=32, device_bytes=10**10)


def test_that_bounds_of_all_runs_and_ranks_are_read_back(tmp_path: Path) -> None:
    other = MemoryBound(loader="x", failed=3, largest=1, device_bytes=0)
    record_bound(tmp_path, BOUND, run_number=0, rank=1)
    record_bound(tmp_path, other, run_number=2, rank=0)
    assert read_bounds(tmp_path) == (BOUND, other)
    assert num_bounds(tmp_path) == 2


def test_that_a_job_without_bounds_has_none(tmp_path: Path) -> None:
    assert read_bounds(tmp_path) == ()
    assert num_bounds(tmp_path / "not there") == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"loader": 1, "failed": 2, "largest": 1, "device_bytes": 0}',
        '{"loader": "a", "failed": 2, "largest": 0, "device_bytes": 0}',
        '{"loader": "a", "failed": 2, "largest": true, "device_bytes": 0}',
        '{"loader": "a", "failed": 2, "largest": 1, "device_bytes": -1}',
        '{"loader": "a", "failed": 2, "largest": 1, "device_bytes": 0, "more": 1}',
        "[" * 100_000,
    ],
)
def test_that_a_malformed_file_is_skipped(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    record_bound(tmp_path, BOUND, run_number=1, rank=0)
    (tmp_path / "memory" / "000000-000000.json").write_text(text)
    assert read_bounds(tmp_path) == (BOUND,)
    assert "not a memory bound" in caplog.text


def test_that_a_failed_write_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file in its place")
    with pytest.raises(CheckpointError, match="was not written"):
        record_bound(tmp_path, BOUND, run_number=0, rank=0)


class Runs:
    """Runs that end with the given codes; one with a negative code also writes a bound."""

    def __init__(self, directory: Path, codes: list[int]) -> None:
        self.directory, self.codes, self.num_runs = directory, codes, 0

    def __call__(self) -> int:
        code = self.codes[self.num_runs]
        self.num_runs += 1
        if code < 0:
            record_bound(self.directory, BOUND, run_number=self.num_runs, rank=0)
        return abs(code)


@pytest.mark.parametrize(
    ("codes", "last", "num_runs"),
    [
        ([-1, -1, 0], 0, 3),
        ([-1, 2], 2, 2),
        ([1], 1, 1),
        # Stopped by a signal: a bound that it wrote is for the job's next start.
        ([-143], 143, 1),
        ([-1] * 30, 1, 25),
    ],
)
def test_that_a_run_is_repeated_while_each_leaves_another_bound(
    tmp_path: Path, codes: list[int], last: int, num_runs: int
) -> None:
    runs, warnings = Runs(tmp_path, codes), list[str]()
    assert rerun_with_smaller_batches(runs, tmp_path, warn=warnings.append) == last
    assert runs.num_runs == num_runs
    assert len(warnings) == num_runs - 1


def test_that_a_job_without_a_directory_runs_once() -> None:
    assert rerun_with_smaller_batches(lambda: 7, None, warn=print) == 7
