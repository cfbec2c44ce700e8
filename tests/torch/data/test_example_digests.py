"""Digests of raw examples: equal for equal content, and for what has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from pollux_slurm.torch.data.example_digests import field_digests

pytestmark = pytest.mark.torch


@dataclass
class Pair:
    left: int
    right: Any


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (True, 1),
        ("a", b"a"),
        ("a", "b"),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
        (torch.tensor([1, 2]), torch.tensor([1, 2], dtype=torch.int32)),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        (np.array([1, 2]), np.array([1, 3])),
        (np.array([1.0, 2.0]), np.array([1.0, 3.0])),
        (Pair(1, 2), Pair(1, 3)),
        ({"x": {"y": 1}}, {"x": {"y": 2}}),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0])),
        (torch.ones(2, dtype=torch.complex64), torch.ones(2, dtype=torch.complex64) * 1j),
    ],
)
def test_that_other_content_has_another_digest(one: Any, other: Any) -> None:
    assert field_digests([one]) == field_digests([one])
    assert field_digests([one]) != field_digests([other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: 1, lambda: 2),
        (object(), object()),
        ("/scratch/1/a", "/scratch/2/b"),
        (np.array([object()]), np.array([object()])),
        (Pair(1, object()), Pair(1, object())),
        (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse()),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        (torch.ones(4, 4)[::2, ::2], torch.ones(2, 2)),
        (np.arange(4.0)[::-1], np.arange(4.0)[::-1].copy()),
        (torch.empty(0), torch.empty(0)),
    ],
)
def test_that_what_is_the_same_or_has_no_stable_content_has_one_digest(one: Any, other: Any) -> None:
    assert field_digests([one]) == field_digests([other])


def test_that_each_field_has_its_own_and_tells_whether_it_varies() -> None:
    digests = field_digests([(torch.tensor([1.0]), 7), (torch.tensor([2.0]), 7)])
    assert {name: varies for name, (_, _, varies) in digests.items()} == {"0": True, "1": False}
    assert list(field_digests([{"x": 1}])) == ["'x'"]
    assert field_digests([]) == {}


def test_that_only_the_first_few_examples_count() -> None:
    assert field_digests([*range(8), 8]) == field_digests([*range(8), 9])


def test_that_an_object_whose_content_cannot_be_read_counts_with_its_type() -> None:
    class Lazy:
        def __getattr__(self, name: str) -> object:
            return lambda *_: None

    assert field_digests([(Lazy(), 1)]) == field_digests([(Lazy(), 1)])
    assert field_digests([(Lazy(), 1)]) != field_digests([(Lazy(), 2)])
