"""Jobs that never confirm a checkpoint request: they do not block other users' moves."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from pollux_slurm.daemon.decide import unanswered_requests
from pollux_slurm.model import Allocation, JobState
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.contract.interface import UnansweredRequest
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.builders import NOON, record
from tests.daemon.harness import CONFIG, Harness
from tests.store_fixtures import wipe


@pytest.fixture
def crowd(clean_store: SqlStore) -> Iterator[Harness]:
    """A harness of twelve nodes with room for the jobs of two users."""
    yield Harness(clean_store, nodes=12)
    wipe(clean_store)


def submit_as(harness: Harness, user: str, *, gpus: int = 2, **options: Any) -> str:
    job_id = harness.submit(gpus=gpus, user_id=1000 + len(user), **options)
    harness.slurm.set_job(job_id, user_name=user)
    return job_id


def trained(harness: Harness, *jobs: str) -> None:
    """Let all jobs start and report their first steps."""
    daemon = harness.daemon()
    harness.run_until(daemon, until=lambda: all(harness.has_stepped(job_id) for job_id in jobs), seconds=30)
    assert all(harness.has_stepped(job_id) for job_id in jobs)


def on_one_gpu(harness: Harness, *jobs: str) -> dict[str, dict[str, int]]:
    """Return targets that leave each job one GPU where it is."""
    return {job_id: {harness.job(job_id).allocation.nodes[0]: 1} for job_id in jobs}


def asked(harness: Harness, job_id: str) -> int:
    """Return how many moves of the job requested a checkpoint."""
    moves = harness.store.journal.reallocations(job_id)
    return sum(move.entered_at(Step.CHECKPOINT_REQUESTED) is not None for move in moves)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [False, True], ids=["forbidden", "allowed"])
def test_that_unanswering_jobs_of_a_user_do_not_block_anothers_moves(crowd: Harness, allowed: bool) -> None:
    """There are more of them than may move at a time, and each would free GPUs and so goes first."""
    unanswering = [submit_as(crowd, "mallory", allow_unconfirmed=allowed) for _ in range(9)]
    honest = [submit_as(crowd, "bob", gpus=1) for _ in range(2)]
    trained(crowd, *unanswering, *honest)
    for job_id in unanswering:
        crowd.agents[job_id].answers = False
    node = crowd.job(honest[0]).allocation.nodes[0]
    crowd.targets = on_one_gpu(crowd, *unanswering) | {honest[0]: {node: 2}, honest[1]: {"n11": 3}}
    crowd.run_until(crowd.daemon(), seconds=CONFIG.checkpoint_timeout_s - 2)
    assert [crowd.job(job_id).allocation.num_gpus for job_id in honest] == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(("mallory", "trudy"), id="two"),
        # The slots are shared by the same rule.
        pytest.param(("mallory", "trudy", "eve"), id="three", marks=pytest.mark.full),
    ],
)
def test_that_unanswering_jobs_of_several_users_do_not_block_anothers_moves(
    crowd: Harness, hostile: tuple[str, ...]
) -> None:
    unanswering = [submit_as(crowd, user) for user in hostile for _ in range(12 // len(hostile))]
    honest = [submit_as(crowd, "bobby1", gpus=1) for _ in range(2)]
    trained(crowd, *unanswering, *honest)
    for job_id in unanswering:
        crowd.agents[job_id].answers = False
    where = {job_id: crowd.job(job_id).allocation.nodes[0] for job_id in honest}
    daemon = crowd.daemon()
    for gpus in (2, 1):  # while the unanswering jobs are asked for the first time, and again
        crowd.targets = on_one_gpu(crowd, *unanswering) | {job_id: {where[job_id]: gpus} for job_id in honest}
        crowd.run_until(daemon, seconds=CONFIG.checkpoint_timeout_s - 2)
        assert [crowd.job(job_id).allocation.num_gpus for job_id in honest] == [gpus, gpus]


def test_that_jobs_swap_nodes_while_another_does_not_answer(crowd: Harness) -> None:
    unanswering = submit_as(crowd, "mallory")
    swapping = [submit_as(crowd, "bob", gpus=4) for _ in range(2)]
    trained(crowd, unanswering, *swapping)
    crowd.agents[unanswering].answers = False
    crowd.targets = on_one_gpu(crowd, unanswering)
    daemon = crowd.daemon()
    crowd.run_until(daemon, until=lambda: asked(crowd, unanswering) == 1, seconds=10)
    one, two = (crowd.job(job_id).allocation for job_id in swapping)
    crowd.targets = {swapping[0]: two.as_dict(), swapping[1]: one.as_dict()}
    crowd.run_until(daemon, seconds=CONFIG.checkpoint_timeout_s - 6)
    assert asked(crowd, unanswering) == 1
    assert [crowd.job(job_id).allocation for job_id in swapping] == [two, one]


def test_that_unanswering_jobs_near_their_limits_do_not_block_others_renewals(crowd: Harness) -> None:
    unanswering = [submit_as(crowd, "mallory", minutes=10, total_minutes=60) for _ in range(9)]
    honest = submit_as(crowd, "bob", minutes=10, total_minutes=60)
    trained(crowd, *unanswering, honest)
    for job_id in unanswering:
        crowd.agents[job_id].answers = False
    daemon = crowd.daemon()
    crowd.clock.advance(545)
    crowd.run_until(daemon, until=lambda: crowd.job(honest).restart_count == 1, seconds=15)
    assert crowd.job(honest).restart_count == 1
    assert sum(asked(crowd, job_id) for job_id in unanswering) == CONFIG.max_in_flight // 2


@pytest.mark.slow
def test_that_no_job_of_an_array_whose_slices_end_together_is_lost(crowd: Harness) -> None:
    """Twelve, of which one may move at a time, beside unanswering jobs that take all slots."""
    config = dataclasses.replace(CONFIG, max_in_flight=2, checkpoint_timeout_s=60)
    unanswering = [submit_as(crowd, user) for user in ("mallory", "trudy")]
    array = [submit_as(crowd, "bob", gpus=1, minutes=10, total_minutes=60) for _ in range(12)]
    trained(crowd, *unanswering, *array)
    for job_id in unanswering:
        crowd.agents[job_id].answers = False
    daemon = crowd.daemon(config=config)
    crowd.clock.advance(560)
    crowd.targets = on_one_gpu(crowd, *unanswering)
    crowd.run_until(
        daemon, until=lambda: all(crowd.job(job_id).restart_count for job_id in array), seconds=30
    )
    assert [crowd.job(job_id).restart_count for job_id in array] == [1] * 12


@pytest.mark.slow
def test_that_each_unanswered_request_is_followed_by_a_longer_wait(crowd: Harness) -> None:
    unanswering = submit_as(crowd, "mallory")
    trained(crowd, unanswering)
    crowd.agents[unanswering].answers = False
    crowd.targets = on_one_gpu(crowd, unanswering)
    crowd.run_until(crowd.daemon(), seconds=140)
    begun = [
        at
        for move in crowd.store.journal.reallocations(unanswering)
        if (at := move.entered_at(Step.CHECKPOINT_REQUESTED)) is not None
    ]
    waits = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(begun)]
    timeout_s = CONFIG.checkpoint_timeout_s
    assert len(waits) >= 2
    for number, wait_s in enumerate(waits):
        assert wait_s >= timeout_s + timeout_s * 2**number
        assert wait_s <= timeout_s + timeout_s * 2**number + 3 * CONFIG.interval_s


def test_that_a_job_that_trains_on_after_its_checkpoint_has_not_answered(crowd: Harness) -> None:
    job_id = submit_as(crowd, "mallory")
    trained(crowd, job_id)
    agent, daemon = crowd.agents[job_id], crowd.daemon()
    agent.waits_to_be_stopped = False
    crowd.targets = on_one_gpu(crowd, job_id)
    daemon.round()
    daemon.tick()
    assert asked(crowd, job_id) == 1
    for _ in range(2):  # it confirms, and trains on before the daemon reads that
        crowd.clock.advance(0.1)
        agent.act()
    daemon.tick()
    assert crowd.store.journal.reallocations(job_id)[-1].step is Step.ROLLED_BACK
    crowd.run_until(daemon, seconds=CONFIG.checkpoint_timeout_s - 6)
    assert asked(crowd, job_id) == 1
    assert crowd.job(job_id).restart_count == 0


def test_that_a_job_whose_target_is_taken_during_its_checkpoint_has_answered(crowd: Harness) -> None:
    job_id = submit_as(crowd, "bob")
    trained(crowd, job_id)
    daemon = crowd.daemon()
    crowd.targets = {job_id: {"n11": 3}}
    daemon.round()
    daemon.tick()
    crowd.agents[job_id].act()
    crowd.slurm.set_node("n11", available=False)
    daemon.tick()
    (move,) = crowd.store.journal.reallocations(job_id)
    assert (move.step, move.continued_training) == (Step.ROLLED_BACK, False)
    assert move.entered_at(Step.CHECKPOINTED) is not None
    assert crowd.store.jobs.get(job_id).unanswered == ()
    crowd.targets = on_one_gpu(crowd, job_id)
    crowd.run_until(daemon, seconds=20)
    assert crowd.job(job_id).allocation.num_gpus == 1


def test_that_a_new_daemon_knows_of_unanswered_requests(crowd: Harness) -> None:
    unanswering = submit_as(crowd, "mallory")
    trained(crowd, unanswering)
    crowd.agents[unanswering].answers = False
    crowd.targets = on_one_gpu(crowd, unanswering)
    first = crowd.daemon()
    crowd.run_until(first, until=lambda: asked(crowd, unanswering) == 1, seconds=10)
    crowd.run_until(first, until=lambda: not crowd.open_moves(), seconds=30)
    crowd.run_until(crowd.daemon(), seconds=CONFIG.checkpoint_timeout_s - 6)
    assert asked(crowd, unanswering) == 1
    assert "confirmed no checkpoint" in (crowd.store.jobs.get(unanswering).not_moved_reason or "")


def test_that_a_job_that_answers_again_is_moved(crowd: Harness) -> None:
    job_id = submit_as(crowd, "bob")
    trained(crowd, job_id)
    crowd.agents[job_id].answers = False
    crowd.targets = on_one_gpu(crowd, job_id)
    daemon = crowd.daemon()
    crowd.run_until(daemon, seconds=CONFIG.checkpoint_timeout_s + 10)
    crowd.agents[job_id].answers = True
    crowd.run_until(daemon, seconds=CONFIG.checkpoint_timeout_s + 20)
    assert crowd.job(job_id).allocation.num_gpus == 1


def test_that_a_pending_job_is_placed_whatever_it_left_unanswered(crowd: Harness) -> None:
    """A pending job has no checkpoint to request."""
    known = record(
        "1", state=JobState.PENDING, unanswered=(UnansweredRequest(requested_at=NOON, ended_at=NOON),)
    )
    assert unanswered_requests.not_asked_because(known, NOON, timeout_s=0.0) is None


def test_that_only_a_request_that_timed_out_counts() -> None:
    """Other requests ended because the job did, or because the daemon was stopped."""
    short = UnansweredRequest(
        requested_at=NOON - timedelta(seconds=100), ended_at=NOON - timedelta(seconds=10)
    )
    known = record("1", allocation=Allocation.of({"n0": 1}), unanswered=(short,))
    assert unanswered_requests.not_asked_because(known, NOON, timeout_s=300) is None
    assert unanswered_requests.not_asked_because(known, NOON, timeout_s=90) is not None


def test_that_no_wait_is_longer_than_six_hours() -> None:
    day = timedelta(days=1)
    requests = tuple(
        UnansweredRequest(
            requested_at=NOON - day * number, ended_at=NOON - day * number + timedelta(minutes=5)
        )
        for number in range(16, 0, -1)
    )
    last = requests[-1].ended_at
    known = record("1", allocation=Allocation.of({"n0": 1}), unanswered=requests)
    for hours, alone in ((5.9, True), (6.1, False)):
        because = unanswered_requests.not_asked_because(known, last + timedelta(hours=hours), timeout_s=300)
        assert (because is not None) is alone
