"""What the job_commands makes of PySlurm's answers; `test_versions.py` runs it on the real thing."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import JobStateError, SlurmCommandError, SlurmReadError, SlurmUnavailable
from pollux_slurm.model import JobState
from pollux_slurm.slurm.commands.job_commands import JobStatus, SlurmJobCommands
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.pyslurm.job_commands import PySlurmJobCommands
from pollux_slurm.slurm.pyslurm.process import PySlurmRefusedError, PySlurmWorker
from pollux_slurm.slurm.pyslurm.worker import serve

SEEN = {
    "job": 7,
    "array": None,
    "state": "PENDING",
    "priority": 0,
    "min_cpus": 1,
    "user_id": 1000,
    "restart_count": 2,
}


class Answers(PySlurmWorker):
    """A worker that answers by itself."""

    def __init__(self, answer: Callable[[str, str], Any]) -> None:
        super().__init__(os.environ)
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def ask(self, do: str, job_id: str) -> Any:
        self.asked.append((do, job_id))
        return self.answer(do, job_id)


def job_commands(answer: Callable[[str, str], Any], folder: Path) -> PySlurmJobCommands:
    """Return a job_commands whose commands are in `folder`."""
    return PySlurmJobCommands(
        Answers(answer), SlurmJobCommands(CommandRunner(environ=os.environ, bin_dir=folder, timeout_s=300.0))
    )


def refuses(number: int | None, words: str) -> Callable[[str, str], Any]:
    def answer(_do: str, _job_id: str) -> Any:
        raise PySlurmRefusedError(number, words)

    return answer


def test_that_a_job_is_read(tmp_path: Path) -> None:
    made = job_commands(lambda _do, _job_id: SEEN, tmp_path)
    assert made.read_status("7") == JobStatus(
        address="7", state=JobState.PENDING, held=True, min_cpus_per_node="1", user_id=1000, restart_count=2
    )


def test_that_an_unknown_job_is_none(tmp_path: Path) -> None:
    assert job_commands(refuses(2017, "Invalid job id specified"), tmp_path).read_status("7") is None


@pytest.mark.parametrize(
    "odd",
    [
        None,
        {},
        SEEN | {"job": 8},
        SEEN | {"priority": None},
        SEEN | {"min_cpus": "1"},
        SEEN | {"user_id": True},
        SEEN | {"restart_count": None},
        SEEN | {"state": "WONDERING"},
    ],
)
def test_that_an_answer_that_makes_no_sense_is_an_error(odd: Any, tmp_path: Path) -> None:
    with pytest.raises(SlurmReadError, match="7"):
        job_commands(lambda _do, _job_id: odd, tmp_path).read_status("7")


def test_that_tasks_of_arrays_go_through_the_commands(tmp_path: Path) -> None:
    """The number 7 would mean the whole array."""
    log = tmp_path / "log"
    for name, answer in (("squeue", "7 7 0 RUNNING 100 1 1000 0"), ("scontrol", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\necho "{answer}"\n')
        (tmp_path / name).chmod(0o755)
    made = job_commands(lambda _do, _job_id: SEEN | {"array": 7}, tmp_path)
    read_status = made.read_status("7")
    assert read_status is not None
    assert read_status.address == "7_0"
    made.requeue_hold("7", read_status.address)
    made.release("7", read_status.address)
    assert log.read_text().splitlines()[1:] == ["scontrol requeuehold 7_0", "scontrol release 7_0"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Access/permission denied", SlurmCommandError),
        ("Job is no longer pending execution", JobStateError),
        ("Unable to contact slurm controller (connect failure)", SlurmUnavailable),
    ],
)
def test_that_a_refused_command_is_the_error_that_it_is_with_commands(
    words: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"job 7: PySlurm: {words.partition('(')[0]}"):
        job_commands(refuses(1, words), tmp_path).requeue_hold("7", "7")


def test_that_a_silent_slurmctld_is_no_answer_about_a_job(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable):
        job_commands(refuses(1800, "Zero Bytes were transmitted or received"), tmp_path).read_status("7")


def test_that_the_worker_answers_each_question_on_its_line() -> None:
    class PyslurmError(Exception):
        pass

    class Job:
        def __init__(self, number: int) -> None:
            self.number = number

        @staticmethod
        def load(_number: int) -> Any:
            error = PyslurmError("Invalid job id specified")
            error.errno = 2017  # type: ignore[attr-defined]
            raise error

        def requeue(self, *, hold: bool) -> None:
            done.append((self.number, "requeue", hold))

        def modify(self, changes: dict[str, int]) -> None:
            done.append((self.number, "modify", changes))

    done: list[Any] = []
    stderr_file: list[dict[str, Any]] = []
    module: Any = type(
        "pyslurm", (), {"Job": Job, "PyslurmError": PyslurmError, "JobSubmitDescription": dict}
    )
    questions = [{"do": do, "job": 7} for do in ("read_status", "requeue_hold", "release")]
    serve(
        module,
        io.StringIO("".join(json.dumps(question) + "\n" for question in questions)),
        stderr_file.append,
    )
    assert stderr_file == [
        {"errno": 2017, "message": "Invalid job id specified"},
        {"answer": None},
        {"answer": None},
    ]
    assert done == [(7, "requeue", True), (7, "modify", {"priority": 4294967295})]
