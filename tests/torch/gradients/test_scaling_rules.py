"""Learning-rate factors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux_slurm import goodput
from pollux_slurm.errors import UsageError
from pollux_slurm.model import GradientStatistics
from pollux_slurm.torch.gradients.scaling_rules import (
    AdamScale,
    AdaScale,
    LEGWScale,
    LinearScale,
    NoScale,
    ScalingMoment,
    ScalingRule,
    SqrtScale,
    default_rule,
    gain,
)


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
    rules: tuple[ScalingRule, ...] = (AdaScale(), LinearScale(), SqrtScale(), NoScale(), AdamScale())
    moment = ScalingMoment(scale=9.0, gain=4.0, progress=5.0, batch_size=90)
    assert [rule.factor_at(moment) for rule in rules] == [4.0, 9.0, 3.0, 1.0, 2.0]


def at(scale: float, progress: float) -> ScalingMoment:
    """Return a moment at M0 = 10, where every example counts in full."""
    return ScalingMoment(scale=scale, gain=scale, progress=progress, batch_size=round(10 * scale))


def test_that_legw_warms_up_for_so_many_epochs_and_longer_at_a_larger_batch() -> None:
    rule = LEGWScale(base_warmup_epochs=2, data_size=100)
    # 20 steps of 10 examples at M0; at four times the batch, four times as many examples.
    assert rule.factor_at(at(1.0, 0.0)) == pytest.approx(1 / 20)
    assert rule.factor_at(at(1.0, 9.0)) == pytest.approx(1 / 2)
    assert rule.factor_at(at(1.0, 19.0)) == 1.0
    assert rule.factor_at(at(4.0, 36.0)) == pytest.approx(2.0 * 40 / 80)
    assert rule.factor_at(at(4.0, 500.0)) == 2.0


def test_that_legw_without_warm_up_is_the_square_root() -> None:
    assert LEGWScale(0, 100).factor_at(at(4.0, 0.0)) == 2.0


@pytest.mark.parametrize(("epochs", "size"), [(-1.0, 10), (float("nan"), 10), (1.0, 0)])
def test_that_a_warm_up_that_cannot_be_is_refused(epochs: float, size: int) -> None:
    with pytest.raises(UsageError, match="LEGWScale needs"):
        LEGWScale(epochs, size)


def test_that_a_rule_of_ones_own_may_look_at_the_moment() -> None:
    class Late(ScalingRule):
        def factor(self, *, scale: float, gain: float) -> float:
            return 3.0

        def factor_at(self, moment: ScalingMoment) -> float:
            return super().factor_at(moment) if moment.progress > 10 else 1.0

    assert [Late().factor_at(at(1.0, progress)) for progress in (5.0, 11.0)] == [1.0, 3.0]


@pytest.mark.parametrize(("name", "kind"), [("SGD", AdaScale), ("AdamW", SqrtScale), ("Adam", SqrtScale)])
def test_that_adam_like_optimizers_default_to_the_square_root(name: str, kind: type) -> None:
    assert type(default_rule(name)) is kind
