"""The launcher without Slurm, and the processes of one node of a step; real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.launch.node.node_program import NODE_PROGRAM, visible_gpus
from pollux_slurm.launch.run.local_runs import find_local_run
from tests.waiting import wait_until

# One write: with PYTHONUNBUFFERED, print writes the line's end separately, so lines could be mixed.
SHOW = "import json, os; os.write(1, (json.dumps(dict(os.environ)) + '\\n').encode())"
PLAIN = {
    key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CUDA", "POLLUX", "OMP"))
}


def pollux_run(
    words: Sequence[str], environ: Mapping[str, str] | None = None, *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, "-m", "pollux_slurm", "run", *words], environ or {}, cwd=cwd)


def completed(
    argv: Sequence[str], environ: Mapping[str, str], *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env={**PLAIN, **environ},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def environments(done: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    """Return the output of the processes, by rank."""
    assert done.returncode == 0, done.stderr
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda env: int(env["RANK"]))


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1,3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa, MIG-bb"}, 2),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,2"}, 1),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"ROCR_VISIBLE_DEVICES": "0,1"}, 2),
        ({"SLURM_GPUS_ON_NODE": "4"}, 4),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_that_the_gpus_a_process_would_see_are_counted(environ: dict[str, str], count: int) -> None:
    assert visible_gpus(environ) == count


def test_that_without_slurm_and_gpus_one_process_runs_and_the_command_may_have_options() -> None:
    (env,) = environments(pollux_run([sys.executable, "-c", SHOW], {"CUDA_VISIBLE_DEVICES": ""}))
    written = {
        name: env[name]
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "POLLUX_GPUS_PER_NODE")
    }
    assert written == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "POLLUX_GPUS_PER_NODE": "1",
    }
    assert not {"POLLUX_TOKEN_FILE", "POLLUX_CHECKPOINT_DIR", "POLLUX_STEP"} & set(env)


def test_that_without_slurm_one_process_runs_for_each_visible_gpu(tmp_path: Path) -> None:
    done = pollux_run(
        ["--checkpoint-dir", "ck pt", "--", sys.executable, "-c", SHOW],
        {"CUDA_VISIBLE_DEVICES": "2,3"},
        cwd=tmp_path,
    )
    first, second = environments(done)
    assert (first["LOCAL_RANK"], second["LOCAL_RANK"]) == ("0", "1")
    assert first["WORLD_SIZE"] == second["WORLD_SIZE"] == "2"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert first["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert first["POLLUX_CHECKPOINT_DIR"] == str(tmp_path / "ck pt")
    assert (tmp_path / "ck pt").stat().st_mode & 0o777 == 0o700


def test_that_the_number_of_processes_can_be_given() -> None:
    done = pollux_run(["--nproc-per-node=3", "--", sys.executable, "-c", SHOW], {"CUDA_VISIBLE_DEVICES": "0"})
    assert [env["LOCAL_WORLD_SIZE"] for env in environments(done)] == ["3", "3", "3"]


# Writes a memory bound and fails, at its first two starts.
HUNGRY = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["POLLUX_CHECKPOINT_DIR"], "memory")
folder.mkdir(exist_ok=True)
starts = len(list(folder.iterdir()))
print("start", starts, flush=True)
if starts < 2:
    (folder / f"{starts:06d}-000000.json").write_text("{}")
    sys.exit(1)
"""


