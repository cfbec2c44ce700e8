"""Problems and decisions as JSON text: exact in both directions, strict when reading."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux_slurm.errors import InvalidProblemError
from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    BatchLimits,
    Configuration,
    Decision,
    GoodputModel,
    GradientStatistics,
    JobDecision,
    NodeCapacity,
    Objective,
    Problem,
    ProblemJob,
    ThroughputParameters,
)
from pollux_slurm.policy.problem.json_format import (
    decision_from_json,
    decision_to_json,
    problem_from_json,
    problem_to_json,
)

PROBLEM = Problem(
    nodes=(NodeCapacity(name="n0", num_gpus=4, num_cpus=8, memory_mb=16000, gpu_type="t4"),),
    jobs=(
        ProblemJob(
            job_id="12",
            model=GoodputModel(
                limits=BatchLimits(initial_batch_size=128),
                statistics=GradientStatistics(sqr=0.1, var=1 / 3),
            ),
            current=Allocation.of({"n0": 2}),
            partition_nodes=frozenset({"n1", "n0"}),
        ),
    ),
    seed=3,
)
DECISION = Decision(
    jobs=(
        JobDecision(
            job_id="12",
            allocation=Allocation.of({"n0": 4}),
            speedup=1.5,
            goodput=None,
            penalty=1.0,
            batch=BatchChoice(global_batch_size=256, atomic_batch_size=64, accumulation_steps=0),
            bound_by="capacity",
            runner_up=Configuration(num_nodes=1, num_gpus=3),
            runner_up_speedup=1.25,
        ),
    ),
    fitness=0.5,
    solver="search",
    excluded=(("13", "its minimum does not fit"),),
)


def test_that_the_form_is_as_documented() -> None:
    document = json.loads(problem_to_json(PROBLEM))
    assert (document["format"], document["version"]) == ("pollux-problem", 1)
    assert document["problem"]["nodes"] == [
        {
            "name": "n0",
            "num_gpus": 4,
            "num_cpus": 8,
            "memory_mb": 16000,
            "gpu_type": "t4",
            "accepts_new": True,
            "several_wings": False,
        }
    ]
    (job,) = document["problem"]["jobs"]
    assert job["current"] == {"n0": 2}
    assert job["partition_nodes"] == ["n0", "n1"]
    assert job["model"]["throughput"] is None
    assert json.loads(decision_to_json(DECISION))["format"] == "pollux-decision"


def test_that_problem_and_decision_are_read_as_written() -> None:
    assert problem_from_json(problem_to_json(PROBLEM)) == PROBLEM
    assert problem_from_json(problem_to_json(PROBLEM).encode()) == PROBLEM
    assert decision_from_json(decision_to_json(DECISION)) == DECISION


def test_that_a_field_with_a_default_may_be_absent() -> None:
    document = json.loads(problem_to_json(PROBLEM))
    del document["problem"]["objective"], document["problem"]["jobs"][0]["pinned"]
    assert problem_from_json(json.dumps(document)) == PROBLEM


def test_that_numbers_of_numpy_are_written_as_numbers() -> None:
    job = dataclasses.replace(
        DECISION.jobs[0], speedup=np.float64(1.5), allocation=Allocation((("n0", np.int64(4)),))
    )
    assert decision_from_json(decision_to_json(dataclasses.replace(DECISION, jobs=(job,)))) == DECISION


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_that_bad_numbers_are_written_in_jobs_only(bad: float) -> None:
    # The job is excluded from the round, which is recorded and replayed with it.
    job = dataclasses.replace(PROBLEM.jobs[0], age_s=bad)
    again = problem_from_json(problem_to_json(dataclasses.replace(PROBLEM, jobs=(job,))))
    assert repr(again.jobs[0].age_s) == repr(bad)
    with pytest.raises(InvalidProblemError, match=r"problem\.max_wait_s"):
        problem_to_json(dataclasses.replace(PROBLEM, max_wait_s=bad))
    with pytest.raises(InvalidProblemError, match="fitness"):
        decision_to_json(dataclasses.replace(DECISION, fitness=bad))


def test_that_a_value_without_a_json_form_cannot_be_written() -> None:
    job = dataclasses.replace(PROBLEM.jobs[0], job_id=object())  # type: ignore[arg-type]
    with pytest.raises(InvalidProblemError, match="job_id"):
        problem_to_json(dataclasses.replace(PROBLEM, jobs=(job,)))


def changed(path: list[Any], value: Any) -> str:
    """Return the problem's JSON with one place changed."""
    document = json.loads(problem_to_json(PROBLEM))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["format"], "pollux-decision", "format"),
        (["version"], 2, "version 2"),
        (["version"], None, "version"),
        (["extra"], 1, "extra"),
        (["problem"], [], "expected an object"),
        (["problem", "seed"], 1.5, r"problem\.seed: expected a whole number"),
        (["problem", "seed"], True, r"problem\.seed"),
        (["problem", "colour"], "red", "unknown field 'colour'"),
        (["problem", "nodes"], {}, r"problem\.nodes: expected a list"),
        (["problem", "nodes", 0], {"name": "n0"}, "'num_gpus' is missing"),
        (["problem", "nodes", 0, "accepts_new"], 1, "true or false"),
        (["problem", "nodes", 0, "name"], None, "expected a string"),
        (["problem", "jobs", 0, "age_s"], "old", "expected a number"),
        (["problem", "jobs", 0, "age_s"], 10**400, "beyond"),
        (["problem", "jobs", 0, "age_s"], False, "expected a number"),
        (["problem", "jobs", 0, "num_restarts"], "NaN", "expected a whole number"),
        (["problem", "max_wait_s"], "NaN", "expected a number"),
        (["problem", "jobs", 0, "current"], ["n0"], "GPUs by node"),
        (["problem", "jobs", 0, "current"], {"n0": 0}, r"current\.n0: expected at least one GPU"),
        (["problem", "jobs", 0, "current"], {"n0": 1.0}, "expected at least one GPU"),
        (["problem", "jobs", 0, "partition_nodes"], ["n0", "n0"], "twice"),
        (["problem", "jobs", 0, "model", "limits"], None, "expected an object"),
        (["problem", "jobs", 0, "model", "statistics", "sqr"], None, r"statistics\.sqr"),
    ],
)
def test_that_an_error_names_its_place(path: list[Any], value: Any, words: str) -> None:
    text = changed(path, value)
    with pytest.raises(InvalidProblemError, match=words) as refused:
        problem_from_json(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "12",
        '{"format": "pollux-problem"}',
        problem_to_json(PROBLEM)[:-1],
        problem_to_json(PROBLEM).replace('"seed":3', '"seed":NaN'),
        problem_to_json(PROBLEM).replace('"age_s":0.0', '"age_s":Infinity'),
        problem_to_json(PROBLEM).replace('"age_s":0.0', '"age_s":1e999'),
        problem_to_json(PROBLEM).replace('"seed":3', '"seed":3,"seed":4'),
        problem_to_json(PROBLEM).replace('"age_s":0.0', '"age_s":1' + "0" * 5000),
        "[" * 100_000,
        '{"a":' * 100_000,
        b"\xff\xfe\x00",
    ],
    ids=lambda text: repr(text[:25]),
)
def test_that_damaged_text_is_rejected(text: str | bytes) -> None:
    with pytest.raises(InvalidProblemError):
        problem_from_json(text)


