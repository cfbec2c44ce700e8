"""The truth of an application, read from traces."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from pollux_slurm.errors import TraceError
from pollux_slurm.simulator import read_application
from tests.simulator.builders import made_application, write_traces


def test_that_a_measured_placement_is_found_in_any_rotation(tmp_path: Path) -> None:
    made = made_application(tmp_path)
    time = made.step_time((3, 1), 9)
    assert (time.step_s, time.sync_s, time.micro_batch_s) == pytest.approx((0.5, 0.1, 0.4))


def test_that_another_placement_is_interpolated(tmp_path: Path) -> None:
    """Half way between 8 nodes (0.8 s) and 16 (1.6 s); beyond 16 nodes it is as on 16."""
    made = made_application(tmp_path)
    assert made.step_time((4,) * 12, 8).step_s == pytest.approx(1.2)
    assert made.step_time((4,) * 16, 8).step_s == pytest.approx(1.6)


def test_that_more_gpus_than_any_measured_node_has_are_as_slow_as_on_several_nodes(tmp_path: Path) -> None:
    """Four a node were measured: eight on one are as 4 + 4, six and eight as 4 + 2 + 4 + 4."""
    made = made_application(tmp_path)
    for wide, cut in (((8,), (4, 4)), ((5,), (4, 1)), ((6, 8), (4, 2, 4, 4)), ((64,), (4,) * 16)):
        assert made.step_time(wide, 8) == made.step_time(cut, 8)
    with pytest.raises(TraceError, match="no step time on 8 GPUs with 17 examples"):
        made.step_time((8,), 17)


def test_that_step_times_are_linear_between_measured_sizes(tmp_path: Path) -> None:
    file = write_traces(tmp_path / "made") / "placements.csv"
    text = file.read_text().replace("\n4,16,0.5,0.1\n", "\n4,16,1.9,0.3\n4,8,0.7,0.2\n")
    file.write_text(text)
    made = read_application(tmp_path / "made")
    for size in range(2, 17):
        time = made.step_time((4,), size)
        assert time.step_s == np.interp(size, [2, 8, 16], [0.5, 0.7, 1.9])
        assert time.sync_s == np.interp(size, [2, 8, 16], [0.1, 0.2, 0.3])


def test_that_a_batch_above_those_measured_there_takes_longer_in_proportion(tmp_path: Path) -> None:
    """At most 8 were measured on 1 + 3 GPUs, and on 16 nodes: 12 compute 1.5 times as long as 8."""
    folder = write_traces(tmp_path / "made")
    for name, old, new in (("placements", "13,16", "13,8"), ("scalability", "16,64,16", "16,64,8")):
        file = folder / f"{name}.csv"
        file.write_text(file.read_text().replace(old, new))
    made = read_application(folder)
    for placement, sync_s, micro_batch_s in (((3, 1), 0.1, 0.4), ((4,) * 16, 0.05, 1.55)):
        for size, factor in ((8, 1.0), (12, 1.5), (16, 2.0)):
            time = made.step_time(placement, size)
            assert (time.sync_s, time.micro_batch_s) == pytest.approx((sync_s, factor * micro_batch_s))
    assert made.step_time((2, 2), 16).step_s == 0.5, "measured there"
    with pytest.raises(TraceError, match=r"no step time on 1\+3 GPUs with 17 examples"):
        made.step_time((1, 3), 17)


def test_that_what_was_never_measured_is_refused(tmp_path: Path) -> None:
    made = made_application(tmp_path)
    with pytest.raises(TraceError, match="no step time on 2 GPUs with 17 examples"):
        made.step_time((2,), 17)
    with pytest.raises(TraceError, match=r"no step time on 1\+2 GPUs"):
        made.step_time((1, 2), 17)
    with pytest.raises(TraceError, match="batch size around 33"):
        made.statistics(33, 0)


def test_that_statistics_and_steps_are_linear_between_runs(tmp_path: Path) -> None:
    made = made_application(tmp_path)
    assert made.statistics(8, 0).var == 3.0
    assert made.statistics(20, 0).var == pytest.approx((3.0 + 0.75) / 2)
    assert made.iterations(32, 1) == 37
    assert made.iterations(14, 0) == pytest.approx(0.75 * 100 + 0.25 * 25)


def test_that_an_epoch_ends_at_the_least_progress_of_all_runs(tmp_path: Path) -> None:
    made = made_application(tmp_path)
    assert [made.epoch_end(epoch) for epoch in range(made.num_epochs)] == [100.0, 150.25]
    assert (made.initial_batch_size, made.max_batch_size) == (8, 32)
    assert (made.min_atomic, made.max_atomic) == (2, 16)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("placements.csv", "1,2,1.0", "1,2,nan", "step_time is 'nan'"),
        ("placements.csv", "1,2,1.0", "1,2,-1", "step_time is '-1'"),
        ("placements.csv", "1,2,1.0", "1,2.5,1.0", "local_bsz is '2.5'"),
        ("placements.csv", "1,2,1.0", "x,2,1.0", "placement is 'x'"),
        ("placements.csv", "1,2,1.0,0.0", "1,2", "line 2 is incomplete"),
        ("placements.csv", "local_bsz", "bsz", "no column 'local_bsz'"),
        ("placements.csv", "1,2,1.0,0.0", "1,2,0,0", "step_time is '0'; expected more than sync_time"),
        ("placements.csv", "1,2,1.0,0.0", "1,2,1,1.5", "step_time is '1'.* which is '1.5'"),
        ("validation-8.csv", "100.0,", "0.0,", "so it must rise each epoch"),
        ("validation-8.csv", "150.25,", "100.0,", "so it must rise each epoch"),
        ("validation-8.csv", "progress", "other", "no column 'progress'"),
    ],
)
def test_that_a_bad_file_is_named_with_its_mistake(
    tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    folder = write_traces(tmp_path / "made")
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(TraceError, match=message) as caught:
        read_application(folder)
    assert str(folder / file) in str(caught.value)


def test_that_missing_files_are_named(tmp_path: Path) -> None:
    folder = write_traces(tmp_path / "made")
    (folder / "placements.csv").unlink()
    with pytest.raises(TraceError, match=r"placements\.csv: No such file"):
        read_application(folder)
    for file in folder.glob("validation-*"):
        file.unlink()
    with pytest.raises(TraceError, match="no validation-BATCHSIZE"):
        read_application(folder)


def test_that_a_step_of_many_nodes_takes_time(tmp_path: Path) -> None:
    file = write_traces(tmp_path / "made") / "scalability.csv"
    file.write_text(file.read_text().replace("0.8,0.05", "0,0"))
    made = read_application(tmp_path / "made")
    with pytest.raises(TraceError, match=r"scalability\.csv: step_time is '0'"):
        made.step_time((4,) * 12, 8)


@pytest.mark.parametrize("gpus_per_node", [4, 8])
def test_that_some_placements_have_all_step_times(tmp_path: Path, gpus_per_node: int) -> None:
    """Of all on three nodes, also those of six GPUs on one, which count as four and two."""
    made = made_application(tmp_path)

    def step_times(placements: Iterable[tuple[int, ...]]) -> set[float]:
        found = set()
        for placement in placements:
            with contextlib.suppress(TraceError):
                found.add(round(made.step_time(placement, 8).step_s, 9))
        return found

    sizes = range(1, gpus_per_node + 1)
    every = [one for nodes in (1, 2, 3) for one in itertools.product(sizes, repeat=nodes)]
    for num_gpus in range(1, 13):
        there = step_times(one for one in every if sum(one) == num_gpus)
        assert there <= step_times(made.placements(num_gpus, 3, gpus_per_node))
