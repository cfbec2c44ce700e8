"""What is said of a daemon that is not there, and of the jobs that it left held."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from pollux_slurm.daemon.doctor.findings import Verdict, examine_daemon
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.observe import daemon_presence
from pollux_slurm.daemon.observe.daemon_presence import ShownJob, absence, left_held, newcomer, shown_now
from pollux_slurm.daemon.service.metrics import Telemetry
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import DaemonStatus
from tests.cli.inside import pollux
from tests.daemon.builders import NOON, job, node, reallocation, record, snapshot
from tests.daemon.world import World

SEEN = DaemonStatus(
    owner="ctl:4711:ab",
    renewed_at=NOON,
    expires_at=NOON + timedelta(seconds=30),
    last_round_at=NOON - timedelta(seconds=20),
)
DEAD = NOON + timedelta(minutes=7)
MOVING = {"source": {"n0": 1}, "target": {"n0": 2}}


def moved(job_id: str, step: Step) -> ShownJob:
    return ShownJob(record=record(job_id, open_reallocation=reallocation(1, job_id, step, **MOVING)))


@pytest.mark.parametrize(
    ("seen", "after_s", "said"),
    [
        (SEEN, 30, None),
        (SEEN, 39, None),  # clocks of two hosts may differ so much
        (
            SEEN,
            41,
            "the daemon is silent: process 4711 on ctl gave its last sign 41 s ago and was not stopped",
        ),
        (DaemonStatus(), 0, "no daemon has run on this store yet"),
        (
            DaemonStatus(last_round_at=NOON),
            300,
            "no daemon runs: the last one was stopped, its last round is 5 min old",
        ),
    ],
)
def test_that_what_is_said_depends_on_how_the_last_one_ended(
    seen: DaemonStatus, after_s: float, said: str | None
) -> None:
    assert absence(seen, NOON + timedelta(seconds=after_s)) == said


def test_that_a_job_that_no_daemon_has_looked_at_is_told_when_one_will() -> None:
    paced = dataclasses.replace(SEEN, interval_s=60, watch_s=10)
    came = job("7", JobState.PENDING, reason="Priority", submitted_at=NOON)
    first = "job 7 was submitted 3 s ago and is pending (Priority)"
    at = NOON + timedelta(seconds=3)
    looks = "the daemon looks at Slurm every 10 s, and a round about what is new comes at once"
    assert newcomer(came, paced, at) == f"{first}; it is not looked at yet: {looks}"
    assert (
        newcomer(came, DaemonStatus(), at)
        == f"{first}, and nobody has looked at it: no daemon has run on this store yet"
    )
    long_ago = dataclasses.replace(came, state=JobState.RUNNING, submitted_at=NOON - timedelta(minutes=9))
    assert newcomer(long_ago, paced, at).endswith(
        f"{looks}; it may serve other partitions or other users' jobs only, its log says so"
    )


def test_that_jobs_left_held_are_named_with_what_lets_them_go() -> None:
    said = absence(SEEN, DEAD, ["3", "5"])
    assert said is not None
    assert "held in the midst of a move: 3, 5;" in said
    assert said.endswith("scontrol release 3 5")


@pytest.mark.parametrize("step", [step for step in Step if not step.is_end])
def test_that_a_held_job_is_found_by_slurm_or_else_by_the_journal(step: Step) -> None:
    moving = record("3", open_reallocation=reallocation(1, "3", step, **MOVING))
    held = snapshot([node("n0")], [job("3", JobState.PENDING, held=True)])
    free = snapshot([node("n0")], [job("3", JobState.PENDING)])
    beyond = step in (Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
    assert left_held(shown_now([moving], held)) == (("3",) if beyond else ())
    assert left_held(shown_now([moving], free)) == ()
    assert left_held(shown_now([moving], None)) == (("3",) if step in (Step.REQUEUED, Step.RESHAPED) else ())


def test_that_slurm_says_what_a_job_is_and_another_jobs_comment_says_nothing() -> None:
    records = [record(str(number), allocation=Allocation.of({"n0": 1})) for number in range(1, 5)]
    seen = snapshot(
        [node("n0")],
        [
            job("1", on={"n1": 2}),
            job("2", JobState.COMPLETED, ended_at=NOON),
            job("3", JobState.PENDING, comment=""),
        ],
    )
    one, two, three, four = shown_now(records, seen)
    assert (one.is_now, str(one.record.allocation)) == (True, "n1:2")
    assert (two.record.state, two.record.finished_at) == (JobState.COMPLETED, NOON)
    assert not two.record.allocation
    assert [(shown.is_now, shown.record.state) for shown in (three, four)] == [(False, JobState.RUNNING)] * 2


def test_that_doctor_warns_of_a_silent_daemon_and_fails_over_jobs_that_it_left_held() -> None:
    found = [
        examine_daemon(seen, jobs, DEAD)
        for seen, jobs in (
            (SEEN, [moved("3", Step.RESHAPED)]),
            (SEEN, [moved("3", Step.PLANNED)]),
            (DaemonStatus(), []),
            (DaemonStatus(owner="a:1:b", renewed_at=DEAD, expires_at=DEAD), [moved("3", Step.RESHAPED)]),
        )
    ]
    assert [finding.verdict for finding in found] == [Verdict.FAIL, Verdict.WARN, Verdict.OK, Verdict.OK]
    assert "held in the midst of a move: 3" in found[0].text
    assert "scontrol release 3" in found[0].cure
    assert all(bool(finding.cure) == (finding.verdict is not Verdict.OK) for finding in found)


def left_alone(world: World) -> str:
    """Let a daemon die with a job of its held; return the job."""
    job_id = world.submit()
    first = world.daemon(owner="ctl:1:first")
    world.settle(first, until=lambda: world.has_stepped(job_id), seconds=8)
    world.targets = {job_id: {"n1": 2}}
    world.settle(first, until=lambda: world.is_at(Step.REQUEUED), seconds=30)
    assert world.is_at(Step.REQUEUED)
    world.clock.advance(1)  # until the job has been killed
    assert world.job(job_id).held
    return job_id


def waited(world: World, daemon: Daemon) -> None:
    """Let a daemon ask for the lease once, in vain."""
    world.stop.clear()
    daemon._stop.wait = lambda timeout=None: world.stop.set() or True  # type: ignore[method-assign]
    assert not daemon._wait_for_lease()
    world.stop.clear()


def test_that_a_second_daemon_tells_of_the_first_and_of_what_it_left_held(world: World) -> None:
    job_id = left_alone(world)
    second = world.daemon(owner="other:2:second")
    waited(world, second)
    well, facts = second.telemetry.health(world.clock())
    assert (well, facts["leader"], facts["waits_for"]) == (True, False, "ctl:1:first")
    assert facts["held_jobs"] == [job_id]
    well, facts = second.telemetry.health(world.clock.now + timedelta(minutes=5))
    assert not well
    assert "the daemon is silent: process 1 on ctl" in str(facts["status"])


def test_that_a_shadow_daemon_that_takes_over_tells_of_what_is_held(world: World) -> None:
    job_id = left_alone(world)
    world.clock.advance(60)
    shadow = world.daemon(owner="other:2:second", shadow=True)
    shadow.tick()
    assert shadow.telemetry.is_leader
    assert shadow.telemetry.health(world.clock())[1]["held_jobs"] == [job_id]


def test_that_one_that_leads_waits_for_nobody() -> None:
    telemetry = Telemetry(monotonic=lambda: 0.0)
    telemetry.is_leader, telemetry.lease = True, SEEN
    well, facts = telemetry.health(DEAD)
    assert (well, facts["waits_for"], facts["status"]) == (True, None, "ok")


def test_that_orders_and_status_say_that_nobody_carries_them_out(world: World, shared_store_url: str) -> None:
    job_id = left_alone(world)
    other = world.submit()
    world.settle(world.daemon(owner="ctl:1:first"), until=lambda: world.has_stepped(other), seconds=30)
    for command in ("pause", "drain"):
        given = pollux(command, other, "--store", shared_store_url)
        # The world's clock stands at New Year: its daemon is long silent for whoever asks now.
        assert "the daemon is silent: process 1 on ctl" in given.stderr, given
    shown = pollux("status", "--store", shared_store_url)
    assert shown.stdout.startswith("the daemon is silent: process 1 on ctl")
    assert job_id in shown.stdout
    as_json = pollux("status", "--json", "--store", shared_store_url)
    assert "the daemon is silent" in as_json.stderr
    assert as_json.stdout.startswith("[")


@pytest.mark.parametrize(
    ("seconds", "said"), [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7300, "2 h"), (200000, "2 d")]
)
def test_that_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert daemon_presence.ago(timedelta(seconds=seconds)) == said
