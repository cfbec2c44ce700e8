"""The step profile: medians by situation, bounded, restorable."""

from __future__ import annotations

import math

import pytest

from pollux_slurm.agent.measure.profile import Situation, StepProfile
from tests.agent.steps import step

HERE = Situation(num_nodes=1, num_gpus=2, atomic_batch_size=16)


def test_that_outliers_do_not_count() -> None:
    profile = StepProfile()
    for grad, last in [(0.1, 0.2), (0.1, 0.2), (50.0, 90.0), (0.1, 0.2), (0.1, 0.2)]:
        profile.record(HERE, step(grad, last))
    (times,) = profile.medians()
    assert (times.situation, times.micro_batch_s, times.last_time_s, times.count) == (HERE, 0.1, 0.2, 5)


def test_that_old_steps_are_forgotten() -> None:
    at = [0.0]
    profile = StepProfile(now=lambda: at[0])
    for time_s in [10.0] * 200 + [20.0] * 97:
        at[0] += time_s
        profile.record(HERE, step(time_s, time_s))
    assert profile.medians()[0].micro_batch_s == 20.0


def test_that_a_busy_minute_hardly_changes_the_medians() -> None:
    at = [0.0]
    profile = StepProfile(now=lambda: at[0])

    def train(step_s: float, *, until_s: float) -> None:
        while at[0] < until_s:
            at[0] += step_s
            profile.record(HERE, step(step_s, step_s))

    train(0.125, until_s=150.0)
    train(0.5, until_s=210.0)
    assert profile.medians()[0].last_time_s == 0.125
    # A node that stays slow shows within minutes.
    train(0.5, until_s=480.0)
    assert profile.medians()[0].last_time_s == 0.5


def test_that_the_first_steps_all_count_also_when_the_clock_is_set_back() -> None:
    at = [1000.0]
    profile = StepProfile(now=lambda: at[0])
    for _ in range(20):
        profile.record(HERE, step(1.0, 1.0))
    assert (profile.medians()[0].count, profile.version) == (8, 8)
    at[0] = 10.0
    profile.record(HERE, step(1.0, 1.0))
    assert profile.medians()[0].count == 9


def test_that_a_key_is_confirmed_after_two_minutes_of_steps() -> None:
    at = [0.0]
    profile = StepProfile(now=lambda: at[0])
    confirmed_at = None
    while confirmed_at is None:
        at[0] += 0.5
        profile.record(HERE, step(0.5, 0.5))
        if profile.medians()[0].confirmed:
            confirmed_at = at[0]
    assert confirmed_at == 124.0


def test_that_of_two_steps_the_shorter_one_is_the_median() -> None:
    # The first steps in a situation are longer (compilation, caches), never shorter.
    profile = StepProfile()
    for time_s in (60.0, 0.5):
        profile.record(HERE, step(time_s, time_s))
    assert profile.medians()[0].last_time_s == 0.5


def test_that_a_key_measured_long_before_the_latest_weighs_less_but_not_nothing() -> None:
    at = [0.0]
    profile = StepProfile(now=lambda: at[0])
    for hours, size in ((0, 1), (100, 2), (112, 3), (124, 4)):
        at[0] = hours * 3600.0
        situation = Situation(num_nodes=1, num_gpus=1, atomic_batch_size=size)
        for _ in range(8):
            profile.record(situation, step(1.0, 1.0))
    assert [times.weight for times in profile.medians()] == pytest.approx([0.05, 0.25, 0.5, 1.0])


def test_that_types_of_gpus_are_kept_apart() -> None:
    profile = StepProfile()
    for gpu_type, time_s in (("A100", 1.0), ("T4", 4.0)):
        situation = Situation(num_nodes=1, num_gpus=2, atomic_batch_size=16, gpu_type=gpu_type)
        profile.record(situation, step(time_s, time_s))
    assert [(t.situation.gpu_type, t.micro_batch_s) for t in profile.medians()] == [
        ("A100", 1.0),
        ("T4", 4.0),
    ]


def test_that_few_steps_weigh_less() -> None:
    profile = StepProfile()
    profile.record(HERE, step(1.0, 1.0))
    assert profile.medians()[0].weight == 1 / 8
    for _ in range(20):
        profile.record(HERE, step(1.0, 1.0))
    assert profile.medians()[0].weight == 1.0


@pytest.mark.parametrize(
    ("start_s", "count", "away_s", "expired"),
    [
        (5.0, 12, 500.0, False),
        (5.0, 12, 700.0, True),
        # Two and a half minutes, that agree to be slow, last two and a half times as long.
        (5.0, 30, 1400.0, False),
        (5.0, 30, 1600.0, True),
        (5.0, 191, 9400.0, False),
        (5.0, 191, 9700.0, True),
        (5.0, 192, 70_000.0, False),
        (250.0, 12, 2400.0, False),
        (250.0, 12, 2600.0, True),
    ],
)
def test_that_a_median_expires_after_ten_minutes_and_ten_starts_for_each_minute_that_it_spans(
    start_s: float, count: int, away_s: float, expired: bool
) -> None:
    at = [0.0]
    profile = StepProfile(now=lambda: at[0])
    profile.set_start_cost(start_s)
    for _ in range(count):
        profile.record(HERE, step(1.0, 1.0))
        at[0] += 5.0
    at[0] += away_s - 5.0
    elsewhere = Situation(num_nodes=2, num_gpus=8, atomic_batch_size=16)
    profile.record(elsewhere, step(1.0, 1.0))
    assert [(times.situation, times.expired) for times in profile.medians()] == [
        (HERE, expired),
        (elsewhere, False),
    ]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_that_an_impossible_time_is_dropped(bad: float) -> None:
    profile = StepProfile()
    profile.record(HERE, step(bad, 1.0))
    profile.record(HERE, step(1.0, bad))
    assert profile.medians() == ()
    assert profile.version == 0


def test_that_the_number_of_keys_is_bounded_and_the_latest_stay() -> None:
    profile = StepProfile()
    for size in range(1, 400):
        profile.record(Situation(num_nodes=1, num_gpus=1, atomic_batch_size=size), step(1, 1))
    sizes = [times.situation.atomic_batch_size for times in profile.medians()]
    assert sizes == list(range(144, 400))


def test_that_a_restored_profile_equals_the_saved_one() -> None:
    profile, other = StepProfile(), StepProfile()
    profile.record(HERE, step(0.25, 0.5))
    profile.record(Situation(num_nodes=2, num_gpus=5, atomic_batch_size=3, gpu_type="T4"), step(0.125, 1.0))
    other.load_state_dict(profile.state_dict())
    assert other.medians() == profile.medians()
    assert other.most_seen() == (5, 2)
