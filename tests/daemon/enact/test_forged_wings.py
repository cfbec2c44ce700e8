"""Forged wings: Comments that name another's anchor, and wings that are changed once they have priority.

The token's hash is public: `squeue` shows it in the Comment of each real wing. So all of these have it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import pytest

from pollux_slurm.config import MovesConfig
from pollux_slurm.daemon.decide.in_place import stray_wings
from pollux_slurm.daemon.doctor.findings import Verdict, examine_wings
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationCause, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.slurm.merging_client import MergingClient
from pollux_slurm.slurm.parsing.wing_comment import WingTerms, encode_wing_comment, parse_wing_comment
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.anchors import Anchor
from tests.daemon.harness import Harness
from tests.store.access.test_statements import statements_of

MOVES = MovesConfig(gpu_types_without_nvlink=("t4",))
VICTIM, ATTACKER = 1000, 1001
# Longer than any time-out here, so that wings wait in the queue while the test looks.
LONG_S = 1e6
# One more than that of job 3, the first that waits beside it.
NEIGHBOUR, PRIORITY = "3", 999_998


@pytest.fixture
def harness(clean_store: SqlStore) -> Harness:
    """Two nodes of four GPUs."""
    return Harness(clean_store)


def daemon(harness: Harness, slurm: Any = None) -> Daemon:
    return harness.daemon(slurm=MergingClient(slurm or harness.slurm), moves=MOVES)


def started(harness: Harness, *, gpus: int = 2, user_id: int = VICTIM) -> Anchor:
    """Submit a job in place and let it report its first steps."""
    anchor = Anchor(harness, gpus=gpus, user_id=user_id)
    harness.run_until(daemon(harness), until=lambda: harness.has_stepped(anchor.job_id), seconds=12)
    assert anchor.job.state is JobState.RUNNING
    return anchor


def forged(harness: Harness, anchor: Anchor, *options: str, plan: int = 0, restart: int | None = None) -> str:
    """Submit the attacker's job with a copy of the Comment of the victim's wing."""
    before = anchor.restart_count
    anchor.restart_count = before if restart is None else restart
    try:
        return anchor.wing(*options, plan=plan, user_id=ATTACKER)
    finally:
        anchor.restart_count = before


def steps(harness: Harness, anchor: Anchor) -> list[Step]:
    return [move.step for move in harness.store.journal.reallocations(anchor.job_id)]


# ------------------------------------------------------------------------------------ another user's jobs


def test_that_another_users_copies_are_neither_counted_nor_prioritised_nor_cancelled(
    harness: Harness,
) -> None:
    anchor = started(harness)
    copies = [
        forged(harness, anchor, "--nodelist=n1", "--gpus=1"),  # runs, like the wing of the start
        forged(harness, anchor, "--nodelist=n1", "--gpus=4", plan=1),  # waits, for the plan that comes
        forged(harness, anchor, "--nodelist=n1", "--gpus=4", plan=1, restart=1),
        forged(harness, anchor, "--nodelist=n1", "--gpus=4", plan=999_999_999, restart=999_999_999),
    ]
    priorities = [harness.job(number).priority for number in copies]
    harness.targets = {anchor.job_id: {"n0": 2, "n1": 2}}
    harness.run_until(daemon(harness), seconds=20)
    assert steps(harness, anchor) == [Step.CONFIRMED]
    assert anchor.job.allocation == Allocation.of({"n0": 2, "n1": 2})
    assert anchor.job.restart_count == 0
    assert [harness.job(number).priority for number in copies] == priorities
    assert [harness.job(number).state for number in copies] == [JobState.RUNNING] + [JobState.PENDING] * 3
    assert not [call for call in harness.slurm.calls if call[0] == "cancel"]


def test_that_another_users_copies_never_stop_the_job_or_fail_its_way_back(harness: Harness) -> None:
    """The victim is moved by requeue, which cancels its wings and waits for the next start."""
    anchor = started(harness)
    copy = forged(harness, anchor, "--nodelist=n0", "--gpus=1")
    next_start = forged(harness, anchor, "--hold", "--gpus=1", restart=1)
    harness.targets = {anchor.job_id: {"n1": 4}}  # none of its wings can stay
    harness.run_until(daemon(harness), seconds=60)
    assert steps(harness, anchor) == [Step.CONFIRMED]
    assert anchor.job.allocation == Allocation.of({"n1": 4})
    assert harness.job(copy).allocation == Allocation.of({"n0": 1})
    assert harness.job(next_start).held


def test_that_a_copied_anchor_gets_no_wings(harness: Harness) -> None:
    """The attacker's own anchor has the victim's hash in its Comment, and wings that name it."""
    anchor = started(harness)
    thief = harness.slurm.submit("#!/bin/sh\n", [f"--comment={anchor.job.comment}"], [], {})
    harness.slurm.set_job(thief, user_id=ATTACKER)
    terms = WingTerms(anchor_id=thief, restart_count=0, plan=0, token_sha256=anchor.token_hash)
    for user_id in (VICTIM, ATTACKER):
        wing = harness.slurm.submit(
            "#!/bin/sh\n", ["--gpus=1", f"--comment={encode_wing_comment(terms)}"], [], {}
        )
        harness.slurm.set_job(wing, user_id=user_id)
    harness.run_until(daemon(harness), seconds=20)
    shown = MergingClient(harness.slurm).snapshot()
    assert [job.job_id for job in shown.jobs if job.wings] == [anchor.job_id]
    assert [record.slurm_job_id for record in harness.store.jobs.active()] == [anchor.job_id]


STRANGE = (
    "pollux-wing/1:anchor={anchor},restart=-1,plan=0,sha256={sha}",
    "pollux-wing/1:anchor={anchor},restart=0,plan=99999999999999999999,sha256={sha}",
    "pollux-wing/1:anchor={anchor},restart=٣,plan=0,sha256={sha}",
    "pollux-wing/1:anchor=²,restart=0,plan=0,sha256={sha}",
    "pollux-wing/1:anchor={anchor},restart=0,plan=0,sha256={sha}\n",
    "pollux-wing/1:anchor={anchor},restart=00,plan=0,sha256={sha}",
    "\npollux-wing/1:anchor={anchor},restart=0,plan=0,sha256={sha}",
    "pollux-wing/1:anchor={anchor},restart=0,plan=0,sha256={sha},restart=1",
    "pollux-wing/1:anchor={anchor},restart=0,plan=1e3,sha256={sha}",
    "x" * 60_000,
)


def test_that_a_strange_comment_makes_no_wing(harness: Harness) -> None:
    anchor = started(harness)
    texts = [comment.format(anchor=anchor.job_id, sha=anchor.token_hash) for comment in STRANGE]
    assert [text for text in texts if parse_wing_comment(text) is not None] == []
    # As many as there is room for beside the anchor.
    odd = [harness.slurm.submit("#!/bin/sh\n", ["--gpus=1", "--nodelist=n1"], [], {}) for _ in range(4)]
    for job_id, text in zip(odd, texts[-4:], strict=True):
        harness.slurm.set_job(job_id, comment=text)
    harness.run_until(daemon(harness), seconds=70)
    assert {harness.job(job_id).state for job_id in odd} == {JobState.RUNNING}
    assert anchor.job.allocation == Allocation.of({"n0": 2})
    assert harness.store.journal.reallocations(anchor.job_id) == ()


# ------------------------------------------------------------------------------------ the owner's own jobs


@pytest.mark.parametrize(("restart", "plan"), [(0, 5), (7, 0), (7, 3), (999_999_999, 999_999_999)])
def test_that_a_wing_of_no_plan_or_another_start_gets_no_priority_and_others_are_moved(
    harness: Harness, restart: int, plan: int
) -> None:
    anchor, other = started(harness), started(harness, gpus=1, user_id=ATTACKER)
    anchor.restart_count = restart
    invented = anchor.wing("--hold", "--gpus=2", plan=plan)
    anchor.restart_count = 0
    priority = harness.job(invented).priority
    harness.targets = {other.job_id: {"n0": 1, "n1": 2}}
    harness.run_until(daemon(harness), seconds=20)
    assert steps(harness, other) == [Step.CONFIRMED]
    assert harness.job(invented).priority == priority
    assert anchor.job.allocation == Allocation.of({"n0": 2})


def test_that_a_wing_that_waits_for_a_later_start_does_not_keep_the_job_from_being_moved(
    harness: Harness,
) -> None:
    anchor = started(harness)
    anchor.restart_count = 7
    invented = anchor.wing("--hold", "--gpus=1", plan=0)
    anchor.restart_count = 0
    harness.targets = {anchor.job_id: {"n0": 2, "n1": 1}}
    harness.run_until(daemon(harness), seconds=20)
    assert steps(harness, anchor) == [Step.CONFIRMED]
    assert anchor.job.allocation == Allocation.of({"n0": 2, "n1": 1})
    harness.run_until(daemon(harness), until=lambda: harness.job(invented).state.is_over, seconds=120)


def test_that_wings_of_an_earlier_start_do_not_keep_their_gpus_from_a_requeue(harness: Harness) -> None:
    anchor = started(harness)
    anchor.restart_count = 3  # what the daemon takes for the newest start has one GPU only
    invented = anchor.wing("--gpus=1", "--nodelist=n1", plan=0)
    harness.clock.advance(1)
    client = MergingClient(harness.slurm)
    assert client.snapshot().job(anchor.job_id) is not None
    client.requeue_hold(anchor.job_id, restart_count=3)
    harness.clock.advance(1)
    assert anchor.job.allocation == Allocation()
    assert harness.job(invented).state is JobState.CANCELLED


def test_that_a_wing_of_one_job_that_names_another_of_the_same_user_counts_for_neither(
    harness: Harness,
) -> None:
    first, second = started(harness), started(harness, gpus=1)
    terms = WingTerms(anchor_id=second.job_id, restart_count=0, plan=0, token_sha256=first.token_hash)
    mixed = harness.slurm.submit(
        "#!/bin/sh\n", ["--gpus=1", "--nodelist=n1", f"--comment={encode_wing_comment(terms)}"], [], {}
    )
    harness.run_until(daemon(harness), seconds=80)
    assert harness.job(mixed).state is JobState.RUNNING
    assert (first.job.allocation.num_gpus, second.job.allocation.num_gpus) == (2, 1)


def prioritised(harness: Harness) -> tuple[Anchor, Daemon, str]:
    """Return a job whose new wing waits with priority, the daemon, and the wing."""
    anchor = started(harness)
    harness.slurm.start_s = LONG_S
    neighbour = harness.submit_unmanaged(gpus=1)
    assert neighbour == NEIGHBOUR
    harness.targets = {anchor.job_id: {"n0": 2, "n1": 2}}
    serving = daemon(harness)
    harness.run_until(serving, seconds=6)
    (wing,) = [one for one in anchor.wings() if one.state is JobState.PENDING]
    assert harness.job(wing.job_id).priority == PRIORITY
    harness.targets = {}
    return anchor, serving, wing.job_id


CHANGES: dict[str, dict[str, Any]] = {
    "its Comment, to be nobody's wing": {"comment": ""},
    "its Comment, to be a wing of another plan": {"comment": "plan=77"},
    "its Comment, to be a wing of another anchor": {"comment": "anchor=999"},
    "its account": {"account": "rich"},
    "its QOS": {"qos": "urgent"},
    "its time limit": {"time_limit_s": 1e7},
    "its GPUs": {"requested_gpus": 4},
    "its nodes": {"required_nodes": ()},
    "its partition": {"partition": "urgent"},
    "its partitions, to have more": {"partition": "main,urgent"},
    "its memory": {"memory_per_gpu_mb": 4000},
    "its memory, by node": {"memory_per_gpu_mb": 100, "memory_by_node": True},
    "its memory, beside that of its GPUs": {"least_memory_mb": 4000},
    "its CPUs": {"num_cpus": 8},
    "its other resources": {"unschedulable_reason": "it asks for other generic resources, too (fpga)"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_that_a_wing_that_is_changed_after_it_got_priority_is_cancelled(
    harness: Harness, change: str
) -> None:
    anchor, serving, wing = prioritised(harness)
    changes = dict(CHANGES[change])
    comment = harness.job(wing).comment
    if changes.get("comment") == "plan=77":
        changes["comment"] = comment.replace(",plan=1,", ",plan=77,")
    elif changes.get("comment") == "anchor=999":
        changes["comment"] = comment.replace(f"anchor={anchor.job_id},", "anchor=999,")
    harness.slurm.set_job(wing, **changes)
    harness.tick(serving, times=2)
    assert harness.job(wing).state is JobState.CANCELLED
    assert anchor.job.allocation == Allocation.of({"n0": 2})
    assert anchor.job.restart_count == 0


@pytest.mark.parametrize(("memory_mb", "stays"), [(200, True), (4000, False)])
def test_that_a_wing_that_has_more_memory_than_its_gpus_is_cancelled(
    harness: Harness, memory_mb: int, stays: bool
) -> None:
    _, serving, wing = prioritised(harness)
    has = Allocation.of({"n1": 2})
    harness.slurm.set_job(
        wing,
        state=JobState.RUNNING,
        allocation=has,
        memory_mb_by_node=(("n1", memory_mb),),
        least_memory_mb=0,
    )
    harness.tick(serving, times=1)
    assert (harness.job(wing).state is JobState.RUNNING) is stays


def test_that_a_wing_whose_priority_its_owner_lowers_gets_it_again(harness: Harness) -> None:
    _, serving, wing = prioritised(harness)
    harness.slurm.set_job(wing, priority=1)
    harness.tick(serving, times=1)
    assert harness.job(wing).priority == PRIORITY


def test_that_a_wing_that_outlives_its_move_is_cancelled_and_not_by_a_change_of_comment(
    harness: Harness,
) -> None:
    anchor, serving, wing = prioritised(harness)
    anchor.acts = False  # its owner's anchor does not cancel what was given up
    harness.run_until(serving, until=lambda: not harness.store.journal.open_reallocations(), seconds=60)
    assert steps(harness, anchor) == [Step.ROLLED_BACK]
    harness.slurm.set_job(wing, comment="")
    harness.tick(serving, times=1)
    assert harness.job(wing).state is JobState.CANCELLED


def test_that_a_wing_that_is_requeued_with_its_priority_is_cancelled(harness: Harness) -> None:
    anchor, serving, wing = prioritised(harness)
    harness.slurm.start_s = 0.0
    harness.slurm.cancel(NEIGHBOUR)
    harness.run_until(serving, seconds=10)
    assert steps(harness, anchor) == [Step.CONFIRMED]
    harness.slurm.set_job(
        wing, state=JobState.PENDING, allocation=Allocation(), comment="", requested_gpus=8, held=True
    )
    harness.targets = {}
    harness.run_until(serving, seconds=5)
    assert harness.job(wing).state is JobState.CANCELLED


def test_that_a_daemon_that_begins_watches_what_another_has_prioritised(harness: Harness) -> None:
    _, _, wing = prioritised(harness)
    successor = daemon(harness)
    harness.tick(successor, times=1)
    harness.slurm.set_job(wing, comment="")
    harness.tick(successor, times=1)
    assert harness.job(wing).state is JobState.CANCELLED


def test_that_an_owner_who_makes_the_job_unmanaged_keeps_the_wings_that_train(harness: Harness) -> None:
    anchor = started(harness)
    harness.targets = {anchor.job_id: {"n0": 2, "n1": 2}}
    serving = daemon(harness)
    harness.run_until(serving, seconds=15)
    assert steps(harness, anchor) == [Step.CONFIRMED]
    wings = [one.job_id for one in anchor.wings()]
    harness.slurm.set_comment(anchor.job_id, "")
    harness.agents.clear()
    harness.run_until(serving, seconds=90)
    assert [harness.job(number).state for number in wings] == [JobState.RUNNING] * 2


# ------------------------------------------------------------------------------------------ thousands of them


class Flooded:
    """A Slurm whose queue has more jobs than `slurm` itself knows. They can be cancelled."""

    def __init__(self, slurm: Any, jobs: list[SlurmJob]) -> None:
        self._slurm, self.jobs = slurm, {job.job_id: job for job in jobs}
        self.cancelled: list[str] = []

    def snapshot(self) -> ClusterSnapshot:
        shown: ClusterSnapshot = self._slurm.snapshot()
        return dataclasses.replace(shown, jobs=(*shown.jobs, *self.jobs.values()))

    def refresh(self, _job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        return self.snapshot()

    def cancel(self, job_id: str) -> None:
        if self.jobs.pop(job_id, None) is None:
            self._slurm.cancel(job_id)
        self.cancelled.append(job_id)

    def guarded(self, guard: Callable[[], None]) -> Flooded:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)


def flood(harness: Harness, anchor: Anchor, count: int, *, user_id: int) -> Flooded:
    """Return a Slurm with so many wings of that user more, which wait, or run without GPUs."""
    template = harness.job(anchor.wing("--hold", "--gpus=1", plan=1, user_id=user_id))
    harness.slurm.cancel(template.job_id)
    running = {"state": JobState.RUNNING, "held": False, "started_at": harness.clock(), "requested_gpus": 0}
    jobs = [
        dataclasses.replace(
            template, job_id=str(100_000 + number), **(running if number % 2 else {"state": JobState.PENDING})
        )
        for number in range(count)
    ]
    return Flooded(harness.slurm, jobs)


@pytest.mark.parametrize("user_id", [VICTIM, ATTACKER])
def test_that_thousands_of_forged_wings_cost_a_round_no_more_commands_or_statements(
    harness: Harness, user_id: int
) -> None:
    anchor = started(harness)
    counts = []
    for count in (10, 10_000):
        serving = daemon(harness, flood(harness, anchor, count, user_id=user_id))
        harness.clock.advance(30)
        serving.round()
        harness.slurm.calls.clear()
        with statements_of(harness.store) as sent:
            result = serving.round()
        assert result.skipped is None
        counts.append((len(sent), [name for name, _ in harness.slurm.calls]))
    assert counts[0] == counts[1]
    assert anchor.job.allocation == Allocation.of({"n0": 2})


def test_that_thousands_of_stray_wings_are_cancelled_some_at_a_time_and_do_not_pin_the_job(
    harness: Harness,
) -> None:
    anchor = started(harness)
    site = flood(harness, anchor, 1_000, user_id=VICTIM)
    serving = daemon(harness, site)
    harness.clock.advance(61)
    serving.round()
    most = 0
    for _ in range(5):
        before = len(site.cancelled)
        harness.tick(serving, times=1)
        most = max(most, len(site.cancelled) - before)
    # Twenty as stray wings, twenty as wings that wait for no move.
    assert 0 < most <= 40
    (move,) = harness.store.journal.reallocations(anchor.job_id)
    assert move.cause is ReallocationCause.STRAY_WINGS
    assert move.reason is not None
    assert "and 995 more" in move.reason
    assert len(move.reason) < 300
    # As many are left as before: the next move is the policy's, all the same.
    harness.run_until(serving, until=lambda: not harness.store.journal.open_reallocations(), seconds=90)
    harness.targets = {anchor.job_id: {"n0": 1}}
    harness.run_until(serving, seconds=6)
    second = harness.store.journal.reallocations(anchor.job_id)[1]
    assert (second.cause, second.step) == (ReallocationCause.DECISION, Step.CONFIRMED)


def test_that_doctor_names_forged_wings_in_one_short_line(harness: Harness) -> None:
    anchor = started(harness)
    site = flood(harness, anchor, 10_000, user_id=ATTACKER)
    finding = examine_wings(MergingClient(site).snapshot())  # type: ignore[arg-type]
    assert finding.verdict is Verdict.WARN
    assert "10000 jobs name in their Comment a job of another user" in finding.text
    assert "scancel" not in finding.cure
    assert len(finding.text + finding.cure) < 400


def test_that_a_stray_wing_is_one_of_the_owner_only(harness: Harness) -> None:
    anchor = started(harness)
    forged(harness, anchor, "--nodelist=n1", "--gpus=1")
    own = anchor.wing("--nodelist=n1", "--gpus=1", plan=0)
    harness.clock.advance(90)
    record = harness.store.jobs.get(anchor.job_id)
    assert [one.job_id for one in stray_wings(anchor.job, record, harness.clock())] == [own]
