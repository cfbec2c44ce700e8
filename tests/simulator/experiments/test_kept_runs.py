"""The folder in which the results of an experiment are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.errors import UsageError
from pollux_slurm.simulator import Application, WorkloadJob, read_applications
from pollux_slurm.simulator.experiments.kept_runs import (
    ExperimentRun,
    read_folder,
    run_experiment,
    table_rows,
    varying_axes,
)
from pollux_slurm.simulator.experiments.settings import RunSettings
from tests.simulator.builders import made_job, write_traces


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    write_traces(tmp_path / "traces" / "made")
    return tmp_path / "traces"


@pytest.fixture
def applications(traces: Path) -> Mapping[str, Application]:
    return read_applications(traces)


def jobs() -> tuple[WorkloadJob, ...]:
    return (made_job("a", at_s=5), made_job("b", at_s=9))


def runs_of(*delays_s: float, workload: str = "small", at_s: float = 5) -> tuple[ExperimentRun, ...]:
    return tuple(
        ExperimentRun(
            workload=workload,
            load=None,
            seed=None,
            jobs=(made_job("a", at_s=at_s), made_job("b", at_s=9)),
            settings=RunSettings(policy=name, num_nodes=1, gpus_per_node=2, restart_delay_s=delay_s),
            place={"nodes": "1x2", "restart_delay_s": delay_s},
        )
        for delay_s in delays_s
        for name in ("tiresias", "optimus")
    )


def run_again(folder: Path, traces: Path, runs: tuple[ExperimentRun, ...]) -> None:
    run_experiment(runs, folder, traces, read_applications(traces))


def test_that_a_rerun_runs_only_new_combinations(
    tmp_path: Path, traces: Path, applications: Mapping[str, Application]
) -> None:
    done: list[float] = []
    folder = tmp_path / "kept"
    first = run_experiment(runs_of(0.0), folder, traces, applications)
    both = run_experiment(
        runs_of(0.0, 30.0), folder, traces, applications, on_done=lambda *told: done.append(told[0])
    )
    assert [(one.place, one.summary) for one in both[:2]] == [(one.place, one.summary) for one in first]
    assert done[0] == 2, "two were there"
    assert done[-1] == len(both) == 4
    assert [one.outcome is None for one in both] == [True, True, False, False]
    assert [one.summary for one in read_folder(folder)] == [one.summary for one in both]


def test_that_another_workload_is_another_run() -> None:
    assert not {run.name for run in runs_of(0.0)} & {run.name for run in runs_of(0.0, at_s=6)}


def test_that_any_name_of_a_workload_makes_a_file_name() -> None:
    run = runs_of(0.0, workload="../" + "x" * 300)[0]
    assert len(run.name) < 200
    assert "/" not in run.name


def test_that_a_folder_with_something_else_is_refused(tmp_path: Path, traces: Path) -> None:
    folder = tmp_path / "kept"
    run_again(folder, traces, runs_of(0.0))
    changed = traces / "made" / "placements.csv"
    changed.write_text(changed.read_text().replace("0.5,0.1", "0.6,0.1"))
    with pytest.raises(UsageError, match="contains results of other traces: choose"):
        run_again(folder, traces, runs_of(0.0))
    with pytest.raises(UsageError, match="is not empty and contains no experiment"):
        run_again(traces, traces, runs_of(0.0))
    with pytest.raises(UsageError, match="contains no results"):
        read_folder(traces)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"run": {}, "summary": {}}', '{"order": "x", "run": 1, "summary": []}']
)
def test_that_a_damaged_file_is_named(tmp_path: Path, traces: Path, text: str) -> None:
    folder, runs = tmp_path / "kept", runs_of(0.0)
    run_again(folder, traces, runs)
    assert len(read_folder(folder)) == 2
    (folder / "runs" / f"{runs[0].name}.json").write_text(text)
    for read_again in (lambda: run_again(folder, traces, runs), lambda: read_folder(folder)):
        with pytest.raises(UsageError, match=f"{runs[0].name}.json.*remove it and run the experiment again"):
            read_again()


def test_that_leftovers_of_a_killed_experiment_are_accepted(tmp_path: Path, traces: Path) -> None:
    """Its first file was half written; one without a readable first file is given up."""
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / ".experiment.json.123.partial").write_text("{")
    run_again(folder, traces, runs_of(0.0))
    (folder / "experiment.json").write_text("{")
    with pytest.raises(UsageError, match=r"cannot read .*experiment\.json .*: choose another folder"):
        run_again(folder, traces, runs_of(0.0))


def test_that_a_run_of_another_combination_is_refused(tmp_path: Path, traces: Path) -> None:
    folder, runs = tmp_path / "kept", runs_of(0.0, 30.0)
    run_again(folder, traces, runs)
    files = [folder / "runs" / f"{run.name}.json" for run in runs]
    files[0].write_text(files[2].read_text())
    with pytest.raises(UsageError, match="is not a run of this experiment"):
        run_again(folder, traces, runs)


def test_that_combinations_are_rows_compared_one_by_one(
    traces: Path, applications: Mapping[str, Application]
) -> None:
    rows = table_rows(run_experiment(runs_of(0.0, 30.0), None, traces, applications))
    assert [(row["restart_delay_s"], row["policy"], row["num_runs"]) for row in rows] == [
        (0.0, "tiresias", 1),
        (0.0, "optimus", 1),
        (30.0, "tiresias", 1),
        (30.0, "optimus", 1),
    ]
    assert [row["ratio"] for row in rows[::2]] == [1.0, 1.0]
    assert rows[1]["ratio"] == rows[1]["avg_jct_s"] / rows[0]["avg_jct_s"]
    assert varying_axes(rows) == {"restart_delay_s": "delay (s)"}


def test_that_policies_are_compared_whatever_axes_only_they_have(
    traces: Path, applications: Mapping[str, Application]
) -> None:
    one, other = runs_of(0.0)
    one = replace(one, place={**one.place, "p": 1.0})
    slower = replace(other.settings, interval_s=600.0)
    other = replace(other, place={**other.place, "p": -1.0}, settings=slower)
    rows = table_rows(run_experiment((one, other), None, traces, applications))
    assert rows[1]["ratio"] == rows[1]["avg_jct_s"] / rows[0]["avg_jct_s"] > 1


def test_that_results_of_format_2_still_open(tmp_path: Path) -> None:
    """A folder as it was kept before axes had names of their own in it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "sweep.json").write_text('{"format": 2, "traces": "0", "rules": "slurm"}')
    for share, average_s in ((1.0, 100.0), (0.2, 200.0)):
        run = {"workload": "load1-seed3", "load": 1.0, "seed": 3, "label": "osdi21", "interval_s": 60.0}
        run |= {"restart_delay_s": 30.0, "adaptive_share": share, "in_place_share": 0.0}
        run |= {"exponent": None, "penalty": None}
        summary = {"avg_jct_s": average_s, "num_jobs": 2, "p50_jct_s": 1.0, "p99_jct_s": 2.0}
        summary |= {"makespan_s": 3.0, "restarts_per_job": 1.0, "regroups_per_job": 0.0}
        summary |= {"restart_share": 0.1, "rho_worst": None}
        content = {"order": int(share < 1), "run": run, "summary": summary}
        (tmp_path / "runs" / f"{share}.json").write_text(json.dumps(content))
    rows = table_rows(read_folder(tmp_path))
    assert [(row["adaptive"], row["avg_jct_s"], row["p90_jct_s"]) for row in rows] == [
        (1.0, 100.0, None),
        (0.2, 200.0, None),
    ]
    assert varying_axes(rows) == {"adaptive": "adaptive"}
