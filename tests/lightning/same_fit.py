"""Whether two fits were the same: steps, examples, losses, rates, logged values, weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

# Relative for losses, absolute for weights: sums in another order make the difference.
EXACT = (1e-4, 1e-5)


def assert_same_fit(
    result: dict[str, Any], reference: dict[str, Any], *, tolerance: tuple[float, float] = EXACT
) -> None:
    relative, absolute = tolerance
    for name in ("global_step", "epoch", "num_steps", "finished_epochs", "global_steps", "indices"):
        assert result[name] == reference[name], name
    assert {key: sorted(value) for key, value in result["steps"].items()} == {
        key: sorted(value) for key, value in reference["steps"].items()
    }
    assert result["losses"] == pytest.approx(reference["losses"], rel=relative)
    for name, weight in reference["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=relative, atol=absolute)
    assert result["rates"] == pytest.approx(reference["rates"], rel=1e-9)
    for (epoch, values), (epoch_0, values_0) in zip(result["history"], reference["history"], strict=True):
        assert epoch == epoch_0
        assert values == pytest.approx(values_0, rel=relative)
