"""Functions that are called by real processes on this machine: results, exceptions, logs, own files only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pollux_slurm
from pollux_slurm.agent.environment.rank_environments import place_variables
from pollux_slurm.agent.exit_codes import LeftTraining
from pollux_slurm.errors import FunctionError, JobFailedError
from pollux_slurm.functions.files import remove_older_outcomes
from pollux_slurm.functions.job import SubmittedJob

TIMEOUT_S = 240.0
Submit = Callable[..., SubmittedJob[Any]]


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submit]:
    """Submit to this machine, to two processes unless another number is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for name in [name for name in os.environ if name.startswith(("SLURM", "POLLUX"))]:
        monkeypatch.delenv(name)
    jobs: list[SubmittedJob[Any]] = []

    def submit_here(function: Any, *args: Any, processes: int = 2, **options: Any) -> SubmittedJob[Any]:
        jobs.append(pollux_slurm.submit(function, *args, cluster="local", min_gpus=processes, **options))
        return jobs[-1]

    yield submit_here
    for job in jobs:
        job.cancel()
        job.wait(TIMEOUT_S)


def rank() -> int:
    return int(os.environ["RANK"])


def multiply(first: int, second: int) -> int:
    print(f"rank {rank()} prints")
    print(f"rank {rank()} warns", file=sys.stderr)
    return first * second + rank()


def regroup(num_left: int) -> str:
    """End as after a regroup: the last ranks have left, and the others have the ranks in reverse."""
    before, left = rank(), int(os.environ["WORLD_SIZE"]) - num_left
    if before >= left:
        raise LeftTraining
    os.environ.update(place_variables([left], node_index=0, rank=left - 1 - before))
    return f"was {before}"


def test_that_results_are_those_of_the_ranks_at_the_end(submit: Submit) -> None:
    assert submit(regroup, 1, processes=3).results(TIMEOUT_S) == ["was 1", "was 0"]


def test_that_a_function_is_called_in_each_process_and_its_values_come_back(
    submit: Submit, tmp_path: Path
) -> None:
    job = submit(multiply, 6, 7)
    assert job.result(TIMEOUT_S) == 42
    assert job.results() == [42, 43]
    assert (job.state, job.done(), job.exception()) == ("COMPLETED", True, None)
    assert sorted(job.stdout().splitlines()) == ["rank 0 prints", "rank 1 prints"]
    assert "rank 1 warns" in job.stderr()
    assert "rank 1 warns" in job.logs()
    again = SubmittedJob.load(job.folder)
    assert again == job
    assert again.result() == 42
    modes = {path.name: path.stat().st_mode & 0o777 for path in job.folder.iterdir()}
    assert {mode for name, mode in modes.items() if not name.endswith(".log")} == {0o600}
    assert job.folder.stat().st_mode & 0o777 == 0o700


def test_that_results_that_another_machine_has_written_are_waited_for(submit: Submit) -> None:
    job = submit(multiply, 6, 7)
    assert job.result(TIMEOUT_S) == 42
    file = job.folder / "rank-000001.outcome"
    hidden = file.rename(job.folder / "not there yet")
    later = threading.Timer(0.3, lambda: hidden.rename(file))
    later.start()
    assert job.results() == [42, 43]
    later.join()


def fail_on_rank_1() -> None:
    if rank() == 1:
        while not Path("ready").exists():
            time.sleep(0.01)
        raise KeyError("no such column")

    def fail_too(number: int, frame: object) -> None:
        raise RuntimeError("the other rank is gone")

    signal.signal(signal.SIGTERM, fail_too)
    Path("ready").touch()
    time.sleep(600)


