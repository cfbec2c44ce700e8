"""Options of srun and wrappers, and processes in namespaces of their own, without Slurm.

Apptainer is not needed: a shell script that starts `unshare` stands for it. It neither passes SIGTERM on nor
survives it by itself, and its processes have ids of their own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pollux_slurm.agent.environment.layout import RunLayout
from pollux_slurm.errors import UsageError
from pollux_slurm.launch.node.containers import (
    node_command,
    split_words,
    srun_arguments,
    srun_starts_container,
)
from pollux_slurm.launch.node.rendezvous import reserve_port
from pollux_slurm.launch.step.run_step import PreparedJob, srun_options
from pollux_slurm.slurm.commands.runner import CommandRunner
from tests.launch.node.stand_in_container import needs_namespaces, write_container
from tests.waiting import wait_until

PLAIN = {
    key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CUDA", "POLLUX", "OMP"))
}


# ------------------------------------------------------------------------------------------ options of srun


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("--container-image=x.sqsh --mpi=pmix", ("--container-image=x.sqsh", "--mpi=pmix")),
        ("--container-image x.sqsh --label", ("--container-image=x.sqsh", "--label")),
        (
            "--container-mounts '/data one:/data' --cpu-bind=verbose,cores",
            ("--container-mounts=/data one:/data", "--cpu-bind=verbose,cores"),
        ),
    ],
)
def test_that_options_of_srun_become_one_word_each(text: str, arguments: tuple[str, ...]) -> None:
    assert srun_arguments(text) == arguments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--nodes=2", "--nodes contradicts what pollux run decides"),
        ("--ntask=2", "--ntask contradicts"),  # an abbreviation
        ("--gpus-per-task 1", "--gpus-per-task contradicts"),
        ("--mem=4G", "--mem contradicts"),
        ("--label --exclusive", "--exclusive contradicts"),
        ("-N2", "by their long names, not -N2"),
        ("-l", "by their long names, not -l"),
        ("hostname", "'hostname' is not an option of srun"),
        ("--mpi=none hostname", "'hostname' is not an option of srun"),
        ("-- hostname", "not --"),
        ("--comment='a", "No closing quotation"),
        (" ", "--srun-args is empty"),
    ],
)
def test_that_options_that_contradict_the_launch_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        srun_arguments(text)


def test_that_a_wrapper_is_split_as_a_shell_splits_it() -> None:
    assert split_words("apptainer exec --bind '/my data' x.sif", "--wrap-with") == (
        *("apptainer", "exec", "--bind", "/my data", "x.sif"),
    )
    with pytest.raises(UsageError, match="--wrap-with is empty"):
        split_words("", "--wrap-with")


def options_of_step(*srun: str, **environ: str) -> list[str]:
    layout = RunLayout(
        nodes=(("n0", 4), ("n1", 1)), master_addr="n0", master_port=1, secret="s", uses_gpus=True
    )
    with reserve_port() as port:
        return srun_options(
            PreparedJob(
                layout=layout,
                environ=environ,
                runner=CommandRunner(environ={}),
                connect=lambda: pytest.fail("not needed"),
                warn=lambda _words: None,
                all_nodes=True,
                port=port,
                srun_arguments=srun,
            )
        )


def test_that_a_users_options_of_srun_replace_our_defaults() -> None:
    ours = options_of_step()
    assert {"--nodes=2", "--gpus=5", "--mpi=none", "--cpu-bind=none"} <= set(ours)
    given = options_of_step("--mpi=pmix", "--container-image=x.sqsh")
    assert given[-2:] == ["--mpi=pmix", "--container-image=x.sqsh"]
    assert set(ours) - set(given) == {"--mpi=none"}


def test_that_srun_says_no_more_than_its_errors_unless_the_user_asks() -> None:
    assert "--quiet" in options_of_step("--mpi=pmix")
    for loud in (options_of_step("-vv"), options_of_step("--verbose"), options_of_step(SLURM_DEBUG="2")):
        assert "--quiet" not in loud


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["--container-image=x.sqsh"], {}, True),
        (["--container-name=pytorch"], {}, True),
        (["--container=/bundle"], {}, True),
        ([], {"PYXIS_CONTAINER_IMAGE": "x.sqsh"}, True),
        (["--label"], {}, False),
    ],
)
def test_that_the_step_of_a_container_is_run_by_the_containers_python(
    arguments: list[str], environ: dict[str, str], expected: bool
) -> None:
    assert srun_starts_container(arguments, environ) is expected
    command = node_command(python="/home/ada/venv/bin/python", in_container=expected)
    assert ("/home/ada/venv/bin/python" in command) is not expected


# --------------------------------------------------------------------------------------- real processes


def pollux_run(
    *words: str, cwd: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pollux_slurm", "run", *words],
        env={**PLAIN, "CUDA_VISIBLE_DEVICES": "", **(environ or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_that_the_command_reaches_the_container_unchanged(tmp_path: Path) -> None:
    words = ["a b", "--", "it's", "$HOME", "line\nend", "", "*"]
    show = "import sys; sys.stdout.write(repr(sys.argv[1:]))"
    done = pollux_run("--wrap-with", "env FOO=1", "--", sys.executable, "-c", show, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, repr(words)), done.stderr


@needs_namespaces
def test_that_the_exit_code_of_a_wrapped_process_is_the_runs(tmp_path: Path) -> None:
    write_container(tmp_path)
    done = pollux_run("--wrap-with", "./container", "--", "sh", "-c", "exit 3", cwd=tmp_path)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize(
    ("wrapper", "name"),
    [("env -i", "POLLUX_RUN_SECRET"), ("env -u POLLUX_CHECKPOINT_DIR", "POLLUX_CHECKPOINT_DIR")],
)
def test_that_a_wrapper_that_hides_our_variables_is_refused(tmp_path: Path, wrapper: str, name: str) -> None:
    words = ["--checkpoint-dir=job", "--", sys.executable, "-c", "print('trained')"]
    done = pollux_run("--wrap-with", wrapper, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pollux: --wrap-with: it hides the variable {name} of pollux run" in done.stderr


def test_that_sigterm_ends_a_wrapped_command_that_does_not_handle_it(tmp_path: Path) -> None:
    sleep = "import time; open('ready', 'w').close(); time.sleep(600)"
    started = subprocess.Popen(
        [
            *(sys.executable, "-m", "pollux_slurm", "run", "--checkpoint-dir=job", "--wrap-with", "nice"),
            *("--", sys.executable, "-S", "-c", sleep),
        ],
        env={**PLAIN, "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((tmp_path / "ready").exists, timeout_s=120, what="the command")
        started.send_signal(signal.SIGTERM)
        stderr = started.communicate(timeout=120)[1]
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 143
    assert stderr.count("pollux: ") == 1
    assert "pollux: the processes were stopped before one of them called" in stderr


@needs_namespaces
def test_that_a_checkpoint_folder_that_is_not_mounted_is_refused(tmp_path: Path) -> None:
    write_container(tmp_path, before=f"mount -t tmpfs none {tmp_path}/shared")
    folder = tmp_path / "shared" / "it's a job"
    folder.mkdir(parents=True)
    words = ["--checkpoint-dir", str(folder), "--", sys.executable, "-c", "print('trained')"]
    done = pollux_run("--wrap-with", "./container", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pollux: --wrap-with: {folder} cannot be seen in the container: mount it there" in done.stderr


def test_that_a_missing_wrapper_and_options_of_srun_without_slurm_are_one_line(tmp_path: Path) -> None:
    done = pollux_run("--wrap-with", "nothere exec x.sif", "--", "true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (127, "pollux: nothere: command not found\n")
    done = pollux_run("--srun-args=--label", "--", "true", cwd=tmp_path)
    assert done.returncode == 2
    assert "--srun-args is for batch scripts" in done.stderr


# Each rank saves when it gets SIGTERM, which takes it a moment.
SAVING = """
import os, signal, sys, time
def leave(name):
    open(name + ".new", "w").close()
    os.rename(name + ".new", name)
