"""What is told of the space for checkpoints at a submission."""

from __future__ import annotations

from pathlib import Path

from pollux_slurm.launch.submit.checkpoint_budget import checkpoint_budget


def test_that_the_size_is_that_of_the_newest_checkpoint_in_the_folder(tmp_path: Path) -> None:
    files = tmp_path / "job" / "checkpoints"
    assert f"3 times the size of one in {tmp_path}/job, where " in checkpoint_budget(
        tmp_path / "job", num_kept=2
    )
    files.mkdir(parents=True)
    (files / f"000000-000002-{'a' * 64}.pt").write_bytes(bytes(5_000_000))
    (files / f"000000-000001-{'b' * 64}.pt").write_bytes(bytes(1000))
    told = checkpoint_budget(tmp_path / "job", num_kept=1)
    assert f"2 times the size of one (5.0 MB) in {tmp_path}/job, where " in told
    assert "are free" in told


def test_that_a_disk_without_room_for_another_checkpoint_is_told(tmp_path: Path) -> None:
    files = tmp_path / "checkpoints"
    files.mkdir()
    with (files / f"000000-000002-{'a' * 64}.pt").open("wb") as file:
        file.truncate(1 << 43)  # sparse: larger than the disk
    told = checkpoint_budget(tmp_path, num_kept=2)
    assert told.endswith("where there is no room for another one: without it the job cannot be moved")
