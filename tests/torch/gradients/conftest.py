"""Which steps one replica measures must not depend on how fast the tests' machine is."""

from __future__ import annotations

import pytest

from pollux_slurm.torch.gradients.reducer import GradientReducer


@pytest.fixture(autouse=True)
def _known_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a measurement cost a tenth of a step."""

    def set_cost(self: GradientReducer, cost: float | None) -> None:
        del cost
        self.half_schedule.cost = self.split_schedule.cost = 0.1

    monkeypatch.setattr(GradientReducer, "set_probe_cost", set_cost)
