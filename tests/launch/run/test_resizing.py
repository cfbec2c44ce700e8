"""Processes that join and leave a run: real ones, which do what a training does at a step boundary."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.launch.run.resizable import ResizableRun, runs, stop
from tests.waiting import is_gone, wait_until

__all__ = ["runs"]
NO_NEWCOMER_JOINS = "if joins: time.sleep(1000)\n"


def start(runs: list[ResizableRun], home: Path, script: str = "", **options: Any) -> ResizableRun:
    runs.append(ResizableRun(home, script, **options))
    return runs[-1]


def test_that_processes_join_and_leave_and_are_replaced(runs: list[ResizableRun], tmp_path: Path) -> None:
    run = start(runs, tmp_path)
    answer = run.resize(3)
    assert (answer.is_done, answer.text) == (True, "3 processes, after 0.50 s without a step")
    assert run.environ("2") == {
        "POLLUX_JOINS": "1",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "2",
        "POLLUX_RENDEZVOUS_FILE": None,
    }
    assert run.resize(3).text == "3 processes already"
    assert run.resize(2, 0).is_done
    assert is_gone(run.pid("0"))
    # It gets the GPU of the one that has left.
    assert run.resize(2, 0).is_done
    newcomer = run.environ("3")
    assert (newcomer["LOCAL_RANK"], newcomer["RANK"], newcomer["WORLD_SIZE"]) == ("0", "1", "2")
    assert is_gone(run.pid("1"))
    assert run.resize(1).text == "1 process, after 0.50 s without a step"
    # Files of former generations are deleted.
    assert {path.name for path in run.folder.iterdir()} == {
        "run.json",
        "generation-000004.json",
        "plan-000004.json",
        "regrouped-000004.json",
    }
    assert run.end() == ["outcome 0 False 1"]


def test_that_a_request_that_cannot_be_carried_out_is_answered_with_the_reason(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    run = start(runs, tmp_path, count=2, num_gpus=3)
    late = run.requests.ask(1, [0])
    assert run.answer(late).is_done
    for wanted, leaves, reason in (
        (4, (), "this run has 3 GPUs, and each process needs its own"),
        (1, (2,), "there is no replica 2: they are 0 to 0"),
        (1, (0,), "all replicas were to leave"),
        (0, (), "all replicas were to leave"),
    ):
        answer = run.resize(wanted, *leaves)
        assert not answer.is_done
        assert reason in answer.text
    assert run.resize(3).is_done
    assert "too few of the 3 GPUs are free" in run.resize(3, 1).text
    # The ranks that were meant are those of another generation.
    first, second = run.ask(2), run.ask(1, 0)
    assert run.answer(first).is_done
    assert "the replicas have other ranks since then" in run.answer(second).text
    assert run.end() == ["outcome 0 False 2"]


def test_that_a_newcomer_that_fails_ends_nothing_but_its_own_change(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
if joins == 1:
    if rank == 3:
        wait_for("pid-2")
        membership.refuse(joins, "ValueError: no data")
        sys.exit(5)
    time.sleep(1000)
"""
    run = start(runs, tmp_path, script)
    first, second = run.ask(4), run.ask(3)
    reason = "a new process has ended (exit code 5) before it could join: ValueError: no data"
    answer = run.answer(first)
    assert (answer.is_done, answer.text) == (False, reason)
    # Those of the withdrawn change have ended before others start, so each has a GPU of its own.
    assert run.answer(second).is_done
    assert is_gone(run.pid("2"))
    assert (run.environ("4")["LOCAL_RANK"], run.environ("4")["POLLUX_JOINS"]) == ("2", "2")
    assert run.end() == [f"warning: the processes go on as they were: {reason}", "outcome 0 False 3"]