names = st.text(max_size=6)
counts = st.integers(0, 2**40)
reals = st.floats(allow_nan=False, allow_infinity=False)
allocations = st.dictionaries(names, st.integers(1, 64), max_size=3).map(Allocation.of)
models = st.builds(
    GoodputModel,
    limits=st.builds(
        BatchLimits,
        initial_batch_size=counts,
        max_batch_size=st.none() | counts,
        min_atomic=counts,
        max_atomic=st.none() | counts,
        accumulation=st.booleans(),
    ),
    statistics=st.none() | st.builds(GradientStatistics, sqr=reals, var=reals),
    throughput=st.none()
    | st.builds(
        ThroughputParameters,
        **{field.name: reals for field in dataclasses.fields(ThroughputParameters)},
    ),
    max_gpus_seen=counts,
    max_nodes_seen=counts,
)
problems = st.builds(
    Problem,
    nodes=st.lists(
        st.builds(
            NodeCapacity,
            name=names,
            num_gpus=counts,
            num_cpus=counts,
            memory_mb=counts,
            gpu_type=st.none() | names,
            accepts_new=st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    jobs=st.lists(
        st.builds(
            ProblemJob,
            job_id=names,
            model=st.none() | models,
            min_gpus=counts,
            max_gpus=st.none() | counts,
            memory_per_gpu_mb=counts,
            age_s=reals,
            restart_delay_s=reals,
            current=allocations,
            pinned=st.booleans(),
            partition_nodes=st.none() | st.frozensets(names, max_size=3),
        ),
        max_size=3,
    ).map(tuple),
    objective=st.builds(Objective, name=names, exponent=reals, floor=reals),
    seed=st.integers(),
)
decisions = st.builds(
    Decision,
    jobs=st.lists(
        st.builds(
            JobDecision,
            job_id=names,
            allocation=allocations,
            speedup=reals,
            goodput=st.none() | reals,
            penalty=reals,
            batch=st.none()
            | st.builds(
                BatchChoice, global_batch_size=counts, atomic_batch_size=counts, accumulation_steps=counts
            ),
            bound_by=names,
            runner_up=st.none() | st.builds(Configuration, num_nodes=counts, num_gpus=counts),
            runner_up_speedup=st.none() | reals,
        ),
        max_size=3,
    ).map(tuple),
    fitness=reals,
    solver=names,
    excluded=st.lists(st.tuples(names, names), max_size=3).map(tuple),
)


@given(problem=problems)
@settings(max_examples=40, deadline=None)
def test_that_any_problem_is_read_as_written(problem: Problem) -> None:
    text = problem_to_json(problem)
    assert problem_from_json(text) == problem
    assert problem_to_json(problem_from_json(text)) == text


@given(decision=decisions)
@settings(deadline=None)
def test_that_any_decision_is_read_as_written(decision: Decision) -> None:
    text = decision_to_json(decision)
    assert decision_from_json(text) == decision
    assert decision_to_json(decision_from_json(text)) == text
