"""Random sequences of joins, leaves, restarts and kills lose no sample, and change no weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch.regroup import script
from tests.torch.regroup.random_sequences import run_sequence

pytestmark = pytest.mark.torch


def test_that_a_random_sequence_under_accumulation_changes_nothing(tmp_path: Path) -> None:
    # Rank 0 leaves, the run is stopped in a resize, and starts again with one replica, which two others join.
    run_sequence(tmp_path, "accumulation", 4, {})


@pytest.mark.full
def test_that_fifty_random_sequences_of_all_kinds_of_scripts_change_nothing(tmp_path: Path) -> None:
    references: dict[str, Any] = {}
    names = list(script.VARIANTS)
    for seed in range(54):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run_sequence(folder, names[seed % len(names)], seed, references)