def test_that_a_change_is_withdrawn_with_its_request_and_its_plan_can_no_longer_be_committed(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
def planned(plan):
    mark("planned")
    wait_for("withdrawn")
    mark("committed", commit(plan))
    while membership.planned(number) is not None: time.sleep(0.005)
"""
    run = start(runs, tmp_path, script)
    request = run.ask(3)
    run.wait_for("planned-0")
    run.requests.withdraw(request)
    assert run.answer(request).text == "the request was withdrawn"
    run.mark("withdrawn")
    assert run.wait_for("committed-0").read_text() == "False"
    wait_until(lambda: is_gone(run.pid("2")), timeout_s=120, what="the end of the newcomer")
    assert run.end() == ["outcome 0 False 2"]


def test_that_a_newcomer_that_ignores_sigterm_is_killed_before_the_next_request_is_begun(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
if joins == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark("started")
    time.sleep(1000)
"""
    run = start(runs, tmp_path, script, kill_after_s=0.2)
    first, second = run.ask(3), run.ask(3)
    run.wait_for("started-2")
    run.requests.withdraw(first)
    assert run.answer(second).is_done
    # It has the GPU of the one that was killed.
    assert run.environ("3")["LOCAL_RANK"] == "2"
    assert is_gone(run.pid("2"))
    assert run.end() == ["outcome 0 False 3"]


def test_that_a_process_that_has_left_is_killed_if_it_does_not_end(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
def left():
    mark("left")
    time.sleep(1000)
"""
    run = start(runs, tmp_path, script)
    request = run.ask(1)
    run.wait_for("left-1")
    run.wait_for("regrouped-000001.json", folder=run.folder)
    # Its GPU is not free.
    assert not run.requests.is_withdrawn(request)
    run.mark("late")
    assert run.answer(request).is_done
    assert is_gone(run.pid("1"))
    assert run.end() == [
        "warning: a process that had left the training was killed after 60 s",
        "outcome 0 False 1",
    ]


@pytest.mark.parametrize("end", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_that_a_training_goes_on_whatever_the_exit_code_of_one_that_has_left(
    runs: list[ResizableRun], tmp_path: Path, end: str
) -> None:
    run = start(runs, tmp_path, f"def left(): {end}\n")
    assert run.resize(1, 0).is_done
    assert run.end() == ["outcome 0 False 1"]


def test_that_a_member_that_dies_in_a_regroup_ends_the_run_and_the_others_are_told(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def joined():
    if me == "2": sys.exit(7)
    while not membership.is_given_up(number): time.sleep(0.005)
    mark("told")
    sys.exit(1)
"""
    run = start(runs, tmp_path, script)
    run.ask(3)
    run.wait_for("told-0")
    assert run.output() == ["outcome 7 True 3"]


def test_that_the_end_of_training_ends_newcomers(runs: list[ResizableRun], tmp_path: Path) -> None:
    run = start(runs, tmp_path, NO_NEWCOMER_JOINS)
    run.ask(3)
    newcomer = run.pid("2")
    assert run.end() == ["outcome 0 False 2"]
    assert is_gone(newcomer)


def test_that_no_plan_can_be_committed_from_the_moment_that_processes_are_asked_to_stop(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
def asked(*_):
    plan = membership.planned(0)
    mark("asked", plan is not None and commit(plan))
    sys.exit(143)
signal.signal(signal.SIGTERM, asked)
mark("handles-signals")
"""
    run = start(runs, tmp_path, script)
    run.mark("hold")
    run.ask(3)
    run.wait_for_plan(1)
    run.wait_for("handles-signals-0")
    run.signal(signal.SIGTERM)
    assert run.output() == ["outcome 143 False 2"]
    assert run.wait_for("asked-0").read_text() == "False"


def test_that_a_stop_gives_up_no_generation_that_is_committed(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    script = """
signal.signal(signal.SIGTERM, lambda *_: mark("asked"))
mark("handles-signals")
def planned(plan):
    wait_for("handles-signals-1")
    commit(plan)
    os.kill(os.getppid(), signal.SIGTERM)
def joined():
    wait_for(f"asked-{me}")
    mark("given-up", membership.is_given_up(number))
    sys.exit(143)
"""
    run = start(runs, tmp_path, script)
    run.ask(3)
    assert run.output() == ["outcome 143 False 3"]
    assert [run.wait_for(f"given-up-{member}").read_text() for member in "012"] == ["False"] * 3


def test_that_a_training_goes_on_if_newcomers_cannot_be_started(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    run = start(runs, tmp_path)
    run.pid("0"), run.pid("1")
    run.python.unlink()
    answer = run.resize(3)
    assert (answer.is_done, answer.text) == (False, f"{run.python}: command not found")
    assert run.end()[-1] == "outcome 0 False 2"


def test_that_a_training_goes_on_if_a_plan_cannot_be_written(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    run = start(runs, tmp_path)
    run.pid("0")
    (run.folder / "plan-000001.json").mkdir()  # in the plan's way
    answer = run.resize(3)
    assert (answer.is_done, "the plan cannot be written: Is a directory" in answer.text) == (False, True)
    assert run.resize(3).is_done
    assert run.end()[-1] == "outcome 0 False 3"


def test_that_a_training_goes_on_without_its_folder(runs: list[ResizableRun], tmp_path: Path) -> None:
    run = start(runs, tmp_path, 'if joins: membership.report_ready(); wait_for("away")\n')
    run.ask(3)
    newcomer = run.pid("2")
    # Moved, and then removed: what is written into it meanwhile keeps no folder from going away.
    shutil.rmtree(run.folder.rename(tmp_path / "removed"), ignore_errors=True)
    run.mark("away")
    wait_until(lambda: is_gone(newcomer), timeout_s=120, what="the end of the newcomer")
    assert run.end()[-1] == "outcome 0 False 2"


def test_that_a_script_that_refuses_every_generation_is_not_started_again(
    runs: list[ResizableRun], tmp_path: Path
) -> None:
    run = start(runs, tmp_path, 'membership.refuse(0, "it owns its group"); mark("refused")\n')
    run.wait_for("refused-0")
    assert run.resize(3).text == "the script cannot be moved in place: it owns its group"
    assert run.end() == ["outcome 0 False 2"]
    assert not (run.marks / "pid-2").exists()


def test_that_processes_die_with_the_launcher(runs: list[ResizableRun], tmp_path: Path) -> None:
    run = start(runs, tmp_path)
    assert run.resize(3).is_done
    pids = [run.pid(member) for member in "012"]
    stop(run.process.pid)
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), timeout_s=120, what="the end of a process")
    assert run.requests.run() is None
