"""`pollux simulate` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulator.made import write_traces


def pollux(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pollux_slurm", *words], capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[str, ...]:
    write_traces(tmp_path / "traces" / "made")
    workload = tmp_path / "small.csv"
    workload.write_text("name,time,application,num_replicas,batch_size\na,5,made,1,8\nb,9,made,2,8\n")
    return ("simulate", "--traces", str(tmp_path / "traces"), "--workload", str(workload))


def test_that_json_holds_what_analysts_need(inputs: tuple[str, ...]) -> None:
    done = pollux(*inputs, "--policy", "tiresias", "--json", "--nodes", "1")
    found = json.loads(done.stdout)
    assert (found["policy"], found["workload"]) == ("tiresias", "small")
    assert found["jobs"]["a"] == 240 - 5
    assert found["makespan_s"] == 235
    assert found["avg_jct_s"] == pytest.approx(sum(found["jobs"].values()) / 2)
    assert set(found["solve_s"]) == {"p50", "p95", "max"}


def test_that_several_policies_stand_in_one_table(inputs: tuple[str, ...]) -> None:
    done = pollux(*inputs, "--policy", "tiresias", "--policy", "optimus", "--policy", "pollux")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[1] for row in rows if row and row[0] == "small"] == [
        "tiresias",
        "optimus",
        "generalized-mean",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "best"), "unknown policy 'best'"),
        (("--objective", "best"), "unknown objective 'best'"),
        (("--rules", "mine"), "unknown rules 'mine'"),
        (("--interval", "0"), "interval must be above 0 s"),
        (("--workload", "/nope.csv"), "/nope.csv: No such file"),
        (("--traces", "/nope"), "/nope: no such folder"),
    ],
)
def test_that_a_mistake_is_one_line(inputs: tuple[str, ...], options: tuple[str, ...], message: str) -> None:
    done = pollux(*inputs, *options)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert message in done.stderr
