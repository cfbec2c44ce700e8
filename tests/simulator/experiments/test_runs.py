"""Settings of simulations, and many of them at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pollux_slurm.errors import SimulationError, UsageError
from pollux_slurm.simulator import NodeGroup, read_applications
from pollux_slurm.simulator.engine.cluster_rules import PLAIN_REQUEUE_S
from pollux_slurm.simulator.experiments.runs import RunSpec, run_each
from pollux_slurm.simulator.experiments.settings import RunSettings, SlurmSettings, parse_nodes
from tests.simulator.builders import made_job, write_traces
from tests.waiting import wait_until


def parse_one(text: str) -> NodeGroup:
    (group,) = parse_nodes(text)[2]
    return group


def spec(policy: str, *, replicas: int = 1, interval_s: float = 60.0) -> RunSpec:
    job = made_job("a", num_replicas=replicas)
    settings = RunSettings(policy=policy, num_nodes=1, gpus_per_node=2, interval_s=interval_s)
    return RunSpec(workload="w", jobs=(job,), settings=settings)


def test_that_what_is_done_is_told_within_runs_too(tmp_path: Path) -> None:
    write_traces(tmp_path / "made")
    reported: list[tuple[float, str]] = []
    specs = [spec("tiresias"), spec("optimus")]
    applications = read_applications(tmp_path)

    def keep(num_done: float, text: str) -> None:
        reported.append((num_done, text))

    found = dict(run_each(specs, tmp_path, applications, on_done=keep))
    assert [found[index].summary.policy for index in range(2)] == ["tiresias", "optimus"]
    assert [told[0] for told in reported] == sorted(told[0] for told in reported)
    assert (reported[0][0], reported[-1][0]) == (0, 2)
    assert reported[0][1] == "0 of 2 jobs ended; 0.0 h simulated of w, tiresias"
    assert reported[-1][1] == "2 of 2 jobs ended; 0.1 h simulated of w, optimus"


def test_that_other_processes_tell_how_far_they_are(tmp_path: Path) -> None:
    """Two runs of 50 jobs that are submitted a day apart: each takes longer than a look at it."""
    write_traces(tmp_path / "made")
    days = tuple(made_job(f"{day}", at_s=86400.0 * day) for day in range(50))
    settings = RunSettings(policy="tiresias", num_nodes=1, gpus_per_node=2)
    specs = [RunSpec(workload="w", jobs=days, settings=settings)] * 2
    reported: list[float] = []
    found = run_each(
        specs,
        tmp_path,
        read_applications(tmp_path),
        num_processes=2,
        on_done=lambda done, text: reported.append(done),
    )
    assert len(list(found)) == 2
    assert reported == sorted(reported)
    assert reported[-1] == 2
    assert any(0 < done < 1 for done in reported)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_that_an_error_is_the_same_in_this_process_and_in_another(tmp_path: Path, num_processes: int) -> None:
    """Four GPUs are never there: the run is given up with an error, in any process."""
    write_traces(tmp_path / "made")
    specs = [spec("tiresias", replicas=4, interval_s=86400)] * 2
    with pytest.raises(SimulationError, match="have not ended"):
        list(run_each(specs, tmp_path, read_applications(tmp_path), num_processes=num_processes))


def test_that_workers_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """A killed parent cannot stop its workers, and each keeps the pipe open on which all wait."""
    write_traces(tmp_path / "traces" / "made")
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pollux_slurm.simulator import read_applications\n"
        "from pollux_slurm.simulator.experiments.runs import run_each\n"
        "from tests.simulator.experiments.test_runs import spec\n"
        "traces = Path(sys.argv[1])\n"
        "specs = [spec('tiresias')] * 200\n"
        "for _ in run_each(specs, traces, read_applications(traces), num_processes=2):\n"
        "    print(flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "traces")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # a run has ended: the workers are up
        parent.kill()
        parent.stdout.close()
    try:
        wait_until(lambda: not _living(parent.pid), timeout_s=300, what="the end of all workers")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def _living(group: int) -> list[str]:
    """Return the processes of a group but those that nobody has waited for."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group = file.read_text().rpartition(")")[2].split()[:3]
            if int(of_group) == group and state != "Z":
                found.append(file.parent.name)
    return found


