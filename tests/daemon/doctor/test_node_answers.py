"""`pollux doctor --from-nodes`: findings from nodes' answers, and the answer of a real node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.daemon.doctor.findings import Finding, Verdict
from pollux_slurm.daemon.doctor.node_answers import SharedFolder, examine_checkpoints, examine_nodes, probe
from pollux_slurm.errors import StoreUnavailable
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm.commands.node_probe import NodeOutput, nodes_with_free_cpu
from pollux_slurm.store import open_store
from tests.daemon.builders import node

FOLDER = SharedFolder(folder=Path("/scratch"), mark=Path("/scratch/mark"), word="word")


def answer(
    name: str, *, store: str = "", folder: str = "", skew_s: float = 0.0, error_text: str = "", odd: str = ""
) -> NodeOutput:
    answer = json.dumps({"time": 1005.0 + skew_s, "store": store, "folders": [folder]})
    return NodeOutput(
        node=name,
        output="" if error_text else odd or f"a prologue's words\n{answer}\n",
        error_text=error_text,
        asked_at=1000.0,
        answered_at=1010.0,
    )


def found(*answers: NodeOutput) -> dict[str, Finding]:
    findings = list(examine_nodes(answers, [FOLDER], num_nodes=9))
    assert all(bool(one.cure) == (one.verdict is not Verdict.OK) for one in findings)
    return {one.name: one for one in findings}


def verdicts(*answers: NodeOutput) -> dict[str, str]:
    return {name: one.verdict.value for name, one in found(*answers).items() if one.verdict is not Verdict.OK}


def test_that_nodes_that_see_everything_are_well() -> None:
    assert verdicts(answer("n0"), answer("n1")) == {}
    assert "2 of 2 nodes" in found(answer("n0"), answer("n1"))["nodes"].text


def test_that_each_fault_is_found_alone_and_names_its_node() -> None:
    good = answer("n0")
    assert verdicts(good, answer("n1", store="no route to host")) == {"store from nodes": "FAIL"}
    assert verdicts(good, answer("n1", folder="not seen")) == {"folder /scratch": "FAIL"}
    assert verdicts(good, answer("n1", skew_s=30.0)) == {"clocks of nodes": "warn"}
    assert verdicts(good, answer("n1", skew_s=6.9)) == {}, "srun may have taken as long"
    assert "n1 differ" in found(good, answer("n1", skew_s=-30.0))["clocks of nodes"].text
    assert "not reached from n1: no route" in found(answer("n1", store="no route"))["store from nodes"].text


@pytest.mark.parametrize(
    "silent",
    [
        answer("n1", error_text="Unable to allocate resources"),
        answer("n1", odd="not JSON\n"),
        answer("n1", odd='{"time": "now", "store": "", "folders": [""]}'),
        answer("n1", odd='{"time": 1, "store": "", "folders": []}'),
        answer("n1", odd='{"time": 1, "store": "", "folders": {"a": 1}}'),
        answer("n1", odd='{"time": 1, "store": "", "folders": [1]}'),
        answer("n1", odd='{"time": NaN, "store": "", "folders": [""]}'),
        answer("n1", odd='{"time": 1' + "0" * 400 + ', "store": "", "folders": [""]}'),
        answer("n1", odd="[]"),
        answer("n1", odd="[" * 100_000),
        answer("n1", odd="\n"),
    ],
)
def test_that_a_node_without_an_answer_is_named_and_the_others_count(silent: NodeOutput) -> None:
    assert verdicts(answer("n0"), silent) == {"nodes": "warn"}
    assert "n1: " in found(answer("n0"), silent)["nodes"].text
    assert list(found(silent)) == ["nodes"]
    assert verdicts() == {"nodes": "warn"}


def test_that_a_probe_looks_at_marks_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "mark").write_text("word")

    def away() -> None:
        raise StoreUnavailable("it is away")

    marks = [(tmp_path / "mark", "word"), (tmp_path / "mark", "other"), (tmp_path / "none", "word")]
    answer = json.loads(probe(marks, away, now=7.0))
    assert (answer["time"], answer["store"], answer["folders"][0]) == (7.0, "it is away", "")
    assert "another folder" in answer["folders"][1]
    assert "not seen" in answer["folders"][2]
    assert [file.name for file in tmp_path.iterdir()] == ["mark"]


def test_that_nodes_are_taken_from_each_partition_and_type() -> None:
    nodes = [node(f"n{i}") for i in range(4)] + [node("a0", gpu_type="a100"), node("down", available=False)]
    assert [one.name for one in nodes_with_free_cpu(nodes, 3)] == ["n0", "a0", "n1"]
    assert len(nodes_with_free_cpu(nodes, 99)) == 5


def test_that_checkpoints_are_held_against_killwait_and_the_daemons_patience() -> None:
    def answer(blocked_s: list[float]) -> list[Finding]:
        return list(examine_checkpoints(blocked_s, kill_wait_s=30.0, checkpoint_timeout_s=300.0))

    assert answer([]) == []
    (quick,) = answer([3.0, 12.0])
    assert (quick.verdict, quick.cure) == (Verdict.OK, "")
    (slow,) = answer([3.0, 45.0])
    assert slow.verdict is Verdict.WARN
    assert "set KillWait to 90" in slow.cure
    assert "checkpoint_timeout_s" not in slow.cure
    (slower,) = answer([200.0])
    assert "daemon.checkpoint_timeout_s to 600" in slower.cure


def test_that_real_nodes_are_asked(tmp_path: Path, sandbox: Sandbox) -> None:
    url = f"sqlite:///{tmp_path}/pollux.db"
    open_store(url, create=True).close()
    (tmp_path / "shared").mkdir()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pollux_slurm", "doctor", "--json", "--store", url),
            *("--from-nodes", "2", "--folder", str(tmp_path / "shared")),
        ],
        env={**os.environ, **sandbox.env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    answer = {one["name"]: one for one in json.loads(done.stdout)}
    assert (answer["nodes"]["verdict"], answer["nodes"]["text"][:31]) == (
        "ok",
        "2 of 2 nodes that were asked an",
    )
    shared = f"{tmp_path}/shared"
    for name in ("store from nodes", f"folder {shared}", f"writers of {shared}", "clocks of nodes"):
        assert answer[name]["verdict"] == "ok", answer[name]
    assert list((tmp_path / "shared").iterdir()) == []
