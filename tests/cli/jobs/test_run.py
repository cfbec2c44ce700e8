"""`pollux run` as typed: errors are one line and a shell's exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAIN = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "CUDA", "POLLUX"))}


def pollux(*words: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pollux_slurm", *words],
        env={**PLAIN, **(environ or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "no command to run; example: pollux run -- python train.py"),
        (["--"], 2, "no command to run"),
        (["--", ""], 2, "the command's name is empty (an unset shell variable?)"),
        (["--", "no-such-program", "-x"], 127, "no-such-program: command not found"),
        (["--", "/etc/passwd"], 126, "/etc/passwd: Permission denied"),
        (["--nproc-per-node=0", "--", "true"], 2, "nproc-per-node"),
        (["--nproc-per-node=x", "--", "true"], 2, "nproc-per-node"),
        (["--min-gpus=4", "--max-gpus=2", "--", "true"], 2, "--min-gpus 4 is above --max-gpus 2"),
        (["--checkpoint-dir", "/etc/passwd/x", "--", "true"], 1, "--checkpoint-dir"),
        (["--checkpoint-dir=", "--", "true"], 2, "--checkpoint-dir names no directory"),
        (["--no-such-option", "--", "true"], 2, "--no-such-option"),
    ],
)
def test_that_an_error_is_one_line(words: list[str], code: int, message: str) -> None:
    done = pollux("run", *words)
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""


def test_that_the_commands_output_and_exit_code_are_passed_on() -> None:
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    done = pollux("run", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_that_arguments_after_the_command_are_its_own() -> None:
    script = "import sys; print(sys.argv[1:])"
    done = pollux("run", sys.executable, "-c", script, "--min-gpus", "x", "--", "-h", "")
    assert done.stdout == "['--min-gpus', 'x', '--', '-h', '']\n"


def test_that_a_job_without_srun_is_an_error(tmp_path: Path) -> None:
    done = pollux("run", "--", "true", environ={"SLURM_JOB_ID": "12", "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "no srun on PATH" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_that_help_shows_an_example() -> None:
    done = pollux("run", "--help")
    assert done.returncode == 0
    assert "pollux run -- python train.py" in done.stdout


def test_that_starting_processes_imports_neither_torch_nor_scipy() -> None:
    code = (
        "import sys, pollux_slurm.launch.run.launcher; "
        "print([name for name in ('torch', 'scipy', 'numpy', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "[]"
