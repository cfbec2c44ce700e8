"""What a listener hears of a training, and in which order."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

import pollux_slurm.torch as pt
from pollux_slurm.torch import start
from pollux_slurm.torch.session.events import Event, Listener
from pollux_slurm.torch.session.session import Session
from tests.torch.single_replica import Numbers, Trainee, joined

pytestmark = pytest.mark.torch
STEP = ["begin_micro_batch", "end_micro_batch", "end_step", "step_done"]


class Heard(Listener):
    """Keeps the names of the events that it hears; they are Listener's, whatever it has."""

    def __init__(self) -> None:
        self.names: list[str] = []


def _keep(name: str, self: Heard, *args: Any, is_left: bool = False, **facts: Any) -> None:
    self.names.append(f"{name} early" if is_left else name)


for _name, _method in inspect.getmembers(Listener, inspect.isfunction):
    setattr(Heard, _name, functools.partialmethod(functools.partial(_keep, _name)))


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    listener = Heard()
    monkeypatch.setattr(start, "Session", functools.partial(Session, listener=listener))
    return listener.names


def test_that_hearers_are_told_in_their_order() -> None:
    told: list[Any] = []
    event: Event[[int]] = Event(told.append, lambda number: told.append(-number))
    event(3)
    event(4)
    assert told == [3, -3, 4, -4]


def test_that_a_training_tells_its_events_in_their_order(heard: list[str]) -> None:
    with joined():
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        evaluated = pt.AdaptiveDataLoader(Numbers(2), batch_size=2)
        for _ in pt.remaining_epochs_until(1):
            for inputs, _ in loader:
                trainee.step(inputs)
                for _ in evaluated:
                    pass
    # A loop inside of another one tells its begin and its end only.
    inner = ["enter_loop", "leave_loop"]
    assert heard == [
        *("declare_epochs", "enter_loop"),
        *(STEP[0], *inner, *STEP[1:], STEP[0], *inner, *STEP[1:]),
        *("end_loop", "loop_done", "leave_loop"),
        *("end_epoch", "finish"),
    ]


def test_that_a_loop_that_is_left_early_says_so(heard: list[str]) -> None:
    with joined():
        trainee, loader = Trainee(), pt.AdaptiveDataLoader(Numbers(4), batch_size=2)
        for inputs, _ in loader:
            trainee.step(inputs)
            break
    assert heard == ["enter_loop", "begin_micro_batch", "leave_loop early"]
