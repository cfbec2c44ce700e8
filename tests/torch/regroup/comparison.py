"""Compare a training with one that was never moved."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from tests.torch.regroup.script import Variant
from tests.torch.training.test_resume import EXACT

# Each replica's gradient is rounded to 8 bits: unmoved trainings on 1 and on 6 replicas differ by half of it.
DIVERGED = (0.2, 0.2)


def assert_same(result: dict[str, Any], reference: dict[str, Any], variant: Variant) -> None:
    """Compare a training with one that was never moved."""
    relative, absolute = DIVERGED if variant.kind == "bfloat16" else EXACT
    by_epoch: dict[str, Counter[int]] = {}
    expected: dict[str, Counter[int]] = {}
    for found, into in ((result, by_epoch), (reference, expected)):
        for key, indices in found["steps"].items():
            into.setdefault(key.partition("/")[0], Counter()).update(indices)
    assert by_epoch == expected, "samples lost or doubled"
    if variant.max_batch_size is not None:
        return
    assert result["num_steps"] == reference["num_steps"]
    assert {key: sorted(value) for key, value in result["steps"].items()} == {
        key: sorted(value) for key, value in reference["steps"].items()
    }
    for name, weight in reference["weights"].items():
        torch.testing.assert_close(result["weights"][name], weight, rtol=relative, atol=absolute)
    assert result["losses"] == pytest.approx(reference["losses"], rel=relative)
    assert result["lr"] == pytest.approx(reference["lr"])
    assert result["progress"] == pytest.approx(reference["progress"])
    # A member that has joined knows its own epochs only.
    epochs = {entry[0]: entry for entry in reference["history"]}
    # A restart in the middle of an epoch runs what comes before its loop again, with the weights there.
    for entry in result["history"][variant.evaluation == "before" :]:
        assert entry == pytest.approx(epochs[entry[0]], rel=relative, abs=absolute)
