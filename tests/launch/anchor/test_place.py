"""What an anchor does by what the queue shows of its own job. Slurm's commands are scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pollux_slurm.launch.anchor.place import Place
from pollux_slurm.launch.anchor.seen_job import SeenJob
from pollux_slurm.launch.anchor.start import Start, Wing
from pollux_slurm.model import JobState
from tests.launch.anchor.site import ScriptedSlurm

OWN = SeenJob(state=JobState.RUNNING, node="n0", time_left_s=90_000.0)
WAITS = SeenJob(state=JobState.PENDING, reason="Resources")
TRAINS = SeenJob(state=JobState.RUNNING, node="n3")


class Site(ScriptedSlurm):
    """Anchor 1, which began at 0 s, and wing 10 of its start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.place = Place(self.jobs(), self.said.append, began_s=0.0)
        self.start = Start(0, wings={"10": Wing("10", 0)})

    def is_lost(
        self, own: SeenJob = OWN, wing: SeenJob = WAITS, *, now_s: float = 5.0, rest_s: float | None = 3600.0
    ) -> bool:
        return self.place.is_lost(self.start, {"1": own, "10": wing}, now_s, rest_s=rest_s)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(
    ("own", "is_lost"),
    [
        (OWN, False),
        (replace(OWN, state=JobState.COMPLETING), False),
        (replace(OWN, state=JobState.SUSPENDED), False),
        (replace(OWN, node="n1"), True),
        (replace(OWN, state=JobState.PENDING, node=""), True),
        (replace(OWN, state=JobState.FAILED), True),
    ],
)
def test_that_a_run_ends_whose_job_is_not_here(site: Site, own: SeenJob, is_lost: bool) -> None:
    """Its node's slurmd was lost, and Slurm has requeued the job."""
    assert site.is_lost(own, TRAINS) is is_lost
    assert site.asked("scontrol") == []


def test_that_a_job_that_the_queue_does_not_show_stays(site: Site) -> None:
    assert not site.place.is_lost(site.start, {}, 5.0, rest_s=None)


@pytest.mark.parametrize(
    ("now_s", "time_left_s", "rest_s", "is_lost"),
    [
        (900.0, 3901.0, 3600.0, False),
        (900.0, 3899.0, 3600.0, True),
        (700.0, 299.0, None, True),
        (900.0, None, 3600.0, False),
        # Where the two time limits are equal, its wing would lose its place again and again.
        (500.0, 299.0, None, False),
        (899.0, 3899.0, 3600.0, False),
    ],
)
def test_that_an_anchor_with_too_little_time_for_the_training_goes_back_into_the_queue(
    site: Site, now_s: float, time_left_s: float | None, rest_s: float | None, is_lost: bool
) -> None:
    own = replace(OWN, time_left_s=time_left_s)
    assert not site.is_lost(own, TRAINS, now_s=now_s, rest_s=rest_s)
    assert site.is_lost(own, now_s=now_s, rest_s=rest_s) is is_lost
    assert len(site.asked("scontrol requeue 1")) == is_lost


@pytest.mark.parametrize("reason", ["AssocGrpJobsLimit", "QOSMaxJobsPerUserLimit"])
def test_that_a_limit_on_jobs_that_lasts_sends_the_anchor_back_into_the_queue(
    site: Site, reason: str
) -> None:
    limited = replace(WAITS, reason=reason)
    assert not site.is_lost(wing=limited, now_s=0.0)
    assert not site.is_lost(wing=limited, now_s=39.0)
    assert not site.is_lost(now_s=45.0)
    assert not site.is_lost(wing=limited, now_s=81.0)
    assert site.is_lost(wing=limited, now_s=162.0)
    assert len(site.asked("scontrol requeue 1")) == 1


@pytest.mark.parametrize(("state", "is_lost"), [("draining", True), ("drained*", True), ("mixed", False)])
def test_that_an_anchor_whose_wing_waits_leaves_a_drained_node(site: Site, state: str, is_lost: bool) -> None:
    site.command("sinfo", f"echo {state}")
    assert not site.is_lost(now_s=59.0)
    assert not site.is_lost(wing=TRAINS, now_s=61.0)
    assert site.asked("sinfo") == []
    assert site.is_lost(now_s=61.0) is is_lost
    assert "--nodes=n0" in site.asked("sinfo")[0]
    assert not site.is_lost(now_s=66.0)
    assert len(site.asked("sinfo")) == 1


def test_that_an_anchor_that_cannot_be_requeued_stays_and_tries_again(site: Site) -> None:
    site.command("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    own = replace(OWN, time_left_s=0.0)
    assert not site.is_lost(own, now_s=900.0)
    assert not site.is_lost(own, now_s=1499.0)
    assert not site.is_lost(own, now_s=1500.0)
    assert site.asked("scontrol") == ["scontrol requeue 1"] * 2
    site.command("scontrol", "")
    assert site.is_lost(own, now_s=2100.0)


def test_that_the_hold_of_an_anchor_is_passed_on_and_so_is_its_end(site: Site) -> None:
    site.command("squeue", "echo 10 10 N/A PENDING 42 1 $(id -u) 0")
    held = replace(OWN, is_held=True)
    assert not site.is_lost(held)
    assert site.asked("scontrol") == ["scontrol update JobId=10 MinCPUsNode=1 Priority=0"]
    held_wing = replace(WAITS, is_held=True)
    assert not site.is_lost(held, held_wing)
    assert len(site.asked("scontrol")) == 1
    site.command("squeue", "echo 10 10 N/A PENDING 0 1 $(id -u) 0")
    assert not site.is_lost(OWN, held_wing)
    assert site.asked("scontrol")[1:] == ["scontrol release 10"]


def test_that_a_wing_that_its_owner_holds_stays_held(site: Site) -> None:
    site.command("squeue", "echo 10 10 N/A PENDING 0 1 $(id -u) 0")
    assert not site.is_lost(replace(OWN, time_left_s=0.0), replace(WAITS, is_held=True), now_s=700.0)
    assert site.asked("scontrol") == []
