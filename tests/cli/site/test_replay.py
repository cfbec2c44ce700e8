"""`pollux replay` on a problem in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sqlalchemy import update

from pollux_slurm.policy import decide
from pollux_slurm.policy.problem.json_format import problem_to_json
from pollux_slurm.store.access.opening import open_database
from pollux_slurm.store.contract.interface import Store
from pollux_slurm.store.schema import RoundRow
from tests.cli.inside import Done, pollux
from tests.policy.builders import job, nodes, problem
from tests.store.builders import at


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(problem_to_json(problem(nodes(2), job("7", {"n0": 2}), job("8", max_gpus=4))))
    return path


def replay(*arguments: str) -> Done:
    return pollux("replay", *arguments)


def test_that_json_has_the_decision_and_its_fitness(file: Path) -> None:
    found = json.loads(replay(str(file), "--json").stdout)
    assert found["allocations"] == {"7": {"n0": 4}, "8": {"n1": 4}}
    assert found["solver"] == "search"
    assert found["fitness"] == pytest.approx(found["upper_bound"])
    assert found["gap"] == pytest.approx(0.0, abs=1e-9)
    assert set(found["times_s"]) == {"tables", "solve", "explain"}


def test_that_all_solvers_can_be_compared(file: Path) -> None:
    found = json.loads(replay(str(file), "--compare", "--json").stdout)
    assert [one["solver"] for one in found] == ["search", "genetic", "greedy"]


def test_that_the_solver_may_be_called_exact(file: Path) -> None:
    assert replay(str(file), "--solver", "exact").stdout.splitlines()[-1].startswith("search: fitness ")


def test_that_each_job_has_a_line(file: Path) -> None:
    lines = replay(str(file)).stdout.splitlines()
    assert lines[0].startswith("job 7: n0:4; speedup 1; goodput 4000/s")
    assert lines[-1].startswith("search: fitness ")


def test_that_a_round_of_the_store_is_replayed(store: Store, store_url: str) -> None:
    none = replay("--store", store_url)
    assert (none.returncode, none.stderr.count("\n")) == (1, 1)
    assert "no round is recorded yet" in none.stderr
    for held in ({"n0": 1}, {"n0": 2}):
        one = problem(nodes(1), job("7", held))
        store.rounds.record(one, decide(one), shadow=False, at=at(1))
    found = json.loads(replay("--store", store_url, "--json").stdout)
    assert found["allocations"] == {"7": {"n0": 4}}
    first = replay("--store", store_url, "--round", "1")
    assert first.stdout.splitlines()[0].startswith("job 7: n0:4")
    assert "there is no round 9" in replay("--store", store_url, "--round", "9").stderr


@pytest.mark.parametrize("kept", ["xxxx", '{"format": "pollux-problem", "version": 99, "problem": {}}'])
@pytest.mark.parametrize("save", [False, True])
def test_that_a_round_kept_without_a_readable_problem_is_one_line(
    store: Store, store_url: str, tmp_path: Path, kept: str, save: bool
) -> None:
    one = problem(nodes(1), job("7"))
    store.rounds.record(one, decide(one), shadow=False, at=at(1))
    database = open_database(store_url)
    with database.write() as connection:
        connection.execute(update(RoundRow).values(problem=kept))
    database.close()
    file = tmp_path / "round.json"
    found = replay("--store", store_url, *(["--save", str(file)] if save else []))
    assert (found.returncode, found.stderr.count("\n")) == (1, 1)
    assert "round 1 is kept without a problem that this release reads" in found.stderr
    assert not file.exists()


def test_that_a_bad_file_or_objective_is_one_line(file: Path, tmp_path: Path) -> None:
    absent = replay(str(tmp_path / "absent.json"))
    assert (absent.returncode, absent.stderr.count("\n")) == (2, 1)
    wrong = replay(str(file), "--objective", "magic")
    assert wrong.returncode == 1
    assert "there is no objective 'magic'" in wrong.stderr
