"""What `PySlurmJobCommands` makes of PySlurm's answers; `test_versions.py` runs it on the real thing."""

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

JOB = {
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
    """Return one whose Slurm commands are in `folder`."""
    return PySlurmJobCommands(
        Answers(answer), SlurmJobCommands(CommandRunner(environ=os.environ, bin_dir=folder, timeout_s=300.0))
    )


def refuses(number: int | None, message: str) -> Callable[[str, str], Any]:
    def answer(_do: str, _job_id: str) -> Any:
        raise PySlurmRefusedError(number, message)

    return answer


def test_that_a_job_is_read(tmp_path: Path) -> None:
    made = job_commands(lambda _do, _job_id: JOB, tmp_path)
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
        JOB | {"job": 8},
        JOB | {"priority": None},
        JOB | {"min_cpus": "1"},
        JOB | {"user_id": True},
        JOB | {"restart_count": None},
        JOB | {"state": "WONDERING"},
        {"job": 7},
    ],
)
def test_that_a_malformed_answer_is_an_error(odd: Any, tmp_path: Path) -> None:
    with pytest.raises(SlurmReadError, match="7"):
        job_commands(lambda _do, _job_id: odd, tmp_path).read_status("7")


def test_that_array_tasks_use_slurms_commands(tmp_path: Path) -> None:
    """The id 7 would mean the whole array."""
    log = tmp_path / "log"
    for name, answer in (("squeue", "7 7 0 RUNNING 100 1 1000 0"), ("scontrol", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\necho "{answer}"\n')
        (tmp_path / name).chmod(0o755)
    made = job_commands(lambda _do, _job_id: JOB | {"array": 7}, tmp_path)
    status = made.read_status("7")
    assert status is not None
    assert status.address == "7_0"
    made.requeue_hold("7", status.address)
    made.release("7", status.address)
    assert log.read_text().splitlines()[1:] == ["scontrol requeuehold 7_0", "scontrol release 7_0"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Access/permission denied", SlurmCommandError),
        ("Job is no longer pending execution", JobStateError),
        ("Unable to contact slurm controller (connect failure)", SlurmUnavailable),
    ],
)
def test_that_a_refused_command_raises_the_same_error_as_with_commands(
    message: str, error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"job 7: PySlurm: {message.partition('(')[0]}"):
        job_commands(refuses(1, message), tmp_path).requeue_hold("7", "7")


def test_that_an_unreachable_slurmctld_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(SlurmUnavailable):
        job_commands(refuses(1800, "Zero Bytes were transmitted or received"), tmp_path).read_status("7")


def test_that_the_worker_answers_each_request_on_one_line() -> None:
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
    sent: list[dict[str, Any]] = []
    module: Any = type(
        "pyslurm", (), {"Job": Job, "PyslurmError": PyslurmError, "JobSubmitDescription": dict}
    )
    requests = [{"do": do, "job": 7} for do in ("read_status", "requeue_hold", "release")]
    serve(
        module,
        io.StringIO("".join(json.dumps(request) + "\n" for request in requests)),
        sent.append,
    )
    assert sent == [
        {"errno": 2017, "message": "Invalid job id specified"},
        {"answer": None},
        {"answer": None},
    ]
    assert done == [(7, "requeue", True), (7, "modify", {"priority": 4294967295})]
