"""Splitting global batches into micro-batches: exact, even, complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm.model import BatchChoice, BatchLimits
from pollux_slurm.torch.data.micro_batches import (
    first_choice,
    plan_batches,
    plan_epoch,
    plan_step,
    split_evenly,
)


def choice_of(batch: int, replicas: int, num_micro_batches: int) -> BatchChoice:
    return BatchChoice(
        global_batch_size=batch,
        atomic_batch_size=-(-batch // (replicas * num_micro_batches)),
        accumulation_steps=num_micro_batches - 1,
    )


def test_that_sixteen_examples_go_to_three_replicas_as_6_5_5() -> None:
    plans = [plan_step(32, 100, choice_of(16, 3, 1), num_replicas=3, rank=rank) for rank in range(3)]
    assert [(plan.micro_batches[0].start, plan.micro_batches[0].size) for plan in plans] == [
        (32, 6),
        (38, 5),
        (43, 5),
    ]
    assert [plan.micro_batches[0].weight for plan in plans] == [6 / 16, 5 / 16, 5 / 16]
    assert {plan.num_nonempty for plan in plans} == {3}


def test_that_accumulation_cuts_each_replicas_share_again() -> None:
    plan = plan_step(0, 100, choice_of(10, 2, 2), num_replicas=2, rank=1)
    assert [(p.start, p.size, p.is_last) for p in plan.micro_batches] == [(5, 3, False), (8, 2, True)]
    assert plan.num_nonempty == 4


def test_that_a_short_last_batch_takes_only_the_micro_batches_it_needs() -> None:
    plan = plan_step(90, 5, choice_of(32, 2, 4), num_replicas=2, rank=0)
    assert [(p.start, p.size) for p in plan.micro_batches] == [(90, 3)]
    assert not plan.is_full


def test_that_a_replica_without_examples_gets_padding_of_weight_zero() -> None:
    plan = plan_step(7, 1, choice_of(8, 4, 1), num_replicas=4, rank=2)
    only = plan.micro_batches[0]
    assert only.is_padding
    assert (only.weight, list(only.positions())) == (0.0, [7])


@pytest.mark.parametrize(
    ("remaining", "replicas", "shares", "padding"),
    [
        (5, 4, (3, 2, 0, 0), 2),
        (3, 2, (3, 0), 2),
        (2, 4, (2, 0, 0, 0), 2),
        (7, 3, (3, 2, 2), 2),
        (1, 2, (1, 0), 1),  # the script's own batch is a single example, too
    ],
)
def test_that_no_replica_gets_a_single_example_where_pairs_fit(
    remaining: int, replicas: int, shares: tuple[int, ...], padding: int
) -> None:
    choice = choice_of(16, replicas, 1)
    plans = [
        plan_step(0, remaining, choice, num_replicas=replicas, rank=rank, needs_pairs=lambda: True)
        for rank in range(replicas)
    ]
    assert tuple(plan.micro_batches[0].size for plan in plans) == shares
    positions = [len(plan.micro_batches[0].positions()) for plan in plans]
    assert positions == [share or padding for share in shares]


def test_that_shares_are_even_where_no_pairs_are_needed() -> None:
    """Also those of whole batches with fewer than two examples for each replica."""
    plans = [plan_step(0, 6, choice_of(6, 4, 1), num_replicas=4, rank=rank) for rank in range(4)]
    assert [plan.micro_batches[0].size for plan in plans] == [2, 2, 1, 1]


def test_that_pairs_are_asked_for_only_where_they_matter() -> None:
    def fails() -> bool:
        raise AssertionError

    assert plan_step(0, 8, choice_of(8, 4, 1), num_replicas=4, rank=0, needs_pairs=fails).num_nonempty == 4


def test_that_a_local_batch_of_one_stays_one() -> None:
    choice = choice_of(4, 4, 1)
    plans = [
        plan_step(0, 4, choice, num_replicas=4, rank=rank, needs_pairs=lambda: True) for rank in range(4)
    ]
    assert [plan.micro_batches[0].size for plan in plans] == [1, 1, 1, 1]


def test_that_a_short_list_of_a_batch_sampler_is_shared_in_pairs_too() -> None:
    plans = [
        list(
            plan_batches(
                0, [8, 11], typical=8, largest=None, num_replicas=2, rank=rank, needs_pairs=lambda: True
            )
        )[1]
        for rank in range(2)
    ]
    assert [plan.micro_batches[0].size for plan in plans] == [3, 0]


sizes = st.integers(1, 40)


@given(
    length=st.integers(1, 150), batch=sizes, replicas=st.integers(1, 9), num_micro_batches=st.integers(1, 5)
)
def test_that_every_rank_takes_equally_many_micro_batches_and_together_each_position_once(
    length: int, batch: int, replicas: int, num_micro_batches: int
) -> None:
    choice = choice_of(batch, replicas, num_micro_batches)
    ranks = [
        list(plan_epoch(0, length, choice, num_replicas=replicas, rank=rank, drop_last=False))
        for rank in range(replicas)
    ]
    visited = []
    for steps in zip(*ranks, strict=True):
        assert len({len(step.micro_batches) for step in steps}) == 1
        cells = [p for step in steps for p in step.micro_batches if not p.is_padding]
        assert steps[0].num_nonempty == len(cells)
        assert sum(p.weight for p in cells) == pytest.approx(1.0)
        assert all(p.size <= choice.atomic_batch_size for p in cells)
        visited += [position for p in cells for position in p.positions()]
    assert sorted(visited) == list(range(length))


@given(data=st.data(), length=st.integers(1, 120))
def test_that_changing_size_at_any_step_loses_and_repeats_nothing(data: st.DataObject, length: int) -> None:
    position, visited = 0, []
    while position < length:
        replicas, num_micro_batches, batch = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 3), sizes))
        choice = choice_of(batch, replicas, num_micro_batches)
        plans = [
            plan_step(position, length - position, choice, num_replicas=replicas, rank=rank)
            for rank in range(replicas)
        ]
        visited += [
            i for plan in plans for p in plan.micro_batches if not p.is_padding for i in p.positions()
        ]
        position = plans[0].end
    assert sorted(visited) == list(range(length))


def test_that_drop_last_leaves_out_the_short_batch() -> None:
    steps = list(plan_epoch(0, 10, choice_of(4, 1, 1), num_replicas=1, rank=0, drop_last=True))
    assert [(step.start, step.end) for step in steps] == [(0, 4), (4, 8)]


def test_that_even_splits_differ_by_at_most_one() -> None:
    assert split_evenly(7, 3) == (3, 2, 2)
    assert split_evenly(2, 4) == (1, 1, 0, 0)


@given(
    initial=st.integers(1, 300),
    factor=st.integers(1, 8),
    low=st.integers(1, 40),
    span=st.integers(0, 100),
    replicas=st.integers(1, 16),
    wanted=st.none() | st.integers(1, 3000),
)
def test_that_the_first_batch_is_within_its_limits(
    initial: int, factor: int, low: int, span: int, replicas: int, wanted: int | None
) -> None:
    limits = BatchLimits(
        initial_batch_size=initial, max_batch_size=initial * factor, min_atomic=low, max_atomic=low + span
    )
    choice = first_choice(limits, replicas, wanted=wanted)
    assert initial <= choice.global_batch_size <= initial * factor
    assert choice.atomic_batch_size <= low + span


def test_that_a_fixed_batch_stays_what_the_user_asked_for_whatever_was_used_before() -> None:
    choice = first_choice(BatchLimits(initial_batch_size=50), 7, wanted=400)
    assert choice == BatchChoice(global_batch_size=50, atomic_batch_size=8, accumulation_steps=0)
