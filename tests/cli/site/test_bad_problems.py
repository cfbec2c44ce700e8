"""Bad input on the command line: one clear line, or the one job left out and the others scheduled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.policy import OBJECTIVES
from pollux_slurm.policy.problem.json_format import problem_to_json
from tests.cli.inside import pollux
from tests.policy.builders import job, nodes, problem

JOB: tuple[str | int, ...] = ("problem", "jobs", 0)
THETA = (*JOB, "model", "throughput")
NODE: tuple[str | int, ...] = ("problem", "nodes", 0)


def written(folder: Path, place: Sequence[str | int], value: str) -> str:
    """Write a good problem about jobs 7 and 8 in which one value, JSON text, is another; return the path."""
    good = problem(
        nodes(2), job("7", {"n0": 2}, progress=1e5, epochs_done=1.0, epochs_declared=4.0), job("8")
    )
    document = json.loads(problem_to_json(good))
    inside: Any = document
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = "the value"
    file = folder / "problem.json"
    file.write_text(json.dumps(document).replace('"the value"', value))
    return str(file)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ((*JOB, "age_s"), "-1", "age_s, restart_delay_s and num_restarts must be finite and at least 0"),
        ((*JOB, "restart_delay_s"), "-30.0", "must be finite and at least 0"),
        ((*JOB, "waiting_s"), "-1", "waiting_s must be finite and at least 0"),
        ((*JOB, "progress"), "-1e300", "progress must be finite and at least 0"),
        ((*THETA, "alpha_g"), "1e300", "its model is refused: throughput.alpha_g"),
        ((*THETA, "beta_g"), "-0.001", "its model is refused: throughput.beta_g"),
        ((*THETA, "gamma"), "0", "its model is refused: throughput.gamma"),
        ((*JOB, "min_gpus"), "0", "min_gpus must be a whole number of at least 1"),
        ((*JOB, "max_gpus"), "0", "max_gpus must be a whole number of at least 1, not 0"),
        ((*JOB, "weight"), "0", "weight must be a number from 1e-6 to 1e6"),
        ((*JOB, "current"), '{"n9": 2}', "it has GPUs on node n9, which is not in the problem"),
        ((*JOB, "model", "limits", "initial_batch_size"), "0", "limits.initial_batch_size"),
    ],
)
def test_that_a_bad_job_is_left_out_with_a_reason(
    tmp_path: Path, place: Sequence[str | int], value: str, reason: str
) -> None:
    found = json.loads(pollux("explain", "7", "--problem", written(tmp_path, place, value), "--json").stdout)
    assert reason in found["excluded_reason"]
    assert found["explanation"] == f"job 7 is left as it is: {found['excluded_reason']}"
    assert found["allocation"] in ({"n0": 2}, {"n9": 2})


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_that_the_other_job_is_scheduled_whatever_the_objective(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, (*THETA, "alpha_g"), "1e300")
    found = json.loads(pollux("replay", file, "--json", "--objective", name).stdout)
    assert set(found["excluded"]) == {"7"}
    assert found["allocations"]["7"] == {"n0": 2}
    assert found["allocations"]["8"]["n1"] == 4


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ((*JOB, "age_s"), "NaN", "NaN is not a JSON number"),
        ((*JOB, "age_s"), "1e999", "problem.jobs[0].age_s: the number is beyond"),
        ((*JOB, "age_s"), '"old"', "problem.jobs[0].age_s: expected a number, found 'old'"),
        ((*JOB, "min_gpus"), "1.5", "problem.jobs[0].min_gpus: expected a whole number"),
        ((*JOB, "min_gpus"), "1" + 5000 * "0", "not JSON"),
        ((*JOB, "current"), '{"n0": 0}', "problem.jobs[0].current.n0: expected at least one GPU"),
        ((*JOB, "models"), '[["t4", null]]', "problem.jobs[0].models[0][1]"),
        ((*JOB, "job_id"), '"8"', "job 8 is listed more than once"),
        ((*NODE, "num_gpus"), "-1", "node n0: num_gpus must be a whole number from 0"),
        ((*NODE, "name"), '"n1"', "node n1 is listed more than once"),
        (("problem", "objective", "exponent"), "1e300", "exponent must be within ±20"),
        (("problem", "objective", "fair_share_gpus"), "0", "fair_share_gpus must be a whole number from 1"),
        (("problem", "max_wait_s"), "-1", "max_wait_s must be finite and at least 0"),
        (("problem", "moving", "hysteresis"), "1", "hysteresis must be at least 0 and below 1"),
        (("problem", "limits"), '[{"kind": "group", "name": "x", "max_gpus": 1}]', "by account, user or qos"),
        (("problem", "nodes"), "{}", "problem.nodes: expected a list"),
        (("version",), "2", "version 2 is not one that this release reads"),
    ],
)
def test_that_an_invalid_problem_is_one_line(
    tmp_path: Path, place: Sequence[str | int], value: str, words: str
) -> None:
    file = written(tmp_path, place, value)
    for command in (("replay", file), ("explain", "8", "--problem", file)):
        done = pollux(*command)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert words in done.stderr


@pytest.mark.parametrize("solver", ["search", "genetic", "greedy"])
@pytest.mark.parametrize(
    ("place", "value"),
    [(("problem", "nodes"), "[]"), (("problem", "jobs"), "[]"), ((*NODE, "num_gpus"), "0")],
)
def test_that_clusters_without_nodes_jobs_or_gpus_are_solved(
    tmp_path: Path, solver: str, place: Sequence[str | int], value: str
) -> None:
    done = pollux("replay", written(tmp_path, place, value), "--json", "--solver", solver)
    found = json.loads(done.stdout)
    if place[-1] == "nodes":
        assert found["allocations"] == {"7": {"n0": 2}, "8": {}}
        assert set(found["excluded"]) == {"7", "8"}
    elif place[-1] == "jobs":
        assert (found["allocations"], found["fitness"]) == ({}, 0.0)
    else:
        assert found["allocations"]["8"]
