"""Experiment files: axes, and errors that name line, key and cure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pollux_slurm.document.forms.html import MOST_ROWS
from pollux_slurm.errors import PolluxError
from pollux_slurm.simulator import read_applications
from pollux_slurm.simulator.experiments.experiment import Point, PolicyChoice, expand, read_experiment
from pollux_slurm.simulator.experiments.kept_runs import ExperimentRun
from tests.published import traces_dir
from tests.simulator.builders import write_traces

WORKLOAD = "name,time,application,num_replicas,batch_size\na,5,made,1,8\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_traces(tmp_path / "traces" / "made")
    (tmp_path / "small.csv").write_text(WORKLOAD)
    return tmp_path


def runs_of(folder: Path, text: str, **options: object) -> tuple[ExperimentRun, ...]:
    file = folder / "experiment.toml"
    file.write_text(f'traces = "traces"\nworkload = "small.csv"\n{text}')
    return expand(read_experiment(file, options), read_applications(folder / "traces"))


def test_that_lists_are_crossed_axes(folder: Path) -> None:
    runs = runs_of(folder, 'interval_s = [30, 60]\nnodes = ["1x4", "2x4"]\npolicy = ["tiresias", "optimus"]')
    assert len(runs) == 8
    first = runs[0].settings
    assert (first.num_nodes, first.interval_s, first.policy) == (1, 30.0, "tiresias")
    assert {run.place["nodes"] for run in runs} == {"1x4", "2x4"}


def test_that_axes_alone_vary_from_the_first_values(folder: Path) -> None:
    text = 'axes = "alone"\nrules = "slurm"\nadaptive = [1, 0.2]\nin_place = [0, 1]\nnodes = ["1x4", "2x4"]'
    runs = runs_of(folder, text)
    assert [(run.place["nodes"], run.place["adaptive"], run.place["in_place"]) for run in runs] == [
        ("1x4", 1.0, 0.0),
        ("2x4", 1.0, 0.0),
        ("1x4", 0.2, 0.0),
        ("1x4", 1.0, 1.0),
    ]


def test_that_a_run_occurs_once_where_a_policy_or_rules_do_not_use_an_axis(folder: Path) -> None:
    text = 'rules = ["osdi21", "slurm"]\nadaptive = [1, 0.2]\n'
    text += 'policy = ["tiresias", {name = "pollux", p = [1, -1], penalty = ["paper", "amortised"]}]'
    runs = runs_of(folder, text)
    found = [(run.settings.rules, run.settings.policy, run.settings.slurm.adaptive_share) for run in runs]
    assert found.count(("osdi21", "tiresias", 1.0)) == 1
    assert found.count(("slurm", "tiresias", 0.2)) == 1
    assert found.count(("osdi21", "pollux", 1.0)) == 4


def test_that_a_run_occurs_once_where_an_objective_does_not_use_a_policys_axis(folder: Path) -> None:
    runs = runs_of(folder, '[[policy]]\nobjective = ["generalized-mean", "price-rank"]\np = [1, -2]')
    found = [(run.settings.objective, run.settings.exponent) for run in runs]
    assert found == [("generalized-mean", 1.0), ("generalized-mean", -2.0), ("price-rank", None)]


def test_that_each_load_and_seed_is_a_workload_for_the_clusters_gpus() -> None:
    made = read_experiment(
        None, {"traces": str(traces_dir()), "load": [0.1, 0.2], "seed": [1, 2], "nodes": ["16x4", "8x4"]}
    )
    runs = expand(made, read_applications(traces_dir()))
    assert [(run.workload, run.place["nodes"], len(run.jobs)) for run in runs][:3] == [
        ("load0.1-seed1", "16x4", 16),
        ("load0.1-seed2", "16x4", 16),
        ("load0.1-seed1", "8x4", 8),
    ]


def test_that_a_load_is_an_axis_alone_too() -> None:
    """Each load has the first cluster, each cluster the first load."""
    options = {"axes": "alone", "load": [0.1, 0.2], "nodes": ["16x4", "8x4"]}
    made = read_experiment(None, {"traces": str(traces_dir()), **options})
    found = [(run.load, run.place["nodes"]) for run in expand(made, read_applications(traces_dir()))]
    assert found == [(0.1, "16x4"), (0.1, "8x4"), (0.2, "16x4")]


def test_that_no_generated_job_asks_for_more_gpus_than_a_type_has() -> None:
    made = read_experiment(None, {"traces": str(traces_dir()), "nodes": "2x4:t4 + 3x4:a100=2", "load": 9})
    (run,) = expand(made, read_applications(traces_dir()))
    assert max(job.num_replicas for job in run.jobs) == 12


def test_that_an_option_replaces_the_files_key(folder: Path) -> None:
    (run,) = runs_of(folder, 'nodes = ["1x4", "2x4"]\npolicy = "sia"', nodes="3x4")
    assert (run.settings.num_nodes, run.settings.policy) == (3, "sia")


def test_that_a_label_stands_for_its_policy(folder: Path) -> None:
    (run,) = runs_of(folder, '[[policy]]\nname = "pollux"\nlabel = "ours"\nobjective = "osdi21"')
    assert run.settings.label == "ours"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodez = 4", "experiment.toml, line 3: unknown key nodez; known: traces,"),
        ("\nadaptive = 2\n", "experiment.toml, line 4: adaptive: expected a number from 0 to 1, not 2"),
        ("adaptive = [1, 'x']", "line 3: adaptive: expected a number from 0 to 1, not 'x'"),
        ("interval_s = []", "line 3: interval_s is a list without values: give one, or leave the key out"),
        ("rules = 'mine'", "line 3: rules: expected one of osdi21, slurm, not 'mine'"),
        ("nodes = '4'", "line 3: nodes are '4'; expected nodes x GPUs such as 16x4"),
        ("axes = 'all'", "line 3: axes: expected one of crossed, alone, not 'all'"),
        ("adaptive = 0.5", "line 3: adaptive would do nothing: it is of rules slurm: add rules"),
        ("warm_up_s = 5", "line 3: warm_up_s would do nothing: it is of moves in place: add in_place = 1"),
        (
            "rules = 'slurm'\nin_place = 1\nwarm_up_s = 5",
            "line 5: warm_up_s would do nothing: rules slurm have",
        ),
        ("rules_seed = 4", "line 3: rules_seed would do nothing: nothing is drawn under rules osdi21"),
        ("in_place = 1\npolicy = 'slurm'", "line 3: in_place would do nothing: policy slurm moves no job"),
        ("policy = 'best'", "line 3: name: expected one of pollux, genetic"),
        ("policy = 3", "line 3: expected a policy's name or table, not 3"),
        ("[[policy]]\nname = 'sia'\n\n[[policy]]\np = 'x'", "line 7: p: expected a number"),
        ("[[policy]]\nname = 'sia'\ndeclared = true", "declared would do nothing: it is of policy pollux"),
        ("[[policy]]\nobjective = 'price-rank'\np = -5", "p would do nothing: only generalized-mean and sia"),
        ("[[policy]]\nshare_half_life = 'week'", "share_half_life is 'week'; write a number with s, m, h"),
        ("load = 2", "line 3: load would do nothing: workloads are read, not generated"),
        ("rules = 'slurm'\nbound = true", "line 4: the bound is of rules osdi21 and moves by requeue"),
        ("[autoscale]\nhigh = 'x'", "line 4: high: expected a number from 0 to"),
        ("[autoscale]\nlow = 0.8\nhigh = 0.7", "utilities lie in 0 < low < high ≤ 1, not 0.8 and 0.7"),
        ("adaptive = ", "not valid TOML"),
    ],
)
def test_that_an_error_names_the_line_the_key_and_the_cure(folder: Path, text: str, message: str) -> None:
    with pytest.raises(PolluxError) as raised:
        runs_of(folder, text)
    assert message in str(raised.value)


def test_that_without_traces_nothing_is_simulated() -> None:
    with pytest.raises(PolluxError, match="traces are needed: --traces DIR, or traces = "):
        read_experiment(None, {})


def test_that_the_page_names_each_key() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "benchmark.md").read_text(encoding="utf-8")
    keys = [entry.name for kind in (Point, PolicyChoice) for entry in dataclasses.fields(kind)]
    assert [key for key in keys if f"`{key}`" not in page] == []


@pytest.mark.parametrize(("name", "num_runs"), [("short", 59), ("full", 1656), ("few", 30)])
def test_that_the_shipped_comparisons_can_be_run(name: str, num_runs: int) -> None:
    file = Path(__file__).resolve().parents[3] / "examples" / "comparison" / f"{name}.toml"
    runs = expand(read_experiment(file, {"traces": str(traces_dir())}), read_applications(traces_dir()))
    assert len(runs) == num_runs
    assert name != "short" or len(runs) <= MOST_ROWS, "its page has all rows"
    bounded = {run.settings.policy for run in runs if run.has_bound}
    assert bounded == (set() if name == "few" else {run.settings.policy for run in runs})