def save(*_):
    time.sleep(0.5)
    leave("saved." + os.environ["RANK"])
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
with open("pid." + os.environ["RANK"], "w") as file: file.write(str(os.getpid()))
leave("ready." + os.environ["RANK"])
time.sleep(600)
"""


@pytest.fixture
def wrapped_run(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    write_container(tmp_path)
    started = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "pollux_slurm",
                "run",
                "--nproc-per-node=2",
                "--wrap-with",
                "./container",
            ),
            *("--", sys.executable, "-S", "-c", SAVING),
        ],
        env={**PLAIN, "CUDA_VISIBLE_DEVICES": "", "POLLUX_TEST_MARK": str(tmp_path)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: len(list(tmp_path.glob("ready.?"))) == 2, timeout_s=120, what="both ranks")
    yield started
    if started.poll() is None:
        started.kill()
    started.communicate(timeout=120)


@needs_namespaces
def test_that_sigterm_reaches_processes_behind_a_wrapper_that_does_not_pass_it_on(
    wrapped_run: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert [(tmp_path / f"pid.{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    wrapped_run.send_signal(signal.SIGTERM)
    assert wrapped_run.wait(timeout=300) == 143
    assert sorted(path.name for path in tmp_path.glob("saved.*")) == ["saved.0", "saved.1"]
    wait_until(lambda: not left_processes(tmp_path), timeout_s=120, what="the end of all processes")


@needs_namespaces
def test_that_a_second_interrupt_ends_wrapped_processes_at_once(
    wrapped_run: subprocess.Popen[str], tmp_path: Path
) -> None:
    for _ in range(2):
        wrapped_run.send_signal(signal.SIGINT)
    wrapped_run.wait(timeout=300)
    wait_until(lambda: not left_processes(tmp_path), timeout_s=120, what="the end of all processes")


def left_processes(folder: Path) -> list[str]:
    """Return the processes of the run in `folder` that still run, launcher excluded."""
    mark, found = f"POLLUX_TEST_MARK={folder}".encode(), []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