def test_that_rules_slurm_are_made_of_their_settings() -> None:
    slurm = SlurmSettings(adaptive_share=0.25, requeue_s=PLAIN_REQUEUE_S, unmanaged_share=0.1, mtbf_s=1e6)
    rules = RunSettings(rules="slurm", slurm=slurm, seed=3, interference=0.1).make_rules()
    assert rules.delays is not None
    assert rules.failures is not None
    assert (rules.adaptive_share, rules.interference, rules.seed) == (0.25, 0.1, 3)
    assert (rules.delays.requeue_s, rules.failures.mtbf_s) == (PLAIN_REQUEUE_S, 1e6)
    assert rules.unmanaged_jobs, "6.4 GPUs for a day"
    assert RunSettings(rules="slurm").make_rules().unmanaged_jobs == ()
    assert RunSettings(policy="slurm", rules="slurm", slurm=slurm).make_rules().adaptive_share == 0


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_that_settings_nobody_can_simulate_are_refused(share: float) -> None:
    with pytest.raises(UsageError, match="the share of adaptive jobs"):
        RunSettings(rules="slurm", slurm=SlurmSettings(adaptive_share=share))


def test_that_an_exponent_reaches_whom_it_is_for() -> None:
    with pytest.raises(UsageError, match="power must be below 0"):
        RunSettings(policy="sia", exponent=1.0)
    assert RunSettings(policy="sia", exponent=-2.0).exponent == -2
    assert RunSettings(exponent=1.0).exponent == 1
    for exponent in (-1000.0, float("nan")):
        with pytest.raises(UsageError, match="exponent must be within ±20"):
            RunSettings(exponent=exponent)


def test_that_the_papers_rules_know_nothing_of_slurm() -> None:
    with pytest.raises(UsageError, match="exist only under rules slurm, not under osdi21"):
        RunSettings(slurm=SlurmSettings(mtbf_s=1e6))


def test_that_groups_of_nodes_are_read() -> None:
    assert parse_one("4x8:a100=2.5") == NodeGroup(num_nodes=4, gpus_per_node=8, gpu_type="a100", speed=2.5)
    assert parse_one("8x4:t4").common_speed == 1
    with_own = parse_one("4x8:a100=2.5,bert=3,ncf=1.5")
    assert (with_own.speed, with_own.speeds) == (2.5, (("bert", 3.0), ("ncf", 1.5)))
    assert parse_one("4x8:a100,bert=3").speed_of("other") == 1
    assert RunSettings(groups=(parse_one("8x4:t4"),)).cluster().num_gpus == 32


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x4:t4",
        "8x0:t4",
        "8x4:",
        "8x4:t4=",
        "8x4:t4=nan",
        "8x4:t4=-1",
        "8x4:t4,",
        "8x4:t4,bert",
        "8x4:t4,b=1,b=2",
    ],
)
def test_that_other_groups_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="nodes are"):
        parse_one(text)


def test_that_nodes_of_one_or_several_types_are_read() -> None:
    assert parse_nodes("16x4") == (16, 4, ())
    num_nodes, most_gpus, groups = parse_nodes("8x4:t4 + 4x8:a100=2.5")
    assert (num_nodes, most_gpus, [one.gpu_type for one in groups]) == (12, 8, ["t4", "a100"])
    with pytest.raises(UsageError, match="nodes are '0x4'; expected nodes x GPUs such as 16x4"):
        parse_nodes("0x4")


def test_that_policies_are_called_what_readers_know() -> None:
    assert RunSettings(objective="price-rank", declared=True).label == "price-rank (declared)"
    assert RunSettings(policy="tiresias", declared=True).label == "tiresias"
