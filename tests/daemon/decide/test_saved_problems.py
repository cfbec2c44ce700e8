"""The last rounds' problems as files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from pollux_slurm.daemon.decide.saved_problems import save_problem
from pollux_slurm.policy.problem.json_format import problem_from_json
from tests.policy.builders import job, nodes, problem


def test_that_the_last_few_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "problems"
    for number in (8, 9, 10, 11):
        path = save_problem(folder, number, problem(nodes(1), job(str(number))), keep=2)
        assert problem_from_json(path.read_bytes()).jobs[0].job_id == str(number)
        (folder / "round-mine.json").touch()
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "round-000000010.json",
        "round-000000011.json",
        "round-mine.json",
    ]
    assert stat.S_IMODE((folder / "round-000000011.json").stat().st_mode) == 0o600


def test_that_numbers_count_and_not_their_texts(tmp_path: Path) -> None:
    for number in (999_999_999, 1_000_000_000):
        save_problem(tmp_path, number, problem(nodes(1)), keep=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["round-1000000000.json"]


def test_that_what_a_crash_left_is_deleted(tmp_path: Path) -> None:
    (tmp_path / f".round-000000001.json-{'ab' * 8}.tmp").write_text("half")
    path = save_problem(tmp_path, 1, problem(nodes(1)), keep=1)
    assert [path] == list(tmp_path.iterdir())


def test_that_a_path_that_is_no_folder_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        save_problem(tmp_path / "file" / "x", 1, problem(nodes(1)), keep=1)
