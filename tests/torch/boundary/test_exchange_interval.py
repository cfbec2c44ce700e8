"""How many boundaries share an exchange."""

from __future__ import annotations

import pytest

from pollux_slurm.torch.boundary.exchange_interval import ExchangeInterval

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("step_s", "expected"), [(0.0, 1), (0.001, 16), (0.05, 5), (0.1, 2), (0.2, 1), (30.0, 1)]
)
def test_that_a_quarter_of_a_second_shares_one_exchange(step_s: float, expected: int) -> None:
    now = [100.0]
    spacing = ExchangeInterval(lambda: now[0])
    gaps, since = [], 0
    for _ in range(100):
        now[0] += step_s
        since += 1
        if spacing.is_due():
            gaps.append(since)
            spacing.set_interval(spacing.record_exchange())
            since = 0
    assert gaps[:50] == [1] * 50
    assert set(gaps[52:]) <= {expected}
    assert gaps[51] == expected


def test_that_a_long_pause_brings_the_next_exchange_soon() -> None:
    now = [0.0]
    spacing = ExchangeInterval(lambda: now[0])
    for _ in range(60):
        now[0] += 0.01
        if spacing.is_due():
            spacing.set_interval(spacing.record_exchange())
    now[0] += 1000.0
    while not spacing.is_due():
        pass
    assert spacing.record_exchange() == 1
