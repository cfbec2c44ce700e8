"""Learning-rate factors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm import goodput
from pollux_slurm.model import GradientStatistics
from pollux_slurm.torch.scaling import AdaScale, LinearScale, NoScale, SqrtScale, default_rule, gain


def test_that_the_gain_lies_between_one_and_the_scale() -> None:
    # var = 3, sqr = 1, scale 4: (3 + 1)/(3/4 + 1) = 16/7
    assert gain(GradientStatistics(sqr=1.0, var=3.0), 4.0) == pytest.approx(16 / 7)
    assert gain(GradientStatistics(sqr=1.0, var=0.0), 4.0) == 1.0
    assert gain(GradientStatistics(sqr=0.0, var=3.0), 4.0) == 4.0


def test_that_the_gain_is_one_while_nothing_is_known() -> None:
    assert gain(None, 8.0) == 1.0
    assert gain(GradientStatistics(sqr=0.0, var=0.0), 8.0) == 1.0


norms = st.floats(0, 1e6)


@given(sqr=norms, var=norms, initial=st.integers(1, 100), factor=st.integers(1, 50))
def test_that_the_gain_is_the_goodput_models_own(sqr: float, var: float, initial: int, factor: int) -> None:
    statistics = GradientStatistics(sqr=sqr, var=var)
    ours = gain(statistics, float(factor))
    assert ours == pytest.approx(float(goodput.gain(statistics, initial, initial * factor)))


def test_that_each_rule_gives_its_factor() -> None:
    factors = [
        rule.factor(scale=9.0, gain=2.5) for rule in (AdaScale(), LinearScale(), SqrtScale(), NoScale())
    ]
    assert factors == [2.5, 9.0, 3.0, 1.0]


@pytest.mark.parametrize(("name", "kind"), [("SGD", AdaScale), ("AdamW", SqrtScale), ("Adam", SqrtScale)])
def test_that_adam_like_optimizers_default_to_the_square_root(name: str, kind: type) -> None:
    assert type(default_rule(name)) is kind
