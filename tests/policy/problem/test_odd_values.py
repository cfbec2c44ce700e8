"""Every field of a problem's JSON form, set to odd values: a typed error or an answer, never a traceback."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pollux_slurm.errors import PolluxError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    Decision,
    GoodputModel,
    GpuLimit,
    GradientStatistics,
    MovingRules,
    Objective,
    Problem,
    PromiseState,
    ThroughputParameters,
    TrainingCourse,
)
from pollux_slurm.policy import OBJECTIVES, decide, explanation
from pollux_slurm.policy.problem.json_format import (
    decision_from_json,
    decision_to_json,
    problem_from_json,
    problem_to_json,
)
from tests.policy.builders import job, node

MODEL = GoodputModel(
    limits=BatchLimits(
        initial_batch_size=8,
        max_batch_size=64,
        min_atomic=2,
        max_atomic=8,
        accumulation=True,
        failed_atomic=16,
    ),
    statistics=GradientStatistics(sqr=1.0, var=10.0, noise_low=1.0, noise_high=1e3),
    throughput=ThroughputParameters(
        alpha_g=0.1, beta_g=0.01, alpha_n=0.2, beta_n=0.01, alpha_l=0.05, beta_l=0.001, gamma=1.5
    ),
    max_gpus_seen=2,
    max_nodes_seen=1,
    num_parameters=10**6,
    precision="float32",
)
NOISE = GradientStatistics(sqr=1.0, var=10.0, noise_low=1.0, noise_high=1e3)
FULL = Problem(
    nodes=(node("n0", 2, gpu_type="a"), node("n1", 2, gpu_type="b")),
    jobs=(
        job(
            "odd",
            {"n0": 1},
            model=MODEL,
            models=(("a", MODEL),),
            max_gpus=4,
            partition_nodes=frozenset({"n0", "n1"}),
            pinned_because="so",
            account="x",
            user="u",
            progress=1e4,
            epochs_done=1.0,
            epochs_declared=3.0,
            declaration_doubt="none",
            model_doubt="none",
            kind_note="none",
            share=0.5,
            share_note="none",
            expected_progress=2e5,
            expected_low=1e5,
            expected_high=3e5,
            wings=(Allocation.of({"n0": 1}),),
            in_place_delay_s=3.0,
            course=TrainingCourse(work=1e6, statistics=((0.0, NOISE),)),
            finish_by_s=3600.0,
            time_left_s=7200.0,
            promise=PromiseState.REFUSED,
            promised_gpus=1,
        ),
        job("other", account="x"),
    ),
    objective=Objective(fair_share_gpus=1),
    limits=(GpuLimit(kind="account", name="x", max_gpus=3, job_ids=("other",)),),
    moving=MovingRules(max_reallocations=2),
    gpu_speeds=(("a", 1.0), ("b", 2.0)),
    uneven=False,
    max_wait_s=60.0,
)
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2**63, 10**30, 10**400, -0.5, 1.5, 1e-320, 1e308),
    *("", "x", "a", "n0", "*", "NaN", "-Infinity", "\ud800", "a\x00\nb", "9" * 5000),
    *([], {}, [[]], [None], ["n0"], [["a", 1.0]], {"n0": 1}, {"n0": 10**30}, {"x": {}}),
]


def places(inside: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = inside.items() if isinstance(inside, dict) else enumerate(inside)
    for step, value in items:
        yield (*path, step)
        if isinstance(value, dict | list):
            yield from places(value, (*path, step))


TEXT = problem_to_json(FULL)
PLACES = sorted({path[:6] for path in places(json.loads(TEXT))}, key=repr)


def with_value(path: tuple[Any, ...], value: Any) -> str:
    """Return the problem's JSON with one place changed."""
    document = json.loads(TEXT)
    inside = document
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return json.dumps(document)


def test_that_the_problem_used_here_is_a_good_one_with_every_field_set() -> None:
    found = decide(FULL)
    assert not found.excluded
    assert found.allocation("other").num_gpus
    assert TEXT.count("null") == json.dumps(json.loads(TEXT)["problem"]["jobs"][1]).count("null")


def answer(text: str, cache: TableCache) -> Decision | str:
    """Return the decision for a problem, or the error message with which it is rejected."""
    try:
        one = problem_from_json(text)
        found = decide(one, tables=cache, effort=0.02)
    except PolluxError as error:
        return str(error)
    excluded = dict(found.excluded)
    assert all(explanation(decision, excluded.get(decision.job_id)) for decision in found.jobs)
    # The round can be recorded, and replayed.
    assert decision_from_json(decision_to_json(found)) == found
    assert problem_to_json(problem_from_json(problem_to_json(one))) == problem_to_json(one)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
def test_that_every_odd_value_anywhere_is_rejected_or_answered(every: int) -> None:
    """Of all places and values, every third pair takes a quarter of a minute, each a minute."""
    cache, names, found = TableCache(), itertools.cycle(sorted(OBJECTIVES)), []
    for path, value in list(itertools.product(PLACES, ODD))[::every]:
        text = with_value(path, value)
        if path != ("problem", "objective", "name"):
            text = text.replace('"generalized-mean"', json.dumps(next(names)))
        found.append(answer(text, cache))
    words = [one for one in found if isinstance(one, str)]
    assert 500 / every < len(words) < len(found) - 300 / every
    assert max(map(len, words)) < 400
