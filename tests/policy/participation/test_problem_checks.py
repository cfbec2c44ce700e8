"""Bad numbers: those that exclude one job, and those for which the whole problem is rejected."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from pollux_slurm.errors import InvalidProblemError
from pollux_slurm.goodput import TableCache
from pollux_slurm.model import Allocation, GpuLimit, Objective, ProblemJob
from pollux_slurm.policy import decide
from pollux_slurm.policy.participation.problem_checks import find_exclusions
from tests.policy.builders import job, linear_model, node, nodes, problem, sizes

THETA = linear_model().throughput
assert THETA is not None
HUGE = pytest.param({"min_gpus": 10**5000}, "min_gpus", id="huge")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"min_gpus": 0}, "min_gpus must be a whole number"),
        ({"min_gpus": 1.5}, "min_gpus must be a whole number"),
        HUGE,
        ({"min_gpus": 3, "max_gpus": 2}, "min_gpus 3 is above max_gpus 2"),
        ({"max_gpus": -1}, "max_gpus must be"),
        ({"max_gpus": 0}, "max_gpus must be a whole number of at least 1, not 0"),
        ({"cpus_per_gpu": -1}, "CPUs and memory"),
        ({"memory_per_gpu_mb": math.inf}, "CPUs and memory"),
        ({"age_s": math.nan}, "age_s"),
        ({"age_s": -1.0}, "age_s"),
        ({"restart_delay_s": math.inf}, "restart_delay_s"),
        ({"num_restarts": -1}, "num_restarts"),
        ({"progress": math.nan}, "progress must be finite"),
        ({"models": (("t4", linear_model()), ("t4", linear_model()))}, "two models for GPU type t4"),
        ({"current": Allocation.of({"elsewhere": 1})}, "node elsewhere"),
        ({"current": Allocation((("n0", 0),))}, "without GPUs"),
        ({"current": Allocation((("n0", 1), ("n0", 1)))}, "names a node twice"),
        ({"in_place_delay_s": math.nan}, "in_place_delay_s must be finite"),
        ({"in_place_delay_s": -1.0}, "in_place_delay_s must be finite"),
        ({"wings": (Allocation.of({"n0": 1}),)}, "wings have GPUs on node n0"),
        (
            {"current": Allocation.of({"n0": 2}), "wings": (Allocation.of({"n0": 1}),) * 3},
            "wings have GPUs on node n0 that its allocation n0:2 does not have",
        ),
        ({"current": Allocation.of({"n0": 2}), "wings": (Allocation(),)}, "a wing without GPUs"),
        ({"current": Allocation.of({"n0": 2}), "wings": ["n0"]}, "wings must be allocations"),
        (
            {
                "model": dataclasses.replace(
                    linear_model(), throughput=dataclasses.replace(THETA, alpha_g=1e300)
                )
            },
            "alpha_g must be a number",
        ),
        (
            {
                "model": dataclasses.replace(
                    linear_model(), throughput=dataclasses.replace(THETA, beta_l=math.nan)
                )
            },
            "beta_l must be a number",
        ),
    ],
)
def test_that_a_job_with_bad_numbers_is_excluded_and_the_others_are_scheduled(
    fields: dict[str, Any], reason: str
) -> None:
    bad = dataclasses.replace(job("bad"), **fields)
    found = decide(problem(nodes(1), bad, job("good", max_gpus=2)))
    assert reason in dict(found.excluded)["bad"]
    assert found.allocation("bad") == bad.current
    assert sizes(found)["good"] == 2


def test_that_gpus_of_an_excluded_job_are_not_given_to_others() -> None:
    bad = job("bad", {"n0": 3}, age_s=math.nan)
    assert sizes(decide(problem(nodes(1), bad, job("good")))) == {"bad": 3, "good": 1}


def test_that_a_job_without_a_sane_model_keeps_its_reason_short() -> None:
    model = dataclasses.replace(linear_model(), throughput=dataclasses.replace(THETA, gamma="x" * 10**6))
    reason = dict(decide(problem(nodes(1), job("bad", model=model))).excluded)["bad"]
    assert len(reason) < 200


def test_that_two_nodes_of_one_name_are_rejected() -> None:
    with pytest.raises(InvalidProblemError, match="node n0 is listed more than once"):
        decide(problem((node("n0"), node("n0"))))


def test_that_two_jobs_of_one_id_are_rejected() -> None:
    with pytest.raises(InvalidProblemError, match="job a is listed more than once"):
        decide(problem(nodes(1), job("a"), job("a")))


@pytest.mark.parametrize("num_gpus", [-1, 2.0, math.nan, 10**9])
def test_that_a_node_of_impossible_size_is_rejected(num_gpus: Any) -> None:
    with pytest.raises(InvalidProblemError, match="node n0: num_gpus"):
        decide(problem((node("n0", num_gpus),)))


@pytest.mark.parametrize(
    "objective",
    [
        Objective(exponent=math.nan),
        Objective(exponent=math.inf),
        Objective(exponent=21.0),
        Objective(floor=0.0),
        Objective(floor=math.nan),
    ],
)
def test_that_an_impossible_objective_is_rejected(objective: Objective) -> None:
    with pytest.raises(InvalidProblemError, match="the objective's"):
        decide(dataclasses.replace(problem(nodes(1), job("a")), objective=objective))


@pytest.mark.parametrize(
    ("part", "fields", "words"),
    [
        ("objective", {"exponent": "x"}, "exponent must be within"),
        ("objective", {"exponent": 10**400}, "exponent must be within"),
        ("objective", {"floor": None}, "floor must be between"),
        ("objective", {"name": ["osdi21"]}, "there is no objective"),
        ("objective", {"penalty": ["paper"]}, "there is no penalty"),
        ("moving", {"pauses": "no"}, "pauses must be true or false"),
        ("moving", {"hysteresis": "x"}, "hysteresis must be"),
        (None, {"seed": -1}, "the seed must be"),
        (None, {"seed": "x"}, "the seed must be"),
        (None, {"uneven": "x"}, "uneven must be"),
        (None, {"gpu_speeds": ((["t4"], 1.0),)}, "gpu_speeds"),
        (None, {"limits": (GpuLimit(kind="account", name=["x"], max_gpus=1),)}, "a limit is of a name"),
        (None, {"limits": (GpuLimit(kind="user", name="x", max_gpus=1, job_ids=(1,)),)}, "without a name"),
        (None, {"gpu_speeds": (("t4", 0.0),)}, "the speed of GPU type t4 must be"),
        (None, {"gpu_speeds": (("t4", 1.0), ("t4", 2.0))}, "names GPU type t4 twice"),
        (None, {"limits": (GpuLimit(kind="group", name="x", max_gpus=1),)}, "not by 'group'"),
        (None, {"max_wait_s": -1.0}, "max_wait_s must be finite"),
        ("moving", {"max_reallocations": -1}, "max_reallocations must be"),
        ("moving", {"min_age_s": math.nan}, "min_age_s and min_remaining_s"),
        ("objective", {"horizon_s": 0.0}, "the horizon must be above 0 s"),
        ("objective", {"between": "groups"}, "shares are between"),
        ("objective", {"fair_share_gpus": 0}, "fair_share_gpus must be"),
        (None, {"nodes": (node("n0", gpu_type=3),)}, "gpu_type must be a string"),
        (None, {"nodes": (node("n0", accepts_new="no"),)}, "accepts_new must be"),
        (None, {"nodes": (node(["n0"]),)}, "which is not a string"),
        (None, {"jobs": (job(7),)}, "which is not a string"),
    ],
)
def test_that_wrong_types_in_a_problem_are_rejected(
    part: str | None, fields: dict[str, Any], words: str
) -> None:
    good = problem(nodes(1), job("a"))
    if part is not None:
        fields = {part: dataclasses.replace(getattr(good, part), **fields)}
    with pytest.raises(InvalidProblemError, match=words):
        decide(dataclasses.replace(good, **fields))


@pytest.mark.parametrize(
    "fields", [{"account": ["x"]}, {"user": None}, {"pinned": 1}, {"rigid": "yes"}, {"partition_nodes": "n0"}]
)
def test_that_wrong_types_in_one_job_exclude_it(fields: dict[str, Any]) -> None:
    found = decide(problem(nodes(1), job("bad", **fields), job("good")))
    assert set(dict(found.excluded)) == {"bad"}
    assert sizes(found) == {"bad": 0, "good": 4}


def test_that_a_model_that_only_equals_a_checked_one_is_checked_itself() -> None:
    good = linear_model()
    limits = good.limits
    equal = {
        "float": dataclasses.replace(good, limits=dataclasses.replace(limits, initial_batch_size=5040.0)),
        "boolean": dataclasses.replace(good, max_nodes_seen=True),
        "integer": dataclasses.replace(good, limits=dataclasses.replace(limits, accumulation=0)),
        "time": dataclasses.replace(good, throughput=dataclasses.replace(THETA, alpha_g=False)),
    }
    cache = TableCache()
    decide(problem(nodes(1), job("good", model=good)), tables=cache)
    for name, model in equal.items():
        assert model == good
        found = decide(problem(nodes(1), job("good", model=good), job(name, model=model)), tables=cache)
        assert set(dict(found.excluded)) == {name}


def test_that_the_fast_check_of_a_job_accepts_only_what_the_full_check_accepts() -> None:
    numbers = (-1, 0, 1, 2, 2.5, 1e-7, 1e7, math.nan, math.inf, 10**13)
    odd: tuple[object, ...] = (*numbers, None, True, False, "x", (), frozenset({"x"}))
    names = {field.name for field in dataclasses.fields(ProblemJob)}
    names -= {"job_id", "current", "model", "models", "qos", "declaration_doubt", "model_doubt", "kind_note"}
    names -= {"share_note", "pinned_because", "epochs_done", "epochs_declared", "course"}
    num_accepted = 0
    allocations = ({}, {"n0": 2}, {"n9": 2}, {"n0": 0}, {"n0": True}, {"n0": 10**7}, {"n0": 1, "n1": 1})
    for allocation in allocations:
        whole = dataclasses.replace(job("a"), current=Allocation(tuple(allocation.items())))
        for name, value in ((name, value) for name in sorted(names) for value in odd):
            fast = dataclasses.replace(whole, **{name: value})
            full = dataclasses.replace(fast, epochs_done=1.0)  # a job with epochs has the full check only
            excluded = [list(find_exclusions(problem(nodes(2), one))) for one in (fast, full)]
            assert excluded[0] == excluded[1], (name, value)
            num_accepted += not excluded[0]
    assert num_accepted > 50