class StrangeError(Exception):
    """Cannot be made again from its pickle."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def fail_strangely() -> None:
    raise StrangeError("this", "that")


def test_that_the_first_exception_of_any_rank_comes_back_with_its_traceback(submit: Submit) -> None:
    job = submit(fail_on_rank_1)
    with pytest.raises(FunctionError, match="rank 1 of job local-") as caught:
        job.result(TIMEOUT_S)
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.rank == 1
    assert "in fail_on_rank_1" in caught.value.traceback_text
    assert "replica.py" not in caught.value.traceback_text
    assert "KeyError: 'no such column'" in str(caught.value)
    assert "KeyError: 'no such column'" in job.stderr()
    assert "RuntimeError: the other rank is gone" in job.stderr()
    assert job.state == "FAILED"


def test_that_an_exception_that_cannot_be_pickled_comes_back_as_text(submit: Submit) -> None:
    error = submit(fail_strangely, processes=1).exception(TIMEOUT_S)
    assert isinstance(error, FunctionError)
    assert "StrangeError: this and that" in error.traceback_text
    assert error.__cause__ is None


def fail_with_an_error_that_only_replicas_have() -> None:
    from tests.functions.error_of_replicas import LocalError

    raise LocalError("no such GPU")


def test_that_an_exception_of_a_module_that_is_missing_here_comes_back_as_text(
    submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(fail_with_an_error_that_only_replicas_have, processes=1)
    # As on a login node without torch.
    monkeypatch.setitem(sys.modules, "tests.functions.error_of_replicas", None)
    error = job.exception(TIMEOUT_S)
    assert isinstance(error, FunctionError)
    assert "LocalError: no such GPU" in error.traceback_text
    assert error.__cause__ is None


def leave(code: int | None) -> None:
    sys.exit(code)


def test_that_sys_exit_is_a_result_or_an_error_by_its_code(submit: Submit) -> None:
    jobs = [submit(leave, code, processes=1) for code in (0, None, 3)]
    assert jobs[0].result(TIMEOUT_S) is None
    assert jobs[1].result(TIMEOUT_S) is None
    error = jobs[2].exception(TIMEOUT_S)
    assert isinstance(error, FunctionError)
    assert "SystemExit: 3" in error.traceback_text
    assert jobs[2].state == "FAILED"


def be_stopped() -> None:
    sys.exit(143)


def test_that_a_function_that_sigterm_has_stopped_has_no_outcome(submit: Submit) -> None:
    job = submit(be_stopped, processes=1)
    assert type(job.exception(TIMEOUT_S)) is JobFailedError
    assert not list(job.folder.glob("rank-*"))


def make_lock() -> Any:
    return threading.Lock()


def test_that_a_result_that_cannot_be_pickled_is_an_error_that_says_so(submit: Submit) -> None:
    error = submit(make_lock, processes=1).exception(TIMEOUT_S)
    assert isinstance(error, FunctionError)
    assert "has returned a lock, which cannot be pickled" in str(error)
    assert "let it return plain data" in str(error)


def die() -> None:
    print("what was last seen", flush=True)
    os.kill(os.getpid(), 9)


def test_that_a_job_that_ends_without_a_result_shows_its_state_and_the_end_of_its_log(
    submit: Submit,
) -> None:
    error = submit(die, processes=1).exception(TIMEOUT_S)
    assert type(error) is JobFailedError
    assert "its state is FAILED" in str(error)
    assert "what was last seen" in str(error)


def test_that_a_log_that_is_not_there_is_said_to_be_missing(submit: Submit) -> None:
    job = submit(die, processes=1)
    job.wait(TIMEOUT_S)
    job.stderr_file.unlink()
    assert "no such file: has the job started, and do its nodes share" in str(job.exception())


def wait_long() -> None:
    Path("started").touch()
    time.sleep(600)


def test_that_waiting_ends_in_time_and_a_cancelled_job_says_so(submit: Submit, tmp_path: Path) -> None:
    job = submit(wait_long, processes=1)
    with pytest.raises(TimeoutError, match=r"is not over after 0.1 s; its state is RUNNING"):
        job.result(timeout_s=0.1)
    assert not job.done()
    job.cancel()
    assert job.wait(TIMEOUT_S) == "CANCELLED"
    with pytest.raises(JobFailedError, match="its state is CANCELLED"):
        job.result()


def test_that_a_job_that_has_failed_cannot_be_cancelled(submit: Submit) -> None:
    job = submit(die, processes=1)
    job.wait(TIMEOUT_S)
    job.cancel()
    assert job.state == "FAILED"


def test_that_what_another_user_may_have_written_is_not_unpickled(submit: Submit) -> None:
    job = submit(multiply, 6, 7, processes=1)
    assert job.result(TIMEOUT_S) == 42
    file = job.folder / "rank-000000.outcome"
    content = file.read_bytes()
    for damaged in (b"", b"{}", b"[" * 100_000):
        file.write_bytes(damaged)
        with pytest.raises(JobFailedError, match="not what pollux has written"):
            job.result()
        remove_older_outcomes(job.folder, "another")
    file.write_bytes(content)
    file.chmod(0o602)
    with pytest.raises(JobFailedError, match="may contain another user's code"):
        job.result()
    file.chmod(0o600)
    target = file.rename(job.folder / "elsewhere")
    file.symlink_to(target)
    with pytest.raises(JobFailedError, match="cannot be read"):
        job.result()
    if os.geteuid() == 0:
        file.unlink()
        target.rename(file)
        os.chown(file, 65534, -1)
        with pytest.raises(JobFailedError, match="may contain another user's code"):
            job.result()
    file.unlink()


def test_that_a_replica_does_not_unpickle_a_call_that_others_may_write(submit: Submit) -> None:
    job = submit(multiply, 6, 7, processes=1)
    job.wait(TIMEOUT_S)
    (job.folder / "call.pkl").chmod(0o606)
    done = subprocess.run(
        [sys.executable, "-m", "pollux_slurm.functions.replica", str(job.folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "call.pkl is not read, since it may contain another user's code" in done.stderr


NOTEBOOK = """
import sys
sys.path.append("{modules}")
import pollux_slurm
cells = {{"__name__": "__main__"}}
exec("import helper, pollux_slurm\\nSCALE = 3", cells)
exec("def scaled(x):\\n    return helper.double(x) * SCALE", cells)
exec("job = pollux_slurm.submit(scaled, 7, cluster='local')", cells)
exec("SCALE = 4", cells)
exec("print(job.result(timeout_s=240))", cells)
"""


def test_that_a_function_of_a_notebooks_cell_is_called_as_it_was_when_submitted(tmp_path: Path) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK.format(modules=modules)],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "42\n", done.stderr


def test_that_a_module_is_the_one_that_the_submitting_process_had(tmp_path: Path) -> None:
    for folder, text in (("mine", "'mine'"), ("here", "'another of this name'")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper.py").write_text(f"def who():\n    return {text}\n")
    code = "import helper, pollux_slurm; print(pollux_slurm.submit(helper.who, cluster='local').result(240))"
    (tmp_path / "mine/launch.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "../mine/launch.py"],
        cwd=tmp_path / "here",
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "mine\n", done.stderr
