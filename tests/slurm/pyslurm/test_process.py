"""`PySlurmWorker`, with small programs instead of the worker."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

from pollux_slurm.config import SlurmConfig
from pollux_slurm.errors import SlurmUnavailable
from pollux_slurm.slurm import connect
from pollux_slurm.slurm.pyslurm.process import PySlurmRefusedError, PySlurmWorker
from tests.waiting import wait_until

GREET = """\
import json, os, sys
def send(what):
    print(json.dumps(what), flush=True)
send({'answer': '25.11.2'})
"""
ECHO = GREET + "for line in sys.stdin:\n  send({'answer': [os.getpid(), json.loads(line)]})\n"


def worker(folder: Path, program: str, *, timeout_s: float = 300.0) -> PySlurmWorker:
    file = folder / "worker.py"
    file.write_text(program)
    return PySlurmWorker(os.environ, timeout_s=timeout_s, command=(sys.executable, str(file)))


def test_that_requests_go_to_one_process_without_output_filters_in_its_environment(tmp_path: Path) -> None:
    program = GREET + "for line in sys.stdin:\n  send({'answer': [os.getpid(), dict(os.environ)]})\n"
    (tmp_path / "worker.py").write_text(program)
    heard: list[str] = []
    asked = PySlurmWorker(
        {**os.environ, "SQUEUE_USERS": "me"},
        timeout_s=300.0,
        on_run=heard.append,
        command=(sys.executable, str(tmp_path / "worker.py")),
    )
    assert asked.release() == "25.11.2"
    first, environ = asked.ask("read_status", "7")
    second, _ = asked.ask("read_status", "8")
    assert first == second
    assert "SQUEUE_USERS" not in environ
    assert heard == ["pyslurm", "pyslurm"]
    asked.close()


def test_that_a_request_arrives_and_a_closed_worker_starts_again(tmp_path: Path) -> None:
    asked = worker(tmp_path, ECHO)
    first, request = asked.ask("release", "7")
    assert request == {"do": "release", "job": 7}
    asked.close()
    second, _ = asked.ask("release", "7")
    assert second != first
    asked.close()


def test_that_a_terminals_interrupt_does_not_reach_the_process(tmp_path: Path) -> None:
    asked = worker(tmp_path, GREET + "for line in sys.stdin:\n  send({'answer': os.getpgrp()})\n")
    assert asked.ask("read_status", "7") != os.getpgrp()
    asked.close()


def test_that_a_process_that_hangs_is_given_up_and_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "hung"
    program = GREET + f"mark = {str(mark)!r}\n" + (
        "for line in sys.stdin:\n"
        "  if not os.path.exists(mark):\n    open(mark, 'w').close()\n    sys.stdin.read()\n"
        "  send({'answer': 'late or not'})\n"
    )  # fmt: skip
    asked = worker(tmp_path, program, timeout_s=3.0)

    # On a busy machine not even the greeting may come in time: asked until the request itself hangs.
    def has_hung() -> bool:
        with pytest.raises(SlurmUnavailable, match="within 3 s"):
            asked.ask("read_status", "7")
        return mark.exists()

    def answer() -> object:
        with contextlib.suppress(SlurmUnavailable):
            return asked.ask("read_status", "8")
        return None

    wait_until(has_hung, timeout_s=300, what="a request that hangs")
    assert wait_until(answer, timeout_s=300, what="an answer of another process") == "late or not"
    asked.close()


def test_that_a_process_that_ends_raises_with_its_reason_and_is_replaced(tmp_path: Path) -> None:
    program = GREET + f"mark = {str(tmp_path / 'died')!r}\n" + (
        "for line in sys.stdin:\n"
        "  if not os.path.exists(mark):\n    open(mark, 'w').close()\n"
        "    sys.exit('python: fatal: no munge')\n"
        "  send({'answer': 'here'})\n"
    )  # fmt: skip
    asked = worker(tmp_path, program)
    with pytest.raises(SlurmUnavailable, match="fatal: no munge"):
        asked.ask("read_status", "7")
    assert asked.ask("read_status", "7") == "here"
    asked.close()


@pytest.mark.parametrize("answer", ["no JSON", "\\n", "[1]", "x" * 100_000])
def test_that_a_malformed_answer_ends_the_process(tmp_path: Path, answer: str) -> None:
    asked = worker(tmp_path, GREET + f"for line in sys.stdin:\n  print({answer!r}, flush=True)\n")
    with pytest.raises(SlurmUnavailable):
        asked.ask("read_status", "7")
    asked.close()


def test_that_a_refusal_has_slurms_error_number_and_message(tmp_path: Path) -> None:
    asked = worker(
        tmp_path, GREET + "for line in sys.stdin:\n  send({'errno': 2017, 'message': 'Invalid job id'})\n"
    )
    with pytest.raises(PySlurmRefusedError, match="Invalid job id") as caught:
        asked.ask("read_status", "7")
    assert caught.value.number == 2017
    asked.close()


def test_that_connecting_without_pyslurm_raises_at_once(tmp_path: Path) -> None:
    """A folder that shadows PySlurm, so that the test works where it is installed, too."""
    (tmp_path / "pyslurm.py").write_text("raise ImportError('not built for this Slurm')\n")
    for command in ("squeue", "sinfo", "scontrol", "scancel", "sbatch"):
        (tmp_path / command).touch(mode=0o755)
    (tmp_path / "slurm.conf").touch()
    python_path = os.pathsep.join([str(tmp_path), *(path for path in sys.path if path)])
    environ = {**os.environ, "PYTHONPATH": python_path, "SLURM_CONF": str(tmp_path / "slurm.conf")}
    with pytest.raises(SlurmUnavailable, match=r"not built for this Slurm.*backend = \"commands\""):
        connect(SlurmConfig(backend="pyslurm", bin_dir=str(tmp_path), command_timeout_s=300.0), environ)
