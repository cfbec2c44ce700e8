"""Texts about a daemon that does not run, and about jobs that it left held."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from pollux_slurm.daemon.doctor.findings import Verdict, examine_daemon
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.service.metrics import DaemonMetrics
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.now.daemon_text import daemon_absence_text
from pollux_slurm.now.jobs import JobNow, jobs_left_held, jobs_now
from pollux_slurm.now.known_jobs import unregistered_job_text
from pollux_slurm.store.contract.interface import DaemonStatus
from tests.cli.inside import pollux
from tests.daemon.builders import NOON, job, node, reallocation, record, sample, snapshot
from tests.daemon.harness import Harness, SimulatedStop

SEEN = DaemonStatus(
    owner="ctl:4711:ab",
    renewed_at=NOON,
    expires_at=NOON + timedelta(seconds=30),
    last_round_at=NOON - timedelta(seconds=20),
)
DEAD = NOON + timedelta(minutes=7)
MOVING = {"source": {"n0": 1}, "target": {"n0": 2}}


def moved(job_id: str, step: Step) -> JobNow:
    return JobNow(record=record(job_id, open_reallocation=reallocation(1, job_id, step, **MOVING)))


@pytest.mark.parametrize(
    ("seen", "after_s", "text"),
    [
        (SEEN, 30, None),
        (SEEN, 39, None),  # two hosts' clocks may differ by that
        (
            SEEN,
            41,
            "the daemon is silent: process 4711 on ctl renewed its lease 41 s ago for the last time, "
            "and was not stopped",
        ),
        (DaemonStatus(), 0, "no daemon has run on this store yet"),
        (
            DaemonStatus(last_round_at=NOON),
            300,
            "no daemon runs: the last one was stopped, its last round is 5 min old",
        ),
    ],
)
def test_that_the_text_depends_on_how_the_last_daemon_ended(
    seen: DaemonStatus, after_s: float, text: str | None
) -> None:
    assert daemon_absence_text(seen, NOON + timedelta(seconds=after_s)) == text


def test_that_the_text_about_an_unregistered_job_has_the_time_of_the_next_read() -> None:
    paced = dataclasses.replace(SEEN, interval_s=60, watch_s=10)
    came = job("7", JobState.PENDING, reason="Priority", submitted_at=NOON)
    first = "job 7 was submitted 3 s ago and is pending (Priority)"
    at = NOON + timedelta(seconds=3)
    looks = "the daemon reads Slurm every 10 s, and runs a round at once when something changed"
    assert unregistered_job_text(came, paced, at) == f"{first}; it is not registered yet: {looks}"
    assert (
        unregistered_job_text(came, DaemonStatus(), at)
        == f"{first}; it is not registered: no daemon has run on this store yet"
    )
    long_ago = dataclasses.replace(came, state=JobState.RUNNING, submitted_at=NOON - timedelta(minutes=9))
    anchor = dataclasses.replace(came, state=JobState.COMPLETING, reason="")
    assert " and is starting; it is not" in unregistered_job_text(anchor, paced, at)
    ended = dataclasses.replace(anchor, ended_at=at)
    assert " and is completing; it is not" in unregistered_job_text(ended, paced, at)
    assert unregistered_job_text(long_ago, paced, at).endswith(
        f"{looks}; it may serve only other partitions or other users, see its log"
    )


def test_that_jobs_left_held_are_named_with_the_command_that_releases_them() -> None:
    text = daemon_absence_text(SEEN, DEAD, ["3", "5"])
    assert text is not None
    assert "held in the middle of a move: 3, 5;" in text
    assert text.endswith("scontrol release 3 5")


@pytest.mark.parametrize("step", [step for step in Step if not step.is_end])
def test_that_a_held_job_is_found_by_slurm_or_else_by_the_journal(step: Step) -> None:
    moving = record("3", open_reallocation=reallocation(1, "3", step, **MOVING))
    held = snapshot([node("n0")], [job("3", JobState.PENDING, held=True)])
    free = snapshot([node("n0")], [job("3", JobState.PENDING)])
    beyond = step in (Step.REQUEUED, Step.RESHAPED, Step.RELEASED)
    assert jobs_left_held(jobs_now([moving], held)) == (("3",) if beyond else ())
    assert jobs_left_held(jobs_now([moving], free)) == ()
    assert jobs_left_held(jobs_now([moving], None)) == (
        ("3",) if step in (Step.REQUEUED, Step.RESHAPED) else ()
    )


def test_that_the_state_is_slurms_and_a_job_with_other_terms_is_ignored() -> None:
    records = [record(str(number), allocation=Allocation.of({"n0": 1})) for number in range(1, 5)]
    seen = snapshot(
        [node("n0")],
        [
            job("1", on={"n1": 2}),
            job("2", JobState.COMPLETED, ended_at=NOON),
            job("3", JobState.PENDING, comment=""),
        ],
    )
    one, two, three, four = jobs_now(records, seen)
    assert (one.is_now, str(one.record.allocation)) == (True, "n1:2")
    assert (two.record.state, two.record.finished_at) == (JobState.COMPLETED, NOON)
    assert not two.record.allocation
    assert [(shown.is_now, shown.record.state) for shown in (three, four)] == [(False, JobState.RUNNING)] * 2


def test_that_nothing_is_measured_of_a_start_that_only_slurm_knows() -> None:
    newest = sample()
    trained = record("1", allocation=Allocation.of({"n0": 1}), sample=newest)
    for restart_count, measured in ((0, newest), (1, None)):
        seen = snapshot([node("n0")], [job("1", on={"n1": 1}, restart_count=restart_count)])
        assert jobs_now([trained], seen)[0].measured == measured
    # Its owner starts one process on two GPUs.
    seen = snapshot([node("n0")], [job("1", on={"n0": 2})])
    assert jobs_now([trained], seen)[0].measured == newest


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
    assert "held in the middle of a move: 3" in found[0].text
    assert "scontrol release 3" in found[0].cure
    assert all(bool(finding.cure) == (finding.verdict is not Verdict.OK) for finding in found)


def left_alone(harness: Harness) -> str:
    """Let a daemon die while it holds a job; return the job."""
    job_id = harness.submit()
    first = harness.daemon(owner="ctl:1:first")
    harness.run_until(first, until=lambda: harness.has_stepped(job_id), seconds=8)
    harness.targets = {job_id: {"n1": 2}}
    harness.run_until(first, until=lambda: harness.is_at(Step.REQUEUED), seconds=30)
    assert harness.is_at(Step.REQUEUED)
    harness.clock.advance(1)  # until the job has been killed
    assert harness.job(job_id).held
    return job_id


def second_daemon_after_waiting(harness: Harness) -> Daemon:
    """Return a second daemon that tried once to acquire the lease, and was then stopped."""
    stop = SimulatedStop(harness, lambda _passed_s: stop.set())
    second = harness.daemon(owner="other:2:second", stop=stop)
    second.run()
    return second


def test_that_a_second_daemon_reports_the_first_and_the_jobs_it_left_held(harness: Harness) -> None:
    job_id = left_alone(harness)
    second = second_daemon_after_waiting(harness)
    well, facts = second.metrics.health(harness.clock())
    assert (well, facts["leader"], facts["waits_for"]) == (True, False, "ctl:1:first")
    assert facts["held_jobs"] == [job_id]
    well, facts = second.metrics.health(harness.clock.now + timedelta(minutes=5))
    assert not well
    assert "the daemon is silent: process 1 on ctl" in str(facts["status"])


def test_that_a_shadow_daemon_that_takes_over_reports_held_jobs(harness: Harness) -> None:
    job_id = left_alone(harness)
    harness.clock.advance(60)
    shadow = harness.daemon(owner="other:2:second", shadow=True)
    shadow.tick()
    assert shadow.metrics.is_leader
    assert shadow.metrics.health(harness.clock())[1]["held_jobs"] == [job_id]


def test_that_a_leader_waits_for_no_other_daemon() -> None:
    metrics = DaemonMetrics(monotonic=lambda: 0.0)
    metrics.is_leader, metrics.lease = True, SEEN
    well, facts = metrics.health(DEAD)
    assert (well, facts["waits_for"], facts["status"]) == (True, None, "ok")


def test_that_orders_and_status_report_that_no_daemon_runs(harness: Harness, shared_store_url: str) -> None:
    job_id = left_alone(harness)
    other = harness.submit()
    harness.run_until(
        harness.daemon(owner="ctl:1:first"), until=lambda: harness.has_stepped(other), seconds=30
    )
    for command in ("pause", "drain"):
        given = pollux(command, other, "--store", shared_store_url)
        # The harness's clock is in the past, so its daemon counts as silent now.
        assert "the daemon is silent: process 1 on ctl" in given.stderr, given
    shown = pollux("status", "--store", shared_store_url)
    assert shown.stdout.startswith("the daemon is silent: process 1 on ctl")
    assert job_id in shown.stdout
    as_json = pollux("status", "--json", "--store", shared_store_url)
    assert "the daemon is silent" in as_json.stderr
    assert as_json.stdout.startswith("[")
