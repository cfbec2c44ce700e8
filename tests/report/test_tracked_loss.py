"""Losses at equal examples, from TensorBoard's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from torch.utils.tensorboard import SummaryWriter

from pollux_slurm.errors import UsageError
from pollux_slurm.report.tracked_loss import loss_part, read_losses


def write(folder: Path, rows: list[tuple[int, int, float]], *, prefix: str = "") -> Path:
    """Write (step, batch size, loss) as a tracker does."""
    with SummaryWriter(str(folder)) as writer:  # type: ignore[no-untyped-call]
        for step, batch_size, loss in rows:
            writer.add_scalar(f"{prefix}loss", loss, step)  # type: ignore[no-untyped-call]
            writer.add_scalar(f"{prefix}pollux/batch_size", batch_size, step)  # type: ignore[no-untyped-call]
    return folder


def test_that_a_loss_is_at_the_examples_that_the_steps_before_it_had(tmp_path: Path) -> None:
    folder = write(tmp_path, [(10, 8, 3.0), (20, 8, 2.5), (30, 32, 2.0)])
    assert read_losses(folder) == ((80.0, 3.0), (160.0, 2.5), (480.0, 2.0))


def test_that_a_run_goes_on_in_the_next_file_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path, [(10, 8, 3.0)], prefix="train/")
    folder = write(tmp_path, [(20, 16, 2.0)], prefix="train/")
    assert read_losses(folder) == ((80.0, 3.0), (240.0, 2.0))


def test_that_jobs_are_compared_where_all_have_been() -> None:
    part = loss_part(["2", "8"], [((100.0, 3.0), (200.0, 2.0), (900.0, 1.0)), ((150.0, 2.5), (250.0, 1.5))])
    (data,) = part.tables
    assert data.rows == (("2", 900.0, 1.0, 2.0), ("8", 250.0, 1.5, 1.5))
    assert part.text.startswith("All of these jobs have trained on 250 examples")


def test_that_files_without_a_trackers_batch_sizes_are_refused(tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path)) as writer:  # type: ignore[no-untyped-call]
        writer.add_scalar("loss", 1.0, 1)  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match="has no loss and batch sizes of a Tracker; its scalars: loss"):
        read_losses(tmp_path)
    with pytest.raises(UsageError, match="its scalars: none"):
        read_losses(tmp_path / "missing")