def test_that_processes_that_ran_out_of_memory_are_started_again(tmp_path: Path) -> None:
    done = pollux_run(["--checkpoint-dir", "job", "--", sys.executable, "-c", HUNGRY], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["start 0", "start 1", "start 2", ""]
    assert done.stderr.count("did not fit into memory: starting again") == 2


# One process grows to two at its first start, which then runs out of memory.
GROWING = """
import os, pathlib, sys, time
from pollux_slurm.agent.environment.job_environment import read_environment
if "POLLUX_JOINS" in os.environ:
    read_environment(os.environ).membership.report_ready()
    time.sleep(1000)
membership = read_environment(os.environ).membership
folder = pathlib.Path(os.environ["POLLUX_CHECKPOINT_DIR"], "memory")
if folder.exists():
    os.write(1, (os.environ["WORLD_SIZE"] + " " + os.environ["RANK"] + "\\n").encode())
    sys.exit()
while (plan := membership.planned(0)) is None:
    time.sleep(0.01)
assert membership.commit(plan.number)
folder.mkdir()
(folder / "000000-000000.json").write_text("{}")
sys.exit(1)
"""


def test_that_processes_that_are_started_again_are_as_many_as_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "pollux_slurm", "run", "--in-place", "--checkpoint-dir", "job"),
            *("--", sys.executable, "-c", GROWING),
        ],
        env={**PLAIN, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        found = wait_until(
            lambda: [*tmp_path.glob("pollux-run-*/run.json")], timeout_s=120, what="the run", every_s=0.02
        )
        find_local_run(run.pid).ask(2)
        assert sorted(run.communicate(timeout=300)[0].splitlines()) == ["2 0", "2 1"]
    finally:
        run.kill()
        run.communicate(timeout=120)
    assert run.returncode == 0
    assert not found[0].parent.exists()


def test_that_torchrun_cannot_be_started_in_place() -> None:
    done = pollux_run(["--in-place", "--", "torchrun", "train.py"])
    assert done.returncode == 2
    assert "--in-place with torchrun" in done.stderr


def test_that_a_run_that_never_calls_the_library_is_warned_of(tmp_path: Path) -> None:
    claim = "import os, pathlib; runs = pathlib.Path(os.environ['POLLUX_CHECKPOINT_DIR'], 'runs'); " + (
        "runs.mkdir(exist_ok=True); (runs / f'{len(list(runs.iterdir())):06d}.json').touch()"
    )
    warning = "pollux: no process of this run has called pollux_slurm.torch.init_process_group"
    for script, is_warned in (
        ("pass", True),
        (claim, False),
        (claim, False),
        ("pass", True),
        ("exit(3)", False),
    ):
        done = pollux_run(["--checkpoint-dir", "job", "--", sys.executable, "-c", script], cwd=tmp_path)
        assert (warning in done.stderr) is is_warned, script
    assert pollux_run(["--", sys.executable, "-c", "pass"]).stderr == ""


# ------------------------------------------------------------------------------------- one node of a step


def step(layout: RunLayout, node: int, **more: str) -> dict[str, str]:
    name, count = layout.nodes[node] if node < len(layout.nodes) else ("n9", 1)
    return {
        "POLLUX_STEP": layout.encode(),
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_NODEID": str(node),
        "SLURMD_NODENAME": name,
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(count))),
        **more,
    }


