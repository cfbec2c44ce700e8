"""Facts about nodes are cached while the nodes stay the same, and computed again when they change."""

from __future__ import annotations

import dataclasses
import random

import pytest

from pollux_slurm.errors import InvalidProblemError
from pollux_slurm.model import Problem
from pollux_slurm.policy import NodeFactsCache, decide
from pollux_slurm.policy.problem.node_facts import NodeFacts
from tests.policy.builders import job, node, nodes, problem
from tests.policy.problems import random_problem, with_everything


def answer(one: Problem, known: NodeFactsCache | None = None) -> object:
    return dataclasses.replace(decide(one, nodes=known, effort=0.05), times_s=())


def test_that_facts_have_types_sizes_and_sets_of_nodes() -> None:
    facts = NodeFacts((node("a", 4, gpu_type="v"), node("b", 0, gpu_type="w"), node("c", 2), node("d", 2)))
    assert facts.kinds == ("", "v")
    assert facts.sizes == [[2, 2], [4]]
    assert facts.kind.tolist() == [1, 0, 0, 0]
    assert facts.of_kind == [0b1110, 0b0001]
    assert facts.at_least == [0b1111, 0b1101, 0b1101, 0b0001, 0b0001, 0]


def test_that_cached_facts_change_no_answer() -> None:
    known = NodeFactsCache()
    for seed in range(8):  # other nodes each time, then the same nodes with other jobs
        rng = random.Random(seed)
        one = with_everything(rng, random_problem(rng, num_nodes=3 + seed % 3, num_gpus=4, num_jobs=6))
        other = dataclasses.replace(one, jobs=one.jobs[::2])
        assert answer(one, known) == answer(one)
        assert answer(other, known) == answer(other)


def test_that_a_node_drained_since_the_last_problem_takes_no_new_jobs() -> None:
    known, one = NodeFactsCache(), problem(nodes(1), job("a"))
    assert decide(one, nodes=known).allocation("a")
    drained = dataclasses.replace(one, nodes=(dataclasses.replace(one.nodes[0], accepts_new=False),))
    assert not decide(drained, nodes=known).allocation("a")
    assert decide(one, nodes=known).allocation("a")


def test_that_an_overcommitted_node_leaves_the_cached_facts_unchanged() -> None:
    known = NodeFactsCache()
    one = problem(nodes(1), job("a"))
    crowded = problem(one.nodes, job("b", {one.nodes[0].name: 6}), job("a"))
    before = answer(one, known)
    assert not decide(crowded, nodes=known).allocation("a")
    assert answer(one, known) == before


def test_that_nodes_that_only_equal_cached_ones_are_checked() -> None:
    known, one = NodeFactsCache(), problem(nodes(1), job("a"))
    decide(one, nodes=known)
    odd = dataclasses.replace(one.nodes[0], num_gpus=True)  # equal to 1
    with pytest.raises(InvalidProblemError, match="num_gpus"):
        decide(dataclasses.replace(one, nodes=(odd,)), nodes=known)
