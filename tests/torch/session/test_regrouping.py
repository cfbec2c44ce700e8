"""When a process refuses a plan: before its newcomers have started, or once its states are collected."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from pollux_slurm.agent.membership.generation import Generation, Member
from pollux_slurm.resources import CODE_REPLACED, code_on_disk
from pollux_slurm.torch.boundary.step_boundary import RegroupPlace
from pollux_slurm.torch.regroup.collective_calls import CollectiveCall
from pollux_slurm.torch.regroup.obstacles import Obstacles
from pollux_slurm.torch.session.regrouping import Regrouping
from pollux_slurm.torch.session.session import Session
from tests.torch.single_replica import joined

pytestmark = pytest.mark.torch


class Plans:
    """The membership of a training for which one more replica is started."""

    host = None

    def __init__(self) -> None:
        self.plan = Generation(number=1, members=(Member(id="a", node="n"), Member(id="b", node="n")))
        self.refused: list[tuple[int, str]] = []

    def planned(self, after: int) -> None:
        del after

    def announced(self, after: int) -> Generation:
        del after
        return self.plan

    def refuse(self, number: int, reason: str) -> None:
        self.refused.append((number, reason))


def planned(session: Session) -> tuple[Regrouping, Plans]:
    """Let a training know of plans, which nobody has made for it."""
    regrouping, plans = session.regrouping, Plans()
    regrouping._membership, regrouping.members = cast("Any", plans), ["a"]
    regrouping._code, regrouping.obstacles = code_on_disk(), Obstacles(watches=False)
    return regrouping, plans


def test_that_what_is_known_is_said_once_before_newcomers_have_started() -> None:
    with joined() as session:
        regrouping, plans = planned(session)
        assert regrouping.wanted(RegroupPlace.STEP) == 0
        assert not plans.refused
        plans.plan = replace(plans.plan, number=2)
        regrouping.replay.varies = True
        regrouping.replay.varying_call = CollectiveCall("barrier", "/home/a/train.py", 7)
        for _ in range(2):
            assert regrouping.wanted(RegroupPlace.STEP) == 0
        ((number, reason),) = plans.refused
        assert number == 2
        assert reason.startswith("it calls barrier (/home/a/train.py, line 7) in some steps only")
        # Those that leave count nothing anew.
        plans.plan = replace(plans.plan, number=3, members=plans.plan.members[:1])
        regrouping.wanted(RegroupPlace.STEP)
        assert len(plans.refused) == 1
        regrouping._membership = None


def test_that_a_reason_found_while_states_are_collected_stops_a_regroup() -> None:
    with joined() as session:
        regrouping, plans = planned(session)
        regrouping.refuse("its optimizer's state is spread")
        assert regrouping._commit(1) is None
        assert plans.refused == [
            (0, "its optimizer's state is spread"),
            (1, "its optimizer's state is spread"),
        ]
        regrouping._membership = None


def test_that_a_training_that_was_upgraded_meanwhile_is_refused_before_it_grows_or_shrinks() -> None:
    with joined() as session:
        regrouping, plans = planned(session)
        regrouping._code = (0, 0)
        regrouping.wanted(RegroupPlace.STEP)
        plans.plan = replace(plans.plan, number=2, members=plans.plan.members[:1])
        regrouping.wanted(RegroupPlace.STEP)
        regrouping._code = code_on_disk()
        plans.plan = replace(plans.plan, number=3)
        regrouping.wanted(RegroupPlace.STEP)
        assert plans.refused == [(1, CODE_REPLACED), (2, CODE_REPLACED)]
        regrouping._membership = None
