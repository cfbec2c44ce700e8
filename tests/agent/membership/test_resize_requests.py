"""Requests to resize a run, from who asks to the launcher and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pollux_slurm.agent.membership.folder import MembershipFolder
from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.agent.membership.resize_requests import ResizeAnswer, ResizeRequests
from pollux_slurm.errors import LaunchError


def test_that_requests_are_carried_out_in_their_order_and_answered(tmp_path: Path) -> None:
    requests = ResizeRequests(tmp_path)
    assert requests.take() is None
    first, second = requests.ask(3), requests.ask(2, [0, 1])
    assert requests.take() == first
    assert requests.take_answer(first) is None
    requests.answer(first, ResizeAnswer(is_done=True, text="3 processes"))
    assert requests.take() == second
    assert (second.num_processes, second.leaves) == (2, (0, 1))
    assert requests.take_answer(first) == ResizeAnswer(is_done=True, text="3 processes")
    requests.answer(second, ResizeAnswer(is_done=False, text="no"))
    assert requests.take_answer(second) == ResizeAnswer(is_done=False, text="no")
    assert requests.take_answer(second) is None
    assert list(tmp_path.iterdir()) == []


def test_that_a_request_is_withdrawn_at_once_or_by_the_launcher_that_has_begun_it(tmp_path: Path) -> None:
    requests = ResizeRequests(tmp_path)
    begun, waiting = requests.ask(3), requests.ask(2)
    assert requests.take() == begun
    assert not requests.is_withdrawn(begun)
    assert requests.withdraw(waiting)
    assert not requests.withdraw(begun)
    assert requests.is_withdrawn(begun)
    assert requests.take() is None


def test_that_a_request_has_the_generation_whose_ranks_it_means(tmp_path: Path) -> None:
    folder, requests = MembershipFolder(tmp_path), ResizeRequests(tmp_path)
    assert requests.ask(2).generation == 0
    folder.write_plan(Generation(number=4, members=(Member(id="0", node="localhost"),)))
    assert requests.ask(2).generation == 0
    assert folder.commit(4)
    assert requests.ask(2).generation == 4


def test_that_a_request_of_another_release_is_dropped(tmp_path: Path) -> None:
    requests = ResizeRequests(tmp_path)
    for number, content in enumerate(({"id": "x"}, {"leaves": 3}, [], {"leaves": [], "unknown": 1})):
        (tmp_path / f"wanted-0-{number}.json").write_text(json.dumps(content))
    request = requests.ask(2)
    assert requests.take() == request
    assert len(list(tmp_path.iterdir())) == 1


def test_that_a_run_is_found_as_long_as_its_launcher_announces_it(tmp_path: Path) -> None:
    requests = ResizeRequests(tmp_path)
    assert requests.run() is None
    with requests.announced(["python", "my train.py"]):
        found = ResizeRequests(tmp_path).run()
        assert found is not None
        assert found.command == "python 'my train.py'"
        # Who looks takes nothing from the launcher.
        assert ResizeRequests(tmp_path).run() == found
        (tmp_path / "run.json").write_text('{"pid": Infinity}')
        assert ResizeRequests(tmp_path).run() is None
    assert requests.run() is None


def test_that_to_ask_a_run_that_has_just_ended_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the run has just ended"):
        ResizeRequests(tmp_path / "x").ask(2)
