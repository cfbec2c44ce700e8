"""`pollux pause`, `drain` and `resume`: orders for a job that is being moved."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pollux_slurm.cli.jobs import pause_resume_drain
from pollux_slurm.errors import NotYetError, UsageError


def test_that_an_order_waits_for_the_end_of_a_move(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pause_resume_drain, "_POLL_S", 0.0)
    answers: list[Any] = [NotYetError("job 7 is being moved"), NotYetError("job 7 has not reported"), "done"]

    def give(_store: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    store: Any = None
    assert pause_resume_drain._given(give, store, math.inf) == "done"
    assert capsys.readouterr().err == "pollux: job 7 is being moved; waiting for that\n"


@pytest.mark.parametrize("error", [NotYetError("job 7 is being moved"), UsageError("job 7 is over")])
def test_that_an_order_without_a_wait_and_a_wrong_one_are_refused_at_once(error: UsageError) -> None:
    given: list[Any] = []

    def give(store: Any) -> Any:
        given.append(store)
        raise error

    with pytest.raises(type(error), match="job 7"):
        pause_resume_drain._given(give, given, -math.inf if isinstance(error, NotYetError) else math.inf)
    assert len(given) == 1
