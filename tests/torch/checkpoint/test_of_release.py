"""Checkpoints of version 0.1.0 are read, and the training goes on as if it had not been stopped."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.torch.checkpoint import of_release
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch

# The release's record of the run that wrote the checkpoint.
_RUN = (
    '{"run_number": 0, "resumed_from": null, "restart_count": 0, "host": "vm", "pid": 6562, '
    '"claimed_at": "2026-11-28T13:14:11.578214+00:00"}'
)


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Any]:
    with joined():
        return of_release.train()


# In the epoch that makes the warm-up, and in the one after it.
@pytest.mark.parametrize("num_steps", [5, 11])
def test_that_a_training_goes_on_from_a_checkpoint_of_the_release(
    tmp_path: Path, uninterrupted: dict[str, Any], num_steps: int
) -> None:
    content = Path(__file__).with_name(f"of_release_{num_steps}.pt").read_bytes()
    (tmp_path / "checkpoints").mkdir()
    name = f"000000-000001-{hashlib.sha256(content).hexdigest()}.pt"
    (tmp_path / "checkpoints" / name).write_bytes(content)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "000000.json").write_text(_RUN)
    with joined(tmp_path) as session:
        assert session.progress_state.num_steps == num_steps
        resumed = of_release.train()
    for key in ("weights", "rates", "batches"):
        assert resumed[key] == uninterrupted[key], key
    assert resumed["means"] == uninterrupted["means"][num_steps // 6 :]
