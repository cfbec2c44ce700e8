"""The files that an anchor leaves for its wings and for its own next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux_slurm.errors import LaunchError
from pollux_slurm.launch.anchor.order import Order, Starts

ORDER = Order(
    command=("python", "train.py"),
    directory="/work",
    anchor_id="12",
    address="10.0.0.1",
    port=4711,
    link_secret="a",
    run_secret="b",
    num_processes=None,
    kill_after_s=15.0,
    wrapper=(),
    srun_arguments=("--container-image=x",),
)


def test_that_an_order_is_read_as_it_was_written_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "p.order"
    ORDER.write(file)
    assert Order.read(file) == ORDER
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    with pytest.raises(LaunchError, match=r"others may read or write .*; run: chmod go-rwx"):
        Order.read(file)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"command": 1}', "[" * 100_000])
def test_that_a_damaged_order_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "p.order"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(LaunchError, match="the anchor's order cannot be read"):
        Order.read(file)


def test_that_starts_are_counted_over_runs_of_the_anchor(tmp_path: Path) -> None:
    file = tmp_path / "p.starts"
    assert Starts.read(file) == Starts(count=0, trained_s=0.0)
    Starts(count=3, trained_s=12.5).write(file)
    assert Starts.read(file) == Starts(count=3, trained_s=12.5)


@pytest.mark.parametrize(
    "content",
    [
        *("", "damaged", "{}", "[" * 100_000),
        *('{"count": null, "trained_s": 1.0}', '{"count": Infinity, "trained_s": 1.0}'),
    ],
)
def test_that_starts_that_cannot_be_read_are_not_counted_anew(tmp_path: Path, content: str) -> None:
    """Two starts with one number would take each other's processes for their own."""
    file = tmp_path / "p.starts"
    file.write_text(content)
    with pytest.raises(LaunchError, match=r'write {"count": 3, .* and requeue the job with scontrol requeue'):
        Starts.read(file)
    file.unlink()
    file.mkdir()
    with pytest.raises(LaunchError, match="Is a directory"):
        Starts.read(file)
