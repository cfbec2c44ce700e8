"""The guarantees of `pollux_slurm.store.contract`, on every backend. New backends join the fixture."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pollux_slurm.errors import (
    InvalidProblemError,
    ReportRefusedError,
    StaleRunError,
    StoreError,
    UnknownJobError,
    UsageError,
)
from pollux_slurm.model import Allocation, Configuration, JobState, JobWarning, ReallocationCause, SlurmAnswer
from pollux_slurm.policy import explanation
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import (
    RECENT_RUNS,
    AllocationRecord,
    CheckpointConfirmation,
    DaemonStatus,
    JobRegistration,
    Move,
    Refusal,
    RunPhase,
    Store,
    TrainingRun,
    WarningRecord,
)
from pollux_slurm.store.reporting.queries import open_view_reader
from pollux_slurm.store.reporting.view_rows import RoundEntry
from tests.store.builders import (
    BATCH,
    MODEL,
    T0,
    Step,
    advance,
    at,
    confirmation,
    decision_of,
    move_running_job,
    observation,
    plan,
    problem_of,
    registration,
    report,
    token_of,
)


class TestRegistration:
    def test_that_a_job_is_what_its_registration_says(self, any_store: Store) -> None:
        terms = {"min_gpus": 2, "max_gpus": 8, "allow_unconfirmed": True}
        assert any_store.jobs.register([registration(1, terms=terms)], at=at(1)) == ()
        (job,) = any_store.jobs.active()
        assert (job.slurm_job_id, job.name, job.user_name, job.account) == ("1", "train-1", "ada", "vision")
        assert (job.partition, job.cpus_per_gpu, job.memory_per_gpu_mb) == ("gpu", 2, 4000)
        assert (job.terms.min_gpus, job.terms.max_gpus, job.terms.allow_unconfirmed) == (2, 8, True)
        assert job.terms.token_sha256 == hash_token(token_of(1))
        assert (job.state, job.submitted_at) == (JobState.PENDING, T0)
        assert (job.started_at, job.finished_at, job.allocation) == (None, None, Allocation())
        assert (job.model, job.sample, job.run, job.open_reallocation) == (None, None, None, None)
        assert (job.num_restarts, job.mean_restart_delay_s, job.last_decision) == (0, None, None)

    def test_that_the_nodes_that_its_owner_named_are_recorded(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1, required_nodes=("n0", "n1")), registration(2)], at=at(0))
        any_store.jobs.register([registration(1, required_nodes=("n7",))], at=at(9))
        assert [job.required_nodes for job in any_store.jobs.active()] == [("n0", "n1"), ()]

    def test_that_the_reason_of_an_exclusion_is_that_of_the_last_round(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1), registration(2)], at=at(0))
        any_store.jobs.record_not_moved({"1": "its partition is down", "77": "nobody knows it"})
        assert [job.not_moved_reason for job in any_store.jobs.active()] == ["its partition is down", None]
        any_store.jobs.record_not_moved({"2": "it asks for a reservation"})
        assert [job.not_moved_reason for job in any_store.jobs.active()] == [
            None,
            "it asks for a reservation",
        ]

    def test_that_a_known_job_stays_as_it_is_but_for_its_terms(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        again = registration(1, name="other", account="other", terms={"min_gpus": 4})
        assert any_store.jobs.register([again, registration(2)], at=at(60)) == ()
        assert [(job.name, job.terms.min_gpus) for job in any_store.jobs.active()] == [
            ("train-1", 4),
            ("train-2", 1),
        ]

    def test_that_a_copied_token_is_left_out_and_blocks_nobody(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        copied = {"token_sha256": hash_token(token_of(1))}
        twice = {"token_sha256": hash_token("1001-shared")}
        left_out = any_store.jobs.register(
            [
                registration(2, terms=copied),
                registration(3),
                registration(4, terms=twice),
                registration(5, terms=twice),
            ],
            at=at(1),
        )
        assert left_out == ("2", "5")
        assert [job.slurm_job_id for job in any_store.jobs.active()] == ["1", "3", "4"]

    def test_that_a_hash_that_another_user_copied_blocks_nobody(self, any_store: Store) -> None:
        owner = registration(2, user_id=1002, user_name="grace")
        copy = registration(1, terms={"token_sha256": owner.terms.token_sha256})
        assert any_store.jobs.register([copy], at=at(0)) == ()
        assert any_store.jobs.register([copy, owner], at=at(1)) == ()
        any_store.jobs.observe([observation(n, gpus={"n0": 1}) for n in (1, 2)], at=at(2))
        any_store.agent.report(token_of(2, 1002), report(1, throughput=7.0), at=at(3))
        samples = {job.slurm_job_id: job.sample for job in any_store.jobs.active()}
        assert samples["1"] is None
        assert samples["2"] is not None
        moved = plan(any_store, 1)
        advance(any_store, moved, (Step.CHECKPOINT_REQUESTED, 22))
        assert any_store.agent.poll(token_of(2, 1002), 0, at=at(24)).checkpoint_request is None
        any_store.agent.report(token_of(2, 1002), confirmation(moved.id, sequence=2), at=at(25))
        assert [one.step for one in any_store.journal.open_reallocations()] == [Step.CHECKPOINT_REQUESTED]

    def test_that_a_reused_id_with_a_copied_hash_is_another_job(self, running: Store) -> None:
        before = running.jobs.get("1")
        copy = registration(
            1, user_id=1002, user_name="grace", terms={"token_sha256": before.terms.token_sha256}
        )
        assert running.jobs.register([copy], at=at(100)) == ()
        assert [(job.user_name, job.state) for job in running.jobs.all()] == [
            ("ada", JobState.CANCELLED),
            ("grace", JobState.PENDING),
        ]

    @pytest.mark.parametrize(
        "changes",
        [
            {"terms": {"min_gpus": 0}},
            {"terms": {"user_id": 1002}},
            {"terms": {"min_gpus": 4, "max_gpus": 2}},
            {"terms": {"max_gpus": 2**40}},
            {"terms": {"token_sha256": "not a digest"}},
            {"slurm_job_id": "1; DROP TABLE jobs"},
            {"cpus_per_gpu": 2**40},
            {"user_id": -1},
        ],
        ids=str,
    )
    def test_that_impossible_terms_are_left_out_and_block_nobody(
        self, any_store: Store, changes: dict[str, Any]
    ) -> None:
        bad = registration(1, **changes)
        assert any_store.jobs.register([bad, registration(2)], at=at(0)) == (bad.slurm_job_id,)
        assert [job.slurm_job_id for job in any_store.jobs.active()] == ["2"]

    @pytest.mark.parametrize(
        "name", ["a\0b", "\udcff\udcfe", "'; DROP TABLE jobs; --", "%s {} :name ?", "日本語", "x" * 100_000]
    )
    def test_that_any_job_name_can_be_stored(self, any_store: Store, name: str) -> None:
        assert any_store.jobs.register([registration(1, name=name, account=name)], at=at(0)) == ()
        stored = any_store.jobs.get("1").name
        assert len(stored) <= 1024
        assert stored == name or len(name) > 1024 or set(stored) & {"?", "\N{REPLACEMENT CHARACTER}"}

    def test_that_a_reused_id_is_a_new_job(self, running: Store) -> None:
        running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(60))
        new_terms = {"token_sha256": hash_token("1001-another")}
        assert running.jobs.register([registration(1, terms=new_terms, name="later")], at=at(100)) == ()
        running.jobs.observe([observation(1, gpus={"n9": 1})], at=at(101))
        older, newer = running.jobs.all()
        assert (older.name, older.state, older.finished_at) == ("train-1", JobState.COMPLETED, at(50))
        assert (newer.name, newer.state) == ("later", JobState.RUNNING)
        assert running.jobs.get("1") == newer
        assert newer.model is None
        assert [r.allocation.nodes for r in running.history.allocations("1")] == [("n9",)]

    def test_that_a_finished_job_with_the_same_token_is_not_a_new_job(self, running: Store) -> None:
        running.jobs.observe([observation(1, JobState.FAILED, ended_at=at(50))], at=at(60))
        assert running.jobs.register([registration(1)], at=at(70)) == ()
        assert [job.state for job in running.jobs.all()] == [JobState.FAILED]

    def test_that_a_finished_job_that_runs_again_is_not_over_and_has_its_new_terms(
        self, running: Store
    ) -> None:
        """Its owner changed the terms and requeued it by hand, both since the last round."""
        running.jobs.observe([observation(1, JobState.FAILED, ended_at=at(50))], at=at(60))
        again = registration(1, is_running=True, restart_count=1, terms={"min_gpus": 2, "max_gpus": 16})
        assert running.jobs.register([again], at=at(70)) == ()
        (job,) = running.jobs.active()
        assert (job.state, job.finished_at) == (JobState.RUNNING, None)
        assert (job.terms.min_gpus, job.terms.max_gpus) == (2, 16)
        assert len(running.jobs.all()) == 1
        running.agent.report(token_of(1), report(1, run_number=1, restart_count=1), at=at(80))

    def test_that_other_terms_of_a_known_job_count_from_then_on(self, running: Store) -> None:
        before = running.jobs.get("1")
        terms = {"min_gpus": 2, "max_gpus": 16, "allow_unconfirmed": True}
        assert running.jobs.register([registration(1, terms=terms)], at=at(100)) == ()
        after = running.jobs.get("1")
        assert (after.terms.min_gpus, after.terms.max_gpus, after.terms.allow_unconfirmed) == (2, 16, True)
        assert (len(running.jobs.all()), after.allocation) == (1, before.allocation)
        # Only its owner can write its Comment, with its token.
        other = {"token_sha256": hash_token(token_of("another")), "max_gpus": 1}
        running.jobs.register([registration(1, terms=other, user_id=1002)], at=at(101))
        assert running.jobs.all()[0].terms.max_gpus == 16

    def test_that_a_new_token_of_the_same_owner_replaces_the_job(self, running: Store) -> None:
        new_terms = {"token_sha256": hash_token("1001-another")}
        assert running.jobs.register([registration(1, terms=new_terms)], at=at(100)) == ()
        assert [job.state for job in running.jobs.all()] == [JobState.CANCELLED, JobState.PENDING]
        with pytest.raises(UnknownJobError):
            running.agent.report(token_of(1), report(2), at=at(101))
        running.agent.report("1001-another", report(1), at=at(101))

    def test_that_a_new_token_waits_while_a_reallocation_is_open(self, running: Store) -> None:
        planned = plan(running)
        new = registration(1, terms={"token_sha256": hash_token("1001-another")})
        assert running.jobs.register([new], at=at(30)) == ()
        assert [job.state for job in running.jobs.all()] == [JobState.RUNNING]
        advance(running, planned, (Step.ROLLED_BACK, 40))
        running.jobs.register([new], at=at(50))
        assert [job.state for job in running.jobs.all()] == [JobState.CANCELLED, JobState.PENDING]

    def test_that_another_users_job_with_the_same_id_ends_the_earlier_one(self, running: Store) -> None:
        planned = plan(running)
        other = registration(
            1, terms={"token_sha256": hash_token("1001-another")}, user_id=1002, user_name="grace"
        )
        assert running.jobs.register([other], at=at(100)) == ()
        older, newer = running.jobs.all()
        assert (older.state, older.user_name, older.finished_at) == (JobState.CANCELLED, "ada", at(100))
        assert (newer.state, newer.user_name) == (JobState.PENDING, "grace")
        assert running.journal.open_reallocations() == ()
        assert newer.open_reallocation is None
        (ended,) = (r for r in _all_reallocations(running) if r.id == planned.id)
        assert (ended.step, ended.entered_at(Step.FAILED)) == (Step.FAILED, at(100))
        assert older.allocation == Allocation()

    def test_that_nothing_happens_with_no_jobs(self, any_store: Store) -> None:
        assert any_store.jobs.register([], at=at(0)) == ()
        assert any_store.jobs.observe([], at=at(0)) == frozenset()
        assert any_store.jobs.active() == any_store.jobs.all() == ()

    def test_that_an_observation_names_the_jobs_whose_records_it_changes(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1), registration(2)], at=at(0))
        both = [observation(n, gpus={"n0": 1}, started_at=at(2)) for n in (1, 2)]
        assert any_store.jobs.observe(both, at=at(5)) == {"1", "2"}
        before = any_store.jobs.active()
        assert any_store.jobs.observe(both, at=at(10)) == frozenset()
        assert any_store.jobs.active() == before
        moved = observation(2, gpus={"n1": 1}, started_at=at(12), restart_count=1)
        assert any_store.jobs.observe([both[0], moved], at=at(15)) == {"2"}
        over = observation(1, JobState.COMPLETED, ended_at=at(20))
        assert any_store.jobs.observe([over, moved], at=at(25)) == {"1"}

    def test_that_a_time_without_a_zone_is_refused(self, any_store: Store) -> None:
        with pytest.raises(UsageError, match="zone"):
            any_store.jobs.register([registration(1)], at=datetime(2026, 1, 1))  # noqa: DTZ001

    def test_that_times_of_other_zones_come_back_in_utc(self, any_store: Store) -> None:
        east = T0.astimezone(timezone(timedelta(hours=9)))
        any_store.jobs.register([registration(1, submitted_at=east)], at=at(0))
        submitted = any_store.jobs.get("1").submitted_at
        assert (submitted, submitted.tzinfo) == (T0, timezone.utc)


def _all_reallocations(store: Store) -> tuple[Any, ...]:
    return store.journal.reallocations()


class TestNewToken:
    """An owner puts a new token into the Comment of a job: its history still counts."""

    @staticmethod
    def with_new_token(number: int = 1, **changes: Any) -> JobRegistration:
        return registration(number, terms={"token_sha256": hash_token(token_of("another"))}, **changes)

    @staticmethod
    def with_history(store: Store) -> None:
        """Record a move of job 1 that cost 12.5 s, an unanswered request, and a declaration."""
        store.agent.report(token_of(1), report(2, epoch=2, progress=100.0, total_epochs=5), at=at(12))
        move_running_job(store, start=20)
        asked = plan(store, seconds=60, from_restart_count=1)
        advance(store, asked, (Step.CHECKPOINT_REQUESTED, 61), (Step.ROLLED_BACK, 361))

    def test_that_restarts_delays_unanswered_requests_and_declarations_still_count(
        self, running: Store
    ) -> None:
        self.with_history(running)
        before = running.jobs.get("1")
        # Slurm resets the submission time at a requeue.
        changed = self.with_new_token(submitted_at=at(40), restart_count=1)
        assert running.jobs.register([changed], at=at(400)) == ()
        after = running.jobs.get("1")
        assert after.terms.token_sha256 == hash_token(token_of("another"))
        assert after.run is None
        assert (after.num_restarts, after.mean_restart_delay_s) == (1, pytest.approx(12.5))
        assert after.unanswered == before.unanswered == ((at(61), at(361), False),)
        assert after.declarations == before.declarations
        assert after.first_submitted_at == before.submitted_at

    def test_that_later_restarts_are_added(self, running: Store) -> None:
        self.with_history(running)
        running.jobs.register([self.with_new_token()], at=at(400))
        running.agent.report(
            token_of("another"), report(1, epoch=1, progress=1.0, total_epochs=5), at=at(410)
        )
        running.agent.report(
            token_of("another"), report(2, epoch=1, progress=2.0, total_epochs=3), at=at(420)
        )
        asked = plan(running, seconds=430, from_restart_count=1)
        advance(running, asked, (Step.CHECKPOINT_REQUESTED, 431), (Step.ROLLED_BACK, 731))
        job = running.jobs.get("1")
        assert [(one.total_epochs, one.least_total_progress) for one in job.declarations] == [
            (5, 5.0),
            (3, 6.0),
        ]
        assert job.unanswered == ((at(61), at(361), False), (at(431), at(731), False))
        third = registration(1, terms={"token_sha256": hash_token(token_of("a third"))})
        running.jobs.register([third], at=at(800))
        assert running.jobs.get("1").unanswered == job.unanswered

    def test_that_a_comment_without_terms_for_a_while_loses_nothing(self, running: Store) -> None:
        """The daemon takes the job for over until its Comment has terms again."""
        self.with_history(running)
        running.jobs.observe([observation(1, JobState.FAILED, ended_at=at(380))], at=at(390))
        running.jobs.register([self.with_new_token()], at=at(400))
        assert running.jobs.get("1").num_restarts == 1

    def test_that_a_reused_id_has_no_history(self, running: Store) -> None:
        self.with_history(running)
        running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(380))], at=at(390))
        running.jobs.register([self.with_new_token(submitted_at=at(5000))], at=at(5001))
        job = running.jobs.get("1")
        assert (job.num_restarts, job.unanswered, job.declarations) == (0, (), ())
        assert job.first_submitted_at is None

    def test_that_a_reused_id_has_no_history_though_nobody_saw_the_end_of_the_first(
        self, running: Store
    ) -> None:
        """As where a private cluster is made anew while no daemon runs."""
        self.with_history(running)
        running.jobs.register([self.with_new_token(submitted_at=at(5000))], at=at(5001))
        job = running.jobs.get("1")
        assert (job.num_restarts, job.unanswered, job.declarations) == (0, (), ())
        running.jobs.register([self.with_new_token(submitted_at=at(5000))], at=at(5002))
        assert len(running.jobs.all()) == 2

    def test_that_another_users_job_of_the_same_id_has_no_history(self, running: Store) -> None:
        self.with_history(running)
        running.jobs.register([self.with_new_token(user_id=1002, user_name="grace")], at=at(400))
        assert running.jobs.get("1").num_restarts == 0


class TestObservation:
    def test_that_state_and_allocation_are_recorded(self, running: Store) -> None:
        job = running.jobs.get("1")
        assert (job.state, job.started_at) == (JobState.RUNNING, at(2))
        assert job.allocation == Allocation.of({"n0": 2})

    def test_that_a_pending_job_has_the_time_of_its_last_gpus(self, running: Store) -> None:
        assert running.jobs.get("1").last_allocated_at is None
        running.jobs.observe([observation(1, JobState.PENDING)], at=at(30))
        assert running.jobs.get("1").last_allocated_at == at(30)
        running.jobs.observe([observation(1, gpus={"n1": 1})], at=at(40))
        assert running.jobs.get("1").last_allocated_at is None

    def test_that_unknown_jobs_are_ignored(self, any_store: Store) -> None:
        any_store.jobs.observe([observation(77, gpus={"n0": 1})], at=at(5))
        assert any_store.jobs.all() == ()

    def test_that_history_follows_every_change(self, running: Store) -> None:
        running.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(2))], at=at(30))
        running.jobs.observe([observation(1, JobState.PENDING, started_at=at(500))], at=at(40))
        running.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1}, started_at=at(43))], at=at(45))
        running.jobs.observe([observation(1, gpus={"n1": 3}, started_at=at(43))], at=at(60))
        running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(88))], at=at(90))
        running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(88))], at=at(99))

        def interval(gpus: dict[str, int], start: float, end: float, estimated: bool) -> AllocationRecord:
            return AllocationRecord(
                slurm_job_id="1",
                allocation=Allocation.of(gpus),
                started_at=at(start),
                ended_at=at(end),
                restart_count=0,
                estimated=estimated,
            )

        assert running.history.allocations("1") == (
            interval({"n0": 2}, 2, 40, True),
            interval({"n1": 3, "n2": 1}, 43, 60, True),
            interval({"n1": 3}, 60, 88, False),
        )
        job = running.jobs.get("1")
        assert (job.state, job.started_at, job.finished_at) == (JobState.COMPLETED, at(2), at(88))
        assert job.allocation == Allocation()

    def test_that_a_restart_between_two_rounds_splits_the_history_at_the_start(self, running: Store) -> None:
        seen = observation(1, gpus={"n3": 4}, started_at=at(50), restart_count=1)
        running.jobs.observe([seen], at=at(60))
        first, second = running.history.allocations("1")
        assert (first.ended_at, second.started_at, second.ended_at) == (at(50), at(50), None)

    def test_that_the_expected_start_of_a_pending_job_is_no_start(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        any_store.jobs.observe([observation(1, JobState.PENDING, started_at=at(9000))], at=at(5))
        assert any_store.jobs.get("1").started_at is None
        any_store.jobs.observe([observation(1, JobState.CANCELLED, ended_at=at(8))], at=at(10))
        job = any_store.jobs.get("1")
        assert (job.state, job.started_at, job.finished_at) == (JobState.CANCELLED, None, at(8))

    def test_that_a_job_that_ran_between_two_rounds_has_its_times(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        seen = observation(1, JobState.COMPLETED, started_at=at(3), ended_at=at(20))
        any_store.jobs.observe([seen], at=at(60))
        job = any_store.jobs.get("1")
        assert (job.started_at, job.finished_at) == (at(3), at(20))

    def test_that_a_finished_job_that_is_requeued_is_active_again(self, running: Store) -> None:
        running.jobs.observe([observation(1, JobState.FAILED, ended_at=at(50))], at=at(60))
        with pytest.raises(UnknownJobError, match="over"):
            running.agent.poll(token_of(1), 0, at=at(61))
        running.jobs.observe([observation(1, JobState.PENDING)], at=at(70))
        assert [job.finished_at for job in running.jobs.active()] == [None]
        running.agent.report(token_of(1), report(1, run_number=1, restart_count=1), at=at(80))

    def test_that_no_interval_ends_before_it_began_when_clocks_disagree(self, running: Store) -> None:
        running.jobs.observe([observation(1, gpus={"n1": 1}, started_at=at(-100))], at=at(-50))
        running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(-200))], at=at(-40))
        history = running.history.allocations("1")
        assert all(r.ended_at is not None and r.started_at <= r.ended_at for r in history)
        assert [r.allocation.nodes for r in history] == [("n0",), ("n1",)]

    def test_that_active_jobs_are_those_not_over(self, any_store: Store) -> None:
        any_store.jobs.register([registration(n) for n in (1, 2, 3)], at=at(0))
        any_store.jobs.observe([observation(2, JobState.TIMEOUT, ended_at=at(9))], at=at(10))
        assert [job.slurm_job_id for job in any_store.jobs.active()] == ["1", "3"]
        assert [job.slurm_job_id for job in any_store.jobs.all()] == ["1", "2", "3"]
        assert [job.slurm_job_id for job in any_store.jobs.all(include_finished=False)] == ["1", "3"]

    def test_that_reading_an_unknown_job_raises(self, any_store: Store) -> None:
        for number in ("404", "", "\udcff", "x" * 10_000):
            with pytest.raises(UnknownJobError):
                any_store.jobs.get(number)
        assert any_store.history.allocations("404") == any_store.history.runs("404") == ()
        assert any_store.history.samples("404") == any_store.journal.reallocations("404") == ()
        assert any_store.history.models("404") == ()


class TestReports:
    def test_that_a_report_shows_in_the_job(self, running: Store) -> None:
        job = running.jobs.get("1")
        assert job.model == MODEL
        assert job.sample is not None
        assert (job.sample.at, job.sample.batch, job.sample.throughput) == (at(10), BATCH, 200.0)
        assert (job.sample.predicted_throughput, job.sample.efficiency) == (190.0, 0.8)
        assert (job.sample.progress, job.sample.epoch, job.sample.total_epochs) == (8.0, 1, 5)
        assert job.sample.goodput == pytest.approx(160.0)
        assert job.run is not None
        assert (job.run.run_number, job.run.restart_count, job.run.phase) == (0, 0, RunPhase.TRAINING)
        assert (job.run.gpus_per_node, job.run.num_steps, job.run.first_step_s) == ((2,), 10, 3.0)
        assert (job.run.first_report_at, job.run.last_report_at) == (at(10), at(10))

    def test_that_an_unknown_token_is_refused(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        for token in ("", "other", hash_token(token_of(1)), "\udcff", "x" * 100_000):
            with pytest.raises(UnknownJobError):
                any_store.agent.report(token, report(), at=at(1))
            with pytest.raises(UnknownJobError):
                any_store.agent.poll(token, 0, at=at(1))

    @pytest.mark.parametrize("sequence", [1, 0])
    def test_that_a_repeated_report_changes_nothing(self, running: Store, sequence: int) -> None:
        before = running.jobs.get("1")
        repeated = report(sequence, throughput=999.0, num_steps=77, phase=RunPhase.FINISHED)
        running.agent.report(token_of(1), repeated, at=at(20))
        assert running.jobs.get("1") == before
        assert len(running.history.samples("1")) == 1

    def test_that_a_bad_report_leaves_the_last_good_model_in_force(self, running: Store) -> None:
        before = running.jobs.get("1")
        with pytest.raises(ReportRefusedError, match="throughput"):
            running.agent.report(token_of(1), report(2, throughput=float("nan")), at=at(20))
        assert running.jobs.get("1") == before

    def test_that_a_higher_run_opens_a_run_and_a_lower_one_is_stale(self, running: Store) -> None:
        running.jobs.observe([observation(1, gpus={"n1": 3, "n2": 1}, restart_count=2)], at=at(29))
        running.agent.report(
            token_of(1), report(1, run_number=3, restart_count=2, gpus_per_node=(3, 1)), at=at(30)
        )
        for stale in (0, 2):
            with pytest.raises(StaleRunError, match="leftover"):
                running.agent.report(token_of(1), report(9, run_number=stale, restart_count=2), at=at(31))
            with pytest.raises(StaleRunError):
                running.agent.poll(token_of(1), stale, at=at(31))
        first, second = running.history.runs("1")
        assert (first.run_number, second.run_number) == (0, 3)
        assert (second.gpus_per_node, second.restart_count, second.first_report_at) == ((3, 1), 2, at(30))
        assert running.jobs.get("1").run == second

    def test_that_the_restart_count_never_decreases(self, running: Store) -> None:
        running.agent.report(token_of(1), report(1, run_number=1, restart_count=2), at=at(30))
        with pytest.raises(ReportRefusedError, match="restart_count"):
            running.agent.report(token_of(1), report(1, run_number=2, restart_count=1), at=at(31))
        with pytest.raises(ReportRefusedError, match="restart_count"):
            running.agent.report(token_of(1), report(2, run_number=1, restart_count=3), at=at(31))
        assert [run.run_number for run in running.history.runs("1")] == [0, 1]

    def test_that_a_start_adds_no_sample_and_hides_none(self, running: Store) -> None:
        starting = report(
            1, run_number=1, restart_count=1, phase=RunPhase.STARTING, throughput=None, epoch=0, progress=0.0
        )
        running.agent.report(token_of(1), starting, at=at(30))
        job = running.jobs.get("1")
        assert job.run is not None
        assert job.run.phase is RunPhase.STARTING
        assert job.sample is not None
        assert (job.sample.at, job.sample.epoch) == (at(10), 1)

    def test_that_the_first_step_is_kept_and_the_latest_steps_count(self, running: Store) -> None:
        running.agent.report(token_of(1), report(2, first_step_s=9.0, restore_s=1.5, num_steps=25), at=at(20))
        run = running.jobs.get("1").run
        assert run is not None
        assert (run.first_step_s, run.restore_s, run.num_steps, run.last_report_at) == (3.0, 1.5, 25, at(20))

    def test_that_a_report_without_a_model_keeps_the_model(self, running: Store) -> None:
        running.agent.report(token_of(1), report(2, model=None), at=at(20))
        assert running.jobs.get("1").model == MODEL

    def test_that_models_are_kept_by_gpu_type(self, running: Store) -> None:
        later = dataclasses.replace(MODEL, max_gpus_seen=4)
        running.jobs.observe([observation(1, gpus={"n0": 2}, gpu_type="t4")], at=at(11))
        assert running.jobs.get("1").models == (("t4", MODEL),)
        next_run = {"run_number": 1, "restart_count": 1, "model": later}
        # Before it has measured a step, the run reports its checkpoint's model: that of another GPU type.
        running.agent.report(token_of(1), report(1, **next_run, throughput=None), at=at(20))
        seen = observation(1, gpus={"m0": 2}, gpu_type="a100", restart_count=1)
        running.jobs.observe([seen], at=at(21))
        assert running.jobs.get("1").models == (("t4", MODEL),)
        running.agent.report(token_of(1), report(2, **next_run), at=at(30))
        assert running.jobs.get("1").models == (("a100", later), ("t4", MODEL))
        assert running.jobs.get("1").model == later

    def test_that_a_snapshot_from_before_a_restart_does_not_set_the_new_runs_gpu_type(
        self, running: Store
    ) -> None:
        running.agent.report(token_of(1), report(1, run_number=1, restart_count=1), at=at(20))
        running.jobs.observe([observation(1, gpus={"n0": 2}, gpu_type="t4")], at=at(21))
        running.jobs.observe([observation(1, gpus={"n0": 2}, restart_count=1)], at=at(22))
        assert [kind for kind, _ in running.jobs.get("1").models] == ["t4"]
        assert running.jobs.get("1").models[0][1] == MODEL

    def test_that_every_declared_number_of_epochs_is_kept_once(self, running: Store) -> None:
        for sequence, (total, epoch, progress) in enumerate(
            [(5, 2, 12.0), (5, 4, 40.0), (8, 4, 40.0), (None, 4, 41.0), (5, 4, 42.0)], start=2
        ):
            message = report(sequence, total_epochs=total, epoch=epoch, progress=progress)
            running.agent.report(token_of(1), message, at=at(10 * sequence))
        first, second = running.jobs.get("1").declarations
        assert (first.total_epochs, first.at, first.epoch, first.progress) == (5, at(10), 1, 8.0)
        assert first.least_total_progress == 12.0 * 5 / 2
        assert (second.total_epochs, second.at, second.least_total_progress) == (8, at(40), 40.0 * 8 / 4)

    def test_that_a_declaration_before_the_first_epoch_ended_has_no_total_progress(
        self, any_store: Store
    ) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        any_store.agent.report(token_of(1), report(1, epoch=0, progress=3.0), at=at(1))
        assert any_store.jobs.get("1").declarations[0].least_total_progress is None
        any_store.agent.report(token_of(1), report(2, epoch=1, progress=9.0), at=at(2))
        assert any_store.jobs.get("1").declarations[0].least_total_progress == 45.0

    def test_that_the_number_of_declarations_of_a_job_is_bounded(self, running: Store) -> None:
        for sequence in range(2, 40):
            running.agent.report(
                token_of(1), report(sequence, total_epochs=100 + sequence), at=at(10 + sequence)
            )
        assert len(running.jobs.get("1").declarations) == 32

    def test_that_what_is_not_measured_is_none(self, running: Store) -> None:
        bare = report(
            2,
            batch=None,
            throughput=None,
            predicted_throughput=None,
            step_time_s=None,
            efficiency=None,
            total_epochs=None,
        )
        running.agent.report(token_of(1), bare, at=at(20))
        sample = running.jobs.get("1").sample
        assert sample is not None
        assert (sample.batch, sample.throughput, sample.efficiency, sample.goodput) == (None,) * 4

    def test_that_samples_are_kept_in_order_over_runs(self, running: Store) -> None:
        running.agent.report(token_of(1), report(7, throughput=210.0), at=at(20))
        running.agent.report(token_of(1), report(2, run_number=1, throughput=400.0), at=at(40))
        assert [s.throughput for s in running.history.samples("1")] == [200.0, 210.0, 400.0]

    def test_that_the_prediction_error_is_over_the_last_reports_of_the_last_run(self, running: Store) -> None:
        for sequence in range(100, 2000, 100):  # whatever numbers they bear
            error = 0.25 if sequence > 300 else 0.5
            message = report(sequence, throughput=200.0 * (1 - error), predicted_throughput=200.0)
            running.agent.report(token_of(1), message, at=at(10.0 + sequence / 100))
        assert running.jobs.get("1").prediction_error == pytest.approx(0.25)
        # The error counts as 1 at most, whatever a job reports.
        for throughput, predicted in ((1e12, 1e-7), (1e-7, 1e12), (None, 200.0)):
            sequence += 1000
            message = report(sequence, throughput=throughput, predicted_throughput=predicted)
            running.agent.report(token_of(1), message, at=at(10.0 + sequence))
        assert running.jobs.get("1").prediction_error == pytest.approx((13 * 0.25 + 2 * 1.0) / 15)
        restarted = report(1, run_number=1, restart_count=1, throughput=180.0, predicted_throughput=200.0)
        running.agent.report(token_of(1), restarted, at=at(60))
        assert running.jobs.get("1").prediction_error == pytest.approx(0.1)

    def test_that_models_are_kept_in_order_over_runs(self, running: Store) -> None:
        grown = dataclasses.replace(MODEL, max_gpus_seen=4)
        running.agent.report(token_of(1), report(7, model=grown), at=at(20))
        running.agent.report(token_of(1), report(2, run_number=1), at=at(40))
        assert running.history.models("1") == ((at(10), MODEL), (at(20), grown), (at(40), MODEL))

    def test_that_the_size_of_a_jobs_newest_checkpoint_is_known(self, running: Store) -> None:
        assert running.jobs.get("1").checkpoint_bytes is None
        for sequence, run_number, size_bytes in ((2, 0, 10), (3, 0, 30), (1, 1, 20)):
            checkpoint = CheckpointConfirmation(request_id=None, blocked_s=0.0, size_bytes=size_bytes)
            told = report(sequence, run_number=run_number, checkpoint=checkpoint)
            running.agent.report(token_of(1), told, at=at(20 + 10 * run_number + sequence))
            assert running.jobs.get("1").checkpoint_bytes == size_bytes

    def test_that_a_warning_is_kept_once_with_its_first_run(self, running: Store) -> None:
        differ, never = JobWarning.REPLICAS_DIFFER, JobWarning.NEVER_STEPPED
        assert running.jobs.get("1").warnings == ()
        running.agent.report(token_of(1), report(2, warnings=(differ,)), at=at(20))
        running.agent.report(token_of(1), report(3, warnings=(differ, never)), at=at(30))
        running.agent.report(token_of(1), report(1, run_number=1, warnings=(differ,)), at=at(40))
        kept = (
            WarningRecord(warning=differ, run_number=0, first_seen_at=at(20)),
            WarningRecord(warning=never, run_number=0, first_seen_at=at(30)),
        )
        assert running.jobs.get("1").warnings == kept
        assert [job.warnings for job in running.jobs.active()] == [kept]

    def test_that_a_first_report_can_have_a_warning(self, running: Store) -> None:
        running.jobs.register([registration(2)], at=at(20))
        running.agent.report(token_of(2), report(1, warnings=(JobWarning.NEVER_STEPPED,)), at=at(21))
        assert [[one.warning for one in job.warnings] for job in running.jobs.all()] == [
            [],
            [JobWarning.NEVER_STEPPED],
        ]

    def test_that_reports_work_after_a_clock_was_set_back(self, running: Store) -> None:
        running.agent.report(token_of(1), report(2), at=at(-3600))
        run = running.jobs.get("1").run
        assert run is not None
        assert run.first_report_at <= run.last_report_at == at(10)

    def test_that_the_gpus_of_a_run_can_be_corrected(self, running: Store) -> None:
        running.jobs.observe([observation(1, gpus={"n0": 2, "n1": 1, "n2": 1})], at=at(19))
        running.agent.report(token_of(1), report(2, gpus_per_node=(2, 1, 1)), at=at(20))
        run = running.jobs.get("1").run
        assert run is not None
        assert run.gpus_per_node == (2, 1, 1)

    def test_that_the_token_of_a_finished_job_is_refused(self, running: Store) -> None:
        running.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(60))
        with pytest.raises(UnknownJobError, match="job 1 is over"):
            running.agent.report(token_of(1), report(2), at=at(61))

    def test_that_jobs_do_not_see_each_other(self, running: Store) -> None:
        running.jobs.register([registration(2)], at=at(20))
        running.agent.report(token_of(2), report(1, throughput=7.0, gpus_per_node=(1,)), at=at(21))
        one, two = running.jobs.active()
        assert one.sample is not None
        assert two.sample is not None
        assert (one.sample.throughput, two.sample.throughput) == (200.0, 7.0)


class TestRecentRuns:
    """Job 1 has two GPUs of n0 from 2 s on, and reported once at 10 s, with a progress of 8."""

    @staticmethod
    def runs(store: Store, *lengths_s: float) -> None:
        """Report runs of these lengths, from 1000 s on, with a progress of 0.01 per second."""
        seconds = 1000.0
        for number, length_s in enumerate(lengths_s, start=1):
            for sequence, more_s in ((1, 0.0), (2, length_s)):
                message = report(
                    sequence, run_number=number, restart_count=number, progress=1000 * number + more_s / 100
                )
                store.agent.report(token_of(1), message, at=at(seconds + more_s))
            seconds += length_s + 10.0

    def test_that_a_recent_run_has_its_progress_and_allocations(self, running: Store) -> None:
        running.agent.report(token_of(1), report(2, progress=200.0), at=at(100))
        assert running.jobs.get("1").recent_runs == (), "it has reported for less than two minutes"
        running.agent.report(token_of(1), report(3, progress=308.0), at=at(150))
        (run,) = running.jobs.get("1").recent_runs
        assert (run.progress, run.gpu_type) == (300.0, None)
        assert run.allocations == ((Configuration(num_nodes=1, num_gpus=2), pytest.approx(140.0)),)

    def test_that_neither_sequence_numbers_nor_missing_throughput_hide_a_run(self, running: Store) -> None:
        for number in range(1, 6):
            message = report(100 * number, progress=8.0 + number, throughput=None)
            running.agent.report(token_of(1), message, at=at(10 + 30 * number))
        (run,) = running.jobs.get("1").recent_runs
        assert (run.progress, run.allocated_s) == (5.0, pytest.approx(150.0))

    def test_that_a_run_that_stops_reporting_a_model_is_a_recent_run(self, running: Store) -> None:
        """After its first sample, it reports no training at all."""
        message = report(2, phase=RunPhase.STARTING, throughput=None)
        running.agent.report(token_of(1), message, at=at(310))
        (run,) = running.jobs.get("1").recent_runs
        assert (run.progress, run.allocated_s) == (0.0, pytest.approx(300.0))

    def test_that_the_last_long_runs_are_returned_newest_first(self, running: Store) -> None:
        self.runs(running, *range(1200, 200, -100), 50.0, 60.0, 119.0)
        recent_runs = running.jobs.get("1").recent_runs
        assert [run.progress for run in recent_runs] == [pytest.approx(n) for n in range(3, 3 + RECENT_RUNS)]
        assert [run.allocated_s for run in recent_runs] == [
            pytest.approx(100.0 * n) for n in range(3, 3 + RECENT_RUNS)
        ]

    def test_that_the_size_and_start_that_a_run_reports_do_not_count(self, running: Store) -> None:
        running.agent.report(token_of(1), report(2, gpus_per_node=(1,)), at=at(20))
        message = report(1, run_number=1, restart_count=7, gpus_per_node=(1,))
        running.agent.report(token_of(1), message, at=at(200))
        running.agent.report(token_of(1), dataclasses.replace(message, sequence=2), at=at(400))
        (run,) = running.jobs.get("1").recent_runs
        assert run.allocations == ((Configuration(num_nodes=1, num_gpus=2), pytest.approx(200.0)),)

    def test_that_a_suspension_is_not_counted_in_a_recent_run(self, running: Store) -> None:
        gone = {"suspended_at": at(60), "counted_s": 58.0}
        running.jobs.observe(
            [observation(1, JobState.SUSPENDED, {"n0": 2}, started_at=at(2), **gone)], at=at(61)
        )
        back = {"resumed_at": at(9060), "counted_s": 58.0}
        running.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(2), **back)], at=at(9100))
        running.agent.report(token_of(1), report(2, progress=108.0), at=at(9130))
        (run,) = running.jobs.get("1").recent_runs
        assert (run.progress, run.allocated_s) == (100.0, pytest.approx(50.0 + 70.0))

    def test_that_a_run_that_lost_a_node_has_all_its_allocations(self, any_store: Store) -> None:
        any_store.jobs.register([registration(1)], at=at(0))
        for seconds, gpus in ((5, {"n0": 4, "n1": 4}), (100, {"n0": 4})):
            any_store.jobs.observe([observation(1, gpus=gpus, started_at=at(0))], at=at(seconds))
            any_store.agent.report(token_of(1), report(seconds, gpus_per_node=(4,)), at=at(seconds))
        any_store.agent.report(token_of(1), report(200, gpus_per_node=(4,)), at=at(300))
        (run,) = any_store.jobs.get("1").recent_runs
        assert run.allocations == (
            (Configuration(num_nodes=2, num_gpus=8), pytest.approx(95.0)),
            (Configuration(num_nodes=1, num_gpus=4), pytest.approx(200.0)),
        )

    def test_that_a_new_token_keeps_the_recent_runs(self, running: Store) -> None:
        running.agent.report(token_of(1), report(2, progress=508.0), at=at(300))
        running.jobs.register([TestNewToken.with_new_token()], at=at(400))
        assert [run.progress for run in running.jobs.get("1").recent_runs] == [500.0]


class TestCheckpoints:
    def test_that_a_request_is_shown_until_the_job_is_requeued(self, running: Store) -> None:
        planned = plan(running)
        assert running.agent.poll(token_of(1), 0, at=at(21)).checkpoint_request is None
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        assert running.agent.poll(token_of(1), 0, at=at(23)).checkpoint_request == planned.id
        advance(running, planned, (Step.CHECKPOINTED, 24))
        assert running.agent.poll(token_of(1), 0, at=at(25)).checkpoint_request == planned.id
        advance(running, planned, (Step.REQUEUED, 26))
        # Slurm is about to end the run: it must not train past its checkpoint until then.
        assert running.agent.poll(token_of(1), 0, at=at(27)).checkpoint_request == planned.id
        assert running.agent.poll(token_of(1), 1, at=at(28)).checkpoint_request is None, "the next run trains"
        advance(running, planned, (Step.RESHAPED, 29))
        assert running.agent.poll(token_of(1), 0, at=at(30)).checkpoint_request is None

    def test_that_a_clock_set_back_does_not_keep_a_dead_daemons_lease(self, running: Store) -> None:
        assert running.lease.acquire("dead", ttl_s=30, at=at(3600))
        assert not running.lease.acquire("next", ttl_s=30, at=at(3599))
        assert running.lease.acquire("next", ttl_s=30, at=at(60))

    def test_that_no_job_waits_for_a_daemon_that_has_died(self, running: Store) -> None:
        assert running.lease.acquire("d", ttl_s=30, at=at(20))
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        assert running.agent.poll(token_of(1), 0, at=at(109)).checkpoint_request == planned.id
        assert running.agent.poll(token_of(1), 0, at=at(110)).checkpoint_request is None
        assert running.lease.acquire("next", ttl_s=30, at=at(111))
        assert running.agent.poll(token_of(1), 0, at=at(112)).checkpoint_request == planned.id

    def test_that_a_job_can_read_where_it_is_moved(self, running: Store) -> None:
        first = plan(running)
        source = Allocation.of({"n0": 2})
        assert running.agent.move(token_of(1), first.id) == Move(
            source=source, target=Allocation.of({"n1": 3, "n2": 1}), reason=None
        )
        advance(running, first, (Step.FAILED, 30))
        pause = plan(running, target=Allocation(), reason="paused by its owner")
        assert running.agent.move(token_of(1), pause.id) == Move(
            source=source, target=Allocation(), reason="paused by its owner"
        )

    def test_that_a_job_can_read_its_own_moves_only(self, running: Store) -> None:
        running.jobs.register([registration(2)], at=at(0))
        first = plan(running)
        for request_id in (first.id, first.id + 1, 0, 2**63 - 1):
            assert running.agent.move(token_of(2), request_id) is None
        with pytest.raises(UnknownJobError):
            running.agent.move("nobody's", first.id)
        with pytest.raises(UnknownJobError):
            running.agent.move("nobody's", first.id + 1)

    def test_that_a_confirmation_moves_the_reallocation(self, running: Store) -> None:
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        running.agent.report(token_of(1), confirmation(planned.id), at=at(24))
        (moved,) = running.journal.open_reallocations()
        assert moved.step is Step.CHECKPOINTED
        assert moved.entered_at(Step.CHECKPOINTED) == at(24)
        assert moved.checkpoint_blocked_s == 0.5

    def test_that_blocked_time_is_at_most_the_time_since_the_request(self, running: Store) -> None:
        """Reported blocked time counts in the restart delay, and a large one keeps a job from moves."""
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        lie = CheckpointConfirmation(request_id=planned.id, blocked_s=1e7, size_bytes=1)
        running.agent.report(token_of(1), report(2, checkpoint=lie), at=at(24))
        (moved,) = running.journal.open_reallocations()
        assert moved.checkpoint_blocked_s == 2.0

    def test_that_no_blocked_time_is_left_when_the_clock_is_behind(self, running: Store) -> None:
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 50))
        running.agent.report(token_of(1), confirmation(planned.id), at=at(24))
        (moved,) = running.journal.open_reallocations()
        assert moved.checkpoint_blocked_s == 0.0

    def test_that_a_repeated_confirmation_changes_nothing(self, running: Store) -> None:
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        running.agent.report(token_of(1), confirmation(planned.id), at=at(24))
        before = running.journal.open_reallocations()
        running.agent.report(token_of(1), confirmation(planned.id), at=at(30))
        running.agent.report(token_of(1), confirmation(planned.id, sequence=3), at=at(31))
        assert running.journal.open_reallocations() == before

    @pytest.mark.parametrize("step", [Step.PLANNED, Step.ROLLED_BACK, Step.REQUEUED])
    def test_that_a_confirmation_without_a_request_moves_nothing(self, running: Store, step: Step) -> None:
        planned = plan(running)
        if step is not Step.PLANNED:
            advance(running, planned, (Step.CHECKPOINT_REQUESTED, 21), (step, 22))
        running.agent.report(token_of(1), confirmation(planned.id), at=at(24))
        (after,) = running.journal.reallocations()
        assert (after.step, after.checkpoint_blocked_s) == (step, None)
        run = running.jobs.get("1").run
        assert run is not None
        assert run.phase is RunPhase.WAITING

    def test_that_a_job_cannot_confirm_for_another(self, running: Store) -> None:
        running.jobs.register([registration(2)], at=at(11))
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        running.agent.report(token_of(2), confirmation(planned.id), at=at(24))
        (after,) = running.journal.open_reallocations()
        assert after.step is Step.CHECKPOINT_REQUESTED
        assert running.agent.poll(token_of(2), 0, at=at(25)).checkpoint_request is None

    @pytest.mark.parametrize("request_id", [0, 10**18])
    def test_that_a_forged_request_id_does_no_harm(self, running: Store, request_id: int) -> None:
        running.agent.report(token_of(1), confirmation(request_id), at=at(24))
        running.agent.report(token_of(1), confirmation(None, sequence=3), at=at(25))
        assert running.journal.reallocations() == ()

    def test_that_a_leftover_of_an_earlier_start_gets_no_request_and_cannot_confirm(
        self, running: Store
    ) -> None:
        planned = plan(running, from_restart_count=1)  # Slurm has started it again; nobody reported yet
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 22))
        assert running.agent.poll(token_of(1), 0, at=at(23)).checkpoint_request is None
        running.agent.report(token_of(1), confirmation(planned.id), at=at(24))
        assert [r.step for r in running.journal.open_reallocations()] == [Step.CHECKPOINT_REQUESTED]
        assert running.agent.poll(token_of(1), 1, at=at(25)).checkpoint_request == planned.id
        now = confirmation(planned.id, sequence=1, run_number=1, restart_count=1)
        running.agent.report(token_of(1), now, at=at(26))
        assert [r.step for r in running.journal.open_reallocations()] == [Step.CHECKPOINTED]

    @pytest.mark.parametrize("step", [Step.CHECKPOINT_REQUESTED, Step.CHECKPOINTED, Step.REQUEUED])
    def test_that_a_run_gets_no_request_for_an_earlier_one_and_cannot_confirm_it(
        self, running: Store, step: Step
    ) -> None:
        planned = plan(running)
        advance(running, planned, (Step.CHECKPOINT_REQUESTED, 21))
        if step is not Step.CHECKPOINT_REQUESTED:
            advance(running, planned, (step, 22))
        # The job was requeued externally, and it trains again.
        running.agent.report(token_of(1), report(run_number=1, restart_count=1), at=at(24))
        assert running.agent.poll(token_of(1), 1, at=at(25)).checkpoint_request is None
        forged = confirmation(planned.id, sequence=2, run_number=1, restart_count=1)
        running.agent.report(token_of(1), forged, at=at(26))
        assert [r.step for r in running.journal.open_reallocations()] == [step]


class TestReallocations:
    def test_that_what_was_planned_is_read_back(self, running: Store) -> None:
        round_id = running.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(19))
        planned = plan(running, round_id=round_id)
        assert running.journal.open_reallocations() == running.journal.reallocations("1") == (planned,)
        assert running.jobs.get("1").open_reallocation == planned
        assert planned.source == Allocation.of({"n0": 2})
        assert planned.target == Allocation.of({"n1": 3, "n2": 1})
        assert planned.times == ((Step.PLANNED, at(20)),)

    def test_that_what_slurm_refused_is_read_back_with_the_move_and_the_job(self, running: Store) -> None:
        planned = plan(running)
        refusal = Refusal(
            allocation=Allocation.of({"n1": 4}),
            answer=SlurmAnswer.NEVER,
            at=at(25),
            reason="BadConstraints",
            request="main|physics",
        )
        running.journal.record_refusal(planned.id, dataclasses.replace(refusal, answer=SlurmAnswer.NOT_NOW))
        running.journal.record_refusal(planned.id, refusal)
        assert running.journal.open_reallocations() == (dataclasses.replace(planned, refusal=refusal),)
        assert running.jobs.get("1").refusals == (refusal,)
        advance(running, planned, (Step.ROLLED_BACK, 30))
        plan(running, seconds=40)
        assert running.jobs.get("1").refusals == (refusal,)

    def test_that_a_priority_lasts_until_its_end_is_recorded(self, running: Store) -> None:
        planned = plan(running)
        assert not running.journal.prioritised()
        running.journal.record_priority(planned.id, 4_294_967_200)
        (lasting,) = running.journal.prioritised()
        assert lasting == dataclasses.replace(planned, priority=4_294_967_200)
        advance(running, planned, (Step.ROLLED_BACK, 30))
        assert len(running.journal.prioritised()) == 1, "also after the end of the move"
        running.journal.record_priority_ended([planned.id], at=at(31))
        assert not running.journal.prioritised()
        assert running.journal.reallocations("1")[0].priority_ended_at == at(31)

    def test_that_an_empty_allocation_can_be_either_end(self, running: Store) -> None:
        planned = plan(running, source=Allocation(), target=Allocation(), moves_running=False)
        (read,) = running.journal.open_reallocations()
        assert read == planned

    def test_that_a_job_has_at_most_one_open_reallocation(self, running: Store) -> None:
        first = plan(running)
        with pytest.raises(StoreError, match="job 1: a reallocation cannot be planned"):
            plan(running)
        assert running.journal.open_reallocations() == (first,)
        advance(running, first, (Step.ROLLED_BACK, 30))
        second = plan(running, seconds=40)
        assert [r.id for r in running.journal.reallocations()] == [first.id, second.id]

    def test_that_an_unknown_job_or_round_cannot_be_planned_for(self, running: Store) -> None:
        with pytest.raises(UnknownJobError, match="404"):
            plan(running, 404)
        with pytest.raises(StoreError, match="round 99"):
            plan(running, round_id=99)
        assert running.journal.reallocations() == ()

    def test_that_an_advance_is_a_compare_and_set(self, running: Store) -> None:
        planned = plan(running)
        move = {"expected": Step.PLANNED, "at": at(21)}
        assert running.journal.advance(planned.id, Step.CHECKPOINT_REQUESTED, **move)
        assert running.journal.advance(planned.id, Step.CHECKPOINT_REQUESTED, **move), "repeated"
        assert not running.journal.advance(planned.id, Step.RESHAPED, **move), "at another step"
        assert not running.journal.advance(10**6, Step.RESHAPED, **move), "no such reallocation"
        (after,) = running.journal.open_reallocations()
        assert after.step is Step.CHECKPOINT_REQUESTED
        assert [step for step, _ in after.times] == [Step.PLANNED, Step.CHECKPOINT_REQUESTED]

    @pytest.mark.parametrize(
        ("expected", "step"),
        [
            (Step.CHECKPOINTED, Step.PLANNED),
            (Step.RUNNING, Step.RUNNING),
            (Step.CONFIRMED, Step.ROLLED_BACK),
            (Step.FAILED, Step.RUNNING),
        ],
    )
    def test_that_steps_only_go_forward(self, running: Store, expected: Step, step: Step) -> None:
        planned = plan(running)
        with pytest.raises(StoreError, match="steps only go forward"):
            running.journal.advance(planned.id, step, expected=expected, at=at(30))

    def test_that_a_move_gets_another_target_only_at_the_expected_step(self, running: Store) -> None:
        planned, elsewhere = plan(running), Allocation.of({"n7": 2, "n8": 1})
        ask = {"expected": Step.PLANNED, "reason": "its place was taken"}
        assert running.journal.retarget(planned.id, elsewhere, **ask)
        (after,) = running.journal.open_reallocations()
        assert (after.target, after.source) == (elsewhere, planned.source)
        assert (planned.retargeted, after.retargeted, after.reason) == (False, True, "its place was taken")
        assert (after.step, after.times) == (planned.step, planned.times)
        assert running.journal.advance(planned.id, Step.RESHAPED, expected=Step.PLANNED, at=at(21))
        assert not running.journal.retarget(planned.id, planned.target, **ask)
        assert not running.journal.retarget(10**6, planned.target, **ask)
        (unchanged,) = running.journal.open_reallocations()
        assert unchanged.target == elsewhere
        with pytest.raises(StoreError, match="has ended"):
            running.journal.retarget(planned.id, elsewhere, expected=Step.FAILED, reason="late")

    @pytest.mark.parametrize("cause", ReallocationCause)
    def test_that_its_cause_and_reason_are_kept(self, running: Store, cause: ReallocationCause) -> None:
        planned = plan(running, cause=cause)
        assert running.jobs.get("1").open_reallocation == planned
        assert [move.cause for move in running.journal.reallocations()] == [planned.cause] == [cause]

    @pytest.mark.parametrize("flag", ["checkpoint_waived", "job_failed", "taken_over"])
    def test_that_a_flag_that_is_set_stays_set(self, running: Store, flag: str) -> None:
        planned = plan(running)
        ask: dict[str, Any] = {"at": at(30), flag: True}
        assert (
            running.journal.advance(planned.id, Step.CHECKPOINTED, expected=Step.CHECKPOINT_REQUESTED, **ask)
            is False
        )
        assert running.journal.open_reallocations() == (planned,)
        running.journal.advance(planned.id, Step.CHECKPOINTED, expected=Step.PLANNED, **ask)
        running.journal.advance(planned.id, Step.REQUEUED, expected=Step.CHECKPOINTED, at=at(31))
        (after,) = running.journal.open_reallocations()
        flags = {name: getattr(after, name) for name in ("checkpoint_waived", "job_failed", "taken_over")}
        assert flags == {**dict.fromkeys(flags, False), flag: True}
        assert not after.retargeted

    def test_that_the_reason_is_kept_and_the_end_closes_it(self, running: Store) -> None:
        planned = plan(running)
        running.journal.advance(
            planned.id, Step.FAILED, expected=Step.PLANNED, at=at(30), reason="gone\0 \udcff"
        )
        assert running.journal.open_reallocations() == ()
        assert running.jobs.get("1").open_reallocation is None
        (ended,) = running.journal.reallocations()
        assert ended.reason is not None
        assert ended.reason.startswith("gone")
        assert (ended.step, ended.times[-1]) == (Step.FAILED, (Step.FAILED, at(30)))

    def test_that_a_confirmed_move_is_a_restart_with_its_measured_delay(self, running: Store) -> None:
        move_running_job(running, start=20)
        job = running.jobs.get("1")
        assert (job.num_restarts, job.mean_restart_delay_s) == (1, pytest.approx(12.5))
        (moved,) = running.journal.reallocations("1")
        assert (moved.first_step_at, moved.checkpoint_blocked_s) == (at(35), 0.5)
        assert [step for step, _ in moved.times] == [*list(Step)[:7], Step.CONFIRMED]

    def test_that_the_delay_is_the_mean_over_restarts(self, running: Store) -> None:
        move_running_job(running, start=20)
        second = plan(running, seconds=100, from_restart_count=1)
        advance(running, second, (Step.REQUEUED, 110), (Step.RUNNING, 113), (Step.CONFIRMED, 120))
        job = running.jobs.get("1")
        assert (job.num_restarts, job.mean_restart_delay_s) == (2, pytest.approx((12.5 + 10.0) / 2))

    def test_that_the_mean_is_over_the_last_ten_restarts(self, running: Store) -> None:
        for number in range(12):
            start, cost = 100 * number + 20, 50.0 if number < 2 else 10.0
            moved = plan(running, seconds=start, from_restart_count=number)
            advance(running, moved, (Step.REQUEUED, start), (Step.RUNNING, start + 3))
            advance(running, moved, (Step.CONFIRMED, start + cost))
        job = running.jobs.get("1")
        assert (job.num_restarts, job.mean_restart_delay_s) == (12, pytest.approx(10.0))

    def test_that_only_confirmed_moves_of_a_running_job_count(self, running: Store) -> None:
        waiting = plan(running, moves_running=False)
        advance(running, waiting, (Step.RESHAPED, 21), (Step.RUNNING, 22), (Step.CONFIRMED, 23))
        failed = plan(running, seconds=30)
        advance(running, failed, (Step.REQUEUED, 31), (Step.FAILED, 32))
        job = running.jobs.get("1")
        assert (job.num_restarts, job.mean_restart_delay_s) == (0, None)

    def test_that_unanswered_requests_are_returned(self, any_store: Store) -> None:
        store = any_store
        store.jobs.register([registration(1)], at=at(0))
        store.jobs.observe([observation(1, gpus={"n0": 2})], at=at(1))
        store.agent.report(token_of(1), report(1), at=at(2))
        asked = (Step.CHECKPOINT_REQUESTED, 21)
        advance(store, plan(store), asked, (Step.ROLLED_BACK, 51))
        advance(store, plan(store), (Step.ROLLED_BACK, 52))
        confirmed = plan(store)
        advance(store, confirmed, asked)
        store.agent.report(token_of(1), confirmation(confirmed.id), at=at(55))
        advance(store, confirmed, (Step.ROLLED_BACK, 56))  # its place was taken, or the daemon stopped
        ignored, continued_training = (at(21), at(51), False), (at(21), at(57), True)
        assert store.jobs.get("1").unanswered == (ignored,)
        not_waited_for = plan(store)
        advance(store, not_waited_for, asked)
        store.agent.report(token_of(1), confirmation(not_waited_for.id, 3), at=at(57))
        assert store.journal.advance(
            not_waited_for.id,
            Step.ROLLED_BACK,
            expected=Step.CHECKPOINTED,
            at=at(58),
            continued_training=True,
        )
        assert store.jobs.get("1").unanswered == (ignored, continued_training)
        allowed = plan(store)
        advance(store, allowed, asked, (Step.CHECKPOINTED, 61), (Step.REQUEUED, 62), (Step.CONFIRMED, 70))
        assert store.jobs.get("1").unanswered == (ignored, continued_training, (at(21), at(61), False))
        for _ in range(15):
            advance(store, plan(store), (Step.ROLLED_BACK, 80))
        assert store.jobs.get("1").unanswered == ((at(21), at(61), False),)


class TestRounds:
    def test_that_a_round_comes_back_equal(self, any_store: Store) -> None:
        problem, decision = problem_of([1, 2]), decision_of([1, 2])
        first = any_store.rounds.record(problem, decision, shadow=False, at=at(1))
        second = any_store.rounds.record(problem_of([]), decision_of([]), shadow=True, at=at(2))
        assert second > first
        assert any_store.rounds.problem(first) == (problem, decision)
        assert any_store.rounds.problem(second) == (problem_of([]), decision_of([]))

    def test_that_the_last_decision_shows_in_the_job(self, running: Store) -> None:
        running.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(20))
        running.rounds.record(problem_of([1, 5]), decision_of([1, 5]), shadow=True, at=at(30))
        running.rounds.record(problem_of([]), decision_of([]), shadow=False, at=at(40))
        job = running.jobs.get("1")
        assert job.last_decision == Allocation.of({"n1": 3, "m1": 1})
        assert (job.last_decision_speedup, job.last_decision_bound_by) == (1.75, "capacity")
        assert job.last_decision_at == at(30)

    def test_that_reading_an_unknown_round_raises(self, any_store: Store) -> None:
        with pytest.raises(StoreError, match="no round 3; none is recorded yet"):
            any_store.rounds.problem(3)
        number = any_store.rounds.record(problem_of([]), decision_of([]), shadow=False, at=at(1))
        with pytest.raises(StoreError, match=f"the last one is {number}"):
            any_store.rounds.problem(number + 5)

    def test_that_the_last_round_is_found_without_its_number(self, any_store: Store) -> None:
        with pytest.raises(StoreError, match="pollux daemon"):
            any_store.rounds.problem()
        any_store.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(1))
        any_store.rounds.record(problem_of([2]), decision_of([2]), shadow=True, at=at(2))
        assert any_store.rounds.problem() == (problem_of([2]), decision_of([2]))

    def test_that_a_decision_about_a_job_comes_back_with_its_reasons(self, running: Store) -> None:
        decided = decision_of([1])
        first = running.rounds.record(problem_of([1]), decided, shadow=False, at=at(20))
        running.rounds.record(problem_of([]), decision_of([]), shadow=False, at=at(30))
        found = running.rounds.decision("1")
        assert found is not None
        assert found.job == decided.jobs[0]
        assert (found.round_id, found.at, found.shadow, found.excluded_reason) == (first, at(20), False, None)
        assert (found.objective, found.solver, found.fitness) == ("generalized-mean", "test", 0.8)
        assert (found.upper_bound, found.gap, found.timed_out) == (0.9, 1 / 9, True)
        assert found.gpu_prices == (("a100", 0.5), ("t4", 0.25))
        assert found.explanation == explanation(decided.jobs[0])
        assert running.rounds.decision("1", first) == found

    def test_that_the_solver_of_a_row_that_says_exact_is_search(
        self, running: Store, any_store_url: str
    ) -> None:
        decided = dataclasses.replace(decision_of([1]), solver="exact")
        running.rounds.record(problem_of([1]), decided, shadow=False, at=at(20))
        found = running.rounds.decision("1")
        assert found is not None
        assert found.solver == "search"
        with open_view_reader(any_store_url) as reports:
            assert [one.solver for one in reports.rows(RoundEntry).rows] == ["search"]

    def test_that_an_excluded_job_has_the_reason(self, running: Store) -> None:
        decided = dataclasses.replace(decision_of([1]), excluded=(("1", "its model is refused: NaN\0"),))
        running.rounds.record(problem_of([1]), decided, shadow=False, at=at(20))
        found = running.rounds.decision("1")
        assert found is not None
        assert found.excluded_reason == "its model is refused: NaN\N{REPLACEMENT CHARACTER}"
        assert found.explanation == f"job 1 is left as it is: {found.excluded_reason}"

    def test_that_no_decision_is_none_and_no_job_raises(self, running: Store) -> None:
        assert running.rounds.decision("1") is None
        number = running.rounds.record(problem_of([]), decision_of([]), shadow=False, at=at(20))
        assert running.rounds.decision("1", number) is None
        with pytest.raises(StoreError, match=f"there is no round {number + 1}"):
            running.rounds.decision("1", number + 1)
        with pytest.raises(UnknownJobError, match="job 7 is not known"):
            running.rounds.decision("7")

    def test_that_a_decision_with_nan_is_refused_as_a_whole(self, any_store: Store) -> None:
        decision = decision_of([1])
        object.__setattr__(decision, "fitness", float("inf"))
        with pytest.raises(InvalidProblemError, match="fitness"):
            any_store.rounds.record(problem_of([1]), decision, shadow=False, at=at(1))
        with pytest.raises(StoreError, match="none is recorded yet"):
            any_store.rounds.problem(1)


class TestLease:
    def test_that_one_owner_has_it_until_it_expires(self, any_store: Store) -> None:
        assert any_store.lease.acquire("a", ttl_s=10, at=at(0))
        assert not any_store.lease.acquire("b", ttl_s=10, at=at(9.9))
        assert any_store.lease.is_held_by("a", at=at(9.9))
        assert not any_store.lease.is_held_by("a", at=at(10))
        assert not any_store.lease.is_held_by("b", at=at(5))
        assert any_store.lease.acquire("b", ttl_s=10, at=at(10))
        assert not any_store.lease.acquire("a", ttl_s=10, at=at(11))
        assert any_store.lease.is_held_by("b", at=at(11))

    def test_that_its_owner_renews_it(self, any_store: Store) -> None:
        assert any_store.lease.acquire("a", ttl_s=10, at=at(0))
        assert any_store.lease.acquire("a", ttl_s=10, at=at(8))
        assert any_store.lease.is_held_by("a", at=at(17))
        assert not any_store.lease.acquire("b", ttl_s=10, at=at(17))

    def test_that_who_had_it_last_is_known_until_it_is_given_back(self, any_store: Store) -> None:
        assert any_store.lease.daemon_status() == DaemonStatus()
        assert any_store.lease.acquire("a", ttl_s=10, at=at(5), interval_s=60, watch_s=10)
        round_id = any_store.rounds.record(problem_of([]), decision_of([]), shadow=False, at=at(6))
        assert round_id
        assert any_store.lease.daemon_status() == DaemonStatus(
            owner="a",
            renewed_at=at(5),
            expires_at=at(15),
            last_round_at=at(6),
            interval_s=60,
            watch_s=10,
        )
        assert any_store.lease.acquire("a", ttl_s=10, at=at(7), interval_s=30, watch_s=5)
        assert (any_store.lease.daemon_status().interval_s, any_store.lease.daemon_status().watch_s) == (
            30,
            5,
        )
        any_store.lease.release("a")
        assert any_store.lease.daemon_status() == DaemonStatus(last_round_at=at(6))
        any_store.rounds.record(problem_of([]), decision_of([]), shadow=True, at=at(8))
        assert any_store.lease.daemon_status() == DaemonStatus(last_round_at=at(8), is_shadow=True)

    def test_that_only_its_owner_gives_it_back(self, any_store: Store) -> None:
        assert any_store.lease.acquire("a", ttl_s=10, at=at(0))
        any_store.lease.release("b")
        assert any_store.lease.is_held_by("a", at=at(1))
        any_store.lease.release("a")
        any_store.lease.release("a")
        assert not any_store.lease.is_held_by("a", at=at(1))
        assert any_store.lease.acquire("b", ttl_s=10, at=at(1))


class TestTrainingRuns:
    def test_that_training_runs_are_those_with_a_reported_step(self, any_store: Store) -> None:
        def runs_after(sequence: int, **changes: Any) -> frozenset[TrainingRun]:
            any_store.agent.report(token_of(1), report(sequence, **changes), at=at(10 * sequence))
            return any_store.jobs.training_runs()

        unmeasured = dataclasses.replace(MODEL, throughput=None)
        any_store.jobs.register([registration(1), registration(2)], at=at(0))
        assert runs_after(1, num_steps=0, phase=RunPhase.STARTING, model=None) == frozenset()
        assert runs_after(2, num_steps=1, model=unmeasured) == {TrainingRun("1", 0, False)}
        assert runs_after(3, num_steps=9) == {TrainingRun("1", 0, True)}
        assert runs_after(4, num_steps=9, phase=RunPhase.WAITING) == frozenset()
        # A run after a move starts with no step again.
        again = {"run_number": 1, "restart_count": 1}
        assert runs_after(5, **again, num_steps=0, phase=RunPhase.STARTING, model=None) == frozenset()
        assert runs_after(6, **again, num_steps=10, model=unmeasured) == {TrainingRun("1", 1, False)}
        any_store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(99))], at=at(99))
        assert any_store.jobs.training_runs() == frozenset()
