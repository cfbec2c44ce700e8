"""Losses at equal examples, from TensorBoard's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from pollux_slurm.errors import UsageError
from pollux_slurm.report.tracked_loss import loss_part, read_losses


def write(folder: Path, *rows: tuple[str, int, float]) -> None:
    """Write a file of scalars: (tag, step, value)."""
    writer = EventFileWriter(str(folder))
    for tag, step, value in rows:
        writer.add_event(
            Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)]))
        )
    writer.close()


def tracked(rows: list[tuple[int, int, float]], *, prefix: str = "") -> list[tuple[str, int, float]]:
    """Return what a tracker writes of (step, batch size, loss)."""
    sizes = [(f"{prefix}pollux/batch_size", step, float(size)) for step, size, _ in rows]
    return [*sizes, *((f"{prefix}loss", step, loss) for step, _, loss in rows)]


def test_that_a_loss_is_at_the_examples_that_the_steps_before_it_had(tmp_path: Path) -> None:
    write(tmp_path, *tracked([(10, 8, 3.0), (20, 8, 2.5), (30, 32, 2.0)]))
    assert read_losses(tmp_path) == ((80.0, 3.0), (160.0, 2.5), (480.0, 2.0))


def test_that_a_run_goes_on_in_the_next_file_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path, *tracked([(10, 8, 3.0)], prefix="train/"))
    write(tmp_path, *tracked([(20, 16, 2.0)], prefix="train/"))
    assert read_losses(tmp_path) == ((80.0, 3.0), (240.0, 2.0))


def test_that_jobs_are_compared_where_all_have_been() -> None:
    part = loss_part(["2", "8"], [((100.0, 3.0), (200.0, 2.0), (900.0, 1.0)), ((150.0, 2.5), (250.0, 1.5))])
    (data,) = part.tables
    assert data.rows == (("2", 900.0, 1.0, 2.0), ("8", 250.0, 1.5, 1.5))
    assert part.text.startswith("All of these jobs have trained on 250 examples")


def test_that_files_without_a_trackers_batch_sizes_are_refused(tmp_path: Path) -> None:
    write(tmp_path, ("loss", 1, 1.0))
    with pytest.raises(UsageError, match="has no loss and batch sizes of a Tracker; its scalars: loss"):
        read_losses(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        read_losses(tmp_path / "missing")
