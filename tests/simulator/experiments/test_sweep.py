"""Sweeps: their runs, and the folder in which their results are stored."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.simulator import Application, InPlace, WorkloadJob, read_applications
from pollux_slurm.simulator.experiments.settings import RunSettings
from pollux_slurm.simulator.experiments.sweep import Grid, SweepRun, expand, read_sweep, run_sweep, table_rows
from tests.simulator.builders import made_job, write_traces

SHARED = {"nodes": 1}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    write_traces(tmp_path / "traces" / "made")
    return tmp_path / "traces"


@pytest.fixture
def applications(traces: Path) -> Mapping[str, Application]:
    return read_applications(traces)


def workload() -> Mapping[str, tuple[WorkloadJob, ...]]:
    return {"small": (made_job("a", at_s=5), made_job("b", at_s=9))}


def settings_of(*names: str) -> tuple[RunSettings, ...]:
    return tuple(RunSettings(policy=name, num_nodes=1, gpus_per_node=2) for name in names)


def grid(*delays_s: float) -> Grid:
    return Grid(settings=settings_of("tiresias", "optimus"), files=workload(), restart_delays_s=delays_s)


def test_that_policies_run_once_on_axes_that_they_do_not_use(applications: Mapping[str, Application]) -> None:
    settings = settings_of("pollux", "tiresias")
    made = Grid(
        settings=(dataclasses.replace(settings[0], objective="generalized-mean"), settings[1]),
        files=workload(),
        exponents=(1.0, -1.0),
        penalties=("paper", "amortised"),
    )
    runs = expand(made, applications)
    assert [(run.settings.policy, run.settings.exponent, run.settings.penalty) for run in runs] == [
        ("pollux", 1.0, "paper"),
        ("tiresias", None, None),
        ("pollux", 1.0, "amortised"),
        ("pollux", -1.0, "paper"),
        ("pollux", -1.0, "amortised"),
    ]


def test_that_each_share_of_jobs_in_place_is_a_run_of_its_own(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    settings = (RunSettings(num_nodes=1, in_place=InPlace(several_wings=True, standstill_s=2)),)
    runs = expand(Grid(settings=settings, files=workload(), in_place_shares=(0.0, 1.0)), applications)
    assert [run.settings.in_place for run in runs] == [None, settings[0].in_place]
    rows = table_rows(run_sweep(runs, tmp_path / "sweep", traces, applications, shared=SHARED))
    assert [row["in_place_share"] for row in rows] == [0, 1]
    requeue, in_place = rows
    assert (requeue["regroups_per_job"], in_place["restarts_per_job"]) == (0, 0)
    assert requeue["restarts_per_job"] > 0
    assert in_place["regroups_per_job"] > 0
    assert in_place["avg_jct_s"] < requeue["avg_jct_s"]


def test_that_a_rerun_runs_only_new_combinations(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    done: list[float] = []
    folder = tmp_path / "sweep"
    first = run_sweep(expand(grid(0.0), applications), folder, traces, applications, shared=SHARED)
    runs = expand(grid(0.0, 30.0), applications)
    both = run_sweep(
        runs, folder, traces, applications, shared=SHARED, on_done=lambda *told: done.append(told[0])
    )
    assert both[:2] == first
    assert done[0] == 2, "two were there"
    assert done[-1] == len(both) == 4
    assert read_sweep(folder) == both


def test_that_another_workload_is_another_run(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    one = expand(grid(0.0), applications)
    later = {"small": (made_job("a", at_s=6), made_job("b", at_s=9))}
    other = expand(Grid(settings=settings_of("tiresias"), files=later, restart_delays_s=(0.0,)), applications)
    assert not {run.name for run in one} & {run.name for run in other}


def test_that_any_name_of_a_workload_makes_a_file_name(applications: Mapping[str, Application]) -> None:
    files = {"../" + "x" * 300: workload()["small"]}
    (run,) = expand(Grid(settings=settings_of("tiresias"), files=files), applications)
    assert len(run.name) < 200
    assert "/" not in run.name


def run_again(folder: Path, traces: Path, runs: tuple[SweepRun, ...], **shared: int) -> None:
    run_sweep(runs, folder, traces, read_applications(traces), shared=shared)


def test_that_a_folder_with_something_else_is_refused(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    runs = expand(grid(0.0), applications)
    folder = tmp_path / "sweep"
    run_again(folder, traces, runs, nodes=1)
    with pytest.raises(UsageError, match=r"sweep with other nodes \(1, now 2\): choose another folder"):
        run_again(folder, traces, runs, nodes=2)
    changed = traces / "made" / "placements.csv"
    changed.write_text(changed.read_text().replace("0.5,0.1", "0.6,0.1"))
    with pytest.raises(UsageError, match="sweep with other traces: choose"):
        run_again(folder, traces, runs, nodes=1)
    with pytest.raises(UsageError, match="is not empty and contains no sweep"):
        run_again(traces, traces, runs, nodes=1)
    with pytest.raises(UsageError, match="contains no sweep"):
        read_sweep(traces)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"run": {}, "summary": {}}', '{"order": "x", "run": 1, "summary": []}']
)
def test_that_a_damaged_file_is_named(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application], text: str
) -> None:
    runs = expand(grid(0.0), applications)
    folder = tmp_path / "sweep"
    run_again(folder, traces, runs, nodes=1)
    assert len(read_sweep(folder)) == 2
    file = folder / "runs" / f"{runs[0].name}.json"
    file.write_text(text)
    for read_again in (lambda: run_again(folder, traces, runs, nodes=1), lambda: read_sweep(folder)):
        with pytest.raises(UsageError, match=f"{runs[0].name}.json.*remove it and run the sweep again"):
            read_again()


def test_that_leftovers_of_a_killed_sweep_are_accepted(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    """Its first file was half written; one without a readable first file is given up."""
    runs = expand(grid(0.0), applications)
    folder = tmp_path / "sweep"
    folder.mkdir()
    (folder / ".sweep.json.123.partial").write_text("{")
    run_again(folder, traces, runs, nodes=1)
    (folder / "sweep.json").write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*sweep\.json .*: choose another folder"):
        run_again(folder, traces, runs, nodes=1)


def test_that_a_run_of_another_combination_is_refused(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    runs = expand(grid(0.0, 30.0), applications)
    folder = tmp_path / "sweep"
    run_again(folder, traces, runs, nodes=1)
    files = [folder / "runs" / f"{run.name}.json" for run in runs]
    files[0].write_text(files[2].read_text())
    with pytest.raises(UsageError, match="is not a run of this sweep"):
        run_again(folder, traces, runs, nodes=1)


def test_that_seeds_are_averaged_and_compared_one_by_one(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    runs = expand(grid(0.0, 30.0), applications)
    results = run_sweep(runs, tmp_path / "sweep", traces, applications, shared=SHARED)
    rows = table_rows(results)
    assert [(row["restart_delay_s"], row["policy"], row["num_runs"]) for row in rows] == [
        (0.0, "tiresias", 1),
        (0.0, "optimus", 1),
        (30.0, "tiresias", 1),
        (30.0, "optimus", 1),
    ]
    assert [row["ratio"] for row in rows[::2]] == [1.0, 1.0]
    assert rows[1]["ratio"] == rows[1]["avg_jct_s"] / rows[0]["avg_jct_s"]
    file = json.loads((tmp_path / "sweep" / "runs" / f"{runs[0].name}.json").read_text())
    assert file["summary"]["avg_jct_s"] == rows[0]["avg_jct_s"]


def test_that_a_sweep_without_policies_is_refused(applications: Mapping[str, Application]) -> None:
    with pytest.raises(UsageError, match="at least one value on each axis"):
        expand(Grid(settings=(), files=workload()), applications)


def test_that_axes_that_no_policy_uses_are_refused(applications: Mapping[str, Application]) -> None:
    """Each would be one run, whatever the values."""
    rank = (RunSettings(objective="price-rank"),)
    with pytest.raises(
        UsageError, match="exponents would do nothing: only generalized-mean and sia use them"
    ):
        expand(Grid(settings=rank, files=workload(), exponents=(-1.0, -5.0)), applications)
    with pytest.raises(UsageError, match="forms of the penalty would do nothing"):
        expand(Grid(settings=settings_of("tiresias"), files=workload(), penalties=("paper",)), applications)
