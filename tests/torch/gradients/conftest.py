"""Tests of few steps measure one replica's gradient noise more often than a training does."""

from __future__ import annotations

import pytest

from pollux_slurm.torch.gradients.measured_steps import ProbeSchedule


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProbeSchedule, "share", 0.1)