def in_step(command: Sequence[str], environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return completed([sys.executable, "-c", NODE_PROGRAM, *command], environ)


def layout_of(*nodes: tuple[str, int], exit_file: Path | None = None) -> RunLayout:
    return RunLayout(
        nodes=nodes,
        master_addr="10.0.0.1",
        master_port=24600,
        secret="of this run",
        uses_gpus=True,
        job_id="12",
        exit_file=exit_file,
    )


def test_that_each_node_of_a_step_starts_its_processes() -> None:
    layout = layout_of(("n0", 2), ("n1", 1))
    done = in_step([sys.executable, "-c", SHOW], step(layout, 0, SLURM_RESTART_COUNT="2"))
    assert [env["RANK"] for env in environments(done)] == ["0", "1"]
    (last,) = environments(in_step([sys.executable, "-c", SHOW], step(layout, 1)))
    assert (last["RANK"], last["MASTER_ADDR"], last["POLLUX_GPUS_PER_NODE"]) == ("2", "10.0.0.1", "2,1")


def test_that_nodes_are_found_by_name_when_their_numbers_differ() -> None:
    environ = step(layout_of(("n0", 2), ("n1", 1)), 1, SLURM_NODEID="0")
    (env,) = environments(in_step([sys.executable, "-c", SHOW], environ))
    assert env["RANK"] == "2"


def test_that_the_first_node_that_fails_writes_its_exit_code(tmp_path: Path) -> None:
    layout = layout_of(("n0", 1), ("n1", 1), exit_file=tmp_path / "exit")
    assert in_step([sys.executable, "-c", "pass"], step(layout, 0)).returncode == 0
    assert not (tmp_path / "exit").exists()
    assert in_step([sys.executable, "-c", "raise SystemExit(3)"], step(layout, 1)).returncode == 3
    assert in_step([sys.executable, "-c", "raise SystemExit(5)"], step(layout, 0)).returncode == 5
    assert (tmp_path / "exit").read_text() == "3\n"


def test_that_a_command_missing_on_a_node_writes_its_exit_code(tmp_path: Path) -> None:
    layout = layout_of(("n0", 1), exit_file=tmp_path / "exit")
    assert in_step(["no-such-program"], step(layout, 0)).returncode == 127
    assert (tmp_path / "exit").read_text() == "127\n"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (step(layout_of(("n0", 2)), 0, CUDA_VISIBLE_DEVICES="0"), "owns 2 GPUs on n0, but its step sees 1"),
        (step(layout_of(("n0", 1)), 3), "node n9 (number 3) is not among those of job 12"),
        (step(layout_of(("n0", 1)), 0, POLLUX_STEP="{}"), "POLLUX_STEP is malformed"),
        (step(layout_of(("n0", 1)), 3, SLURMD_NODENAME="n9\nforged"), "node n9 forged (number 3)"),
    ],
)
def test_that_an_inconsistent_step_is_one_clear_line(environ: dict[str, str], message: str) -> None:
    done = in_step(["true"], environ)
    assert done.returncode != 0
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_that_a_launcher_started_several_times_by_srun_is_refused_with_the_cure() -> None:
    done = pollux_run(
        ["--", "true"], {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    )
    assert done.returncode == 2
    assert "call it in the batch script itself" in done.stderr


def test_that_one_task_of_the_users_own_srun_runs_on_its_node_alone() -> None:
    environ = {
        "SLURM_JOB_ID": "12",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_GPUS_ON_NODE": "2",
        # inherited from the job that submitted this one
        "POLLUX_JOB_ID": "11",
        "POLLUX_TOKEN_FILE": "/other/token",
        "POLLUX_CHECKPOINT_DIR": "/other",
    }
    first, second = environments(pollux_run(["--", sys.executable, "-c", SHOW], environ))
    assert (first["WORLD_SIZE"], second["RANK"]) == ("2", "1")
    assert not {"POLLUX_TOKEN_FILE", "POLLUX_CHECKPOINT_DIR"} & set(first)
    kept = environments(pollux_run(["--", sys.executable, "-c", SHOW], {**environ, "POLLUX_JOB_ID": "12"}))
    assert kept[0]["POLLUX_CHECKPOINT_DIR"] == "/other"


@pytest.mark.parametrize(("code", "noted"), [(7, "7\n"), (143, None), (0, None)])
def test_that_a_failure_after_a_request_to_stop_is_noted(
    tmp_path: Path, code: int, noted: str | None
) -> None:
    exit_file, started = tmp_path / "job.exit", tmp_path / "started"
    script = (
        f"import pathlib, signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); "
        f"pathlib.Path({str(started)!r}).touch(); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", NODE_PROGRAM, sys.executable, "-S", "-c", script],
        env={**PLAIN, **step(layout_of(("n0", 1), exit_file=exit_file), 0)},
    ) as node:
        wait_until(started.exists, timeout_s=120, what="the process to start")
        node.send_signal(signal.SIGTERM)
        assert node.wait(timeout=120) == code
    assert (exit_file.read_text() if exit_file.exists() else None) == noted


def test_that_modules_beside_the_users_script_do_not_replace_the_launchers(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(99)")
    done = subprocess.run(
        [sys.executable, "-c", NODE_PROGRAM, sys.executable, "-S", "-c", "print('here')"],
        env={**PLAIN, **step(layout_of(("n0", 1)), 0)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")
