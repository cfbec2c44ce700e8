"""Pauses and drains by hand, carried out by the daemon."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from pollux_slurm.daemon.enact import admin_orders
from pollux_slurm.errors import UsageError
from pollux_slurm.model import Allocation, JobState, ReallocationCause
from pollux_slurm.model import ReallocationStep as Step
from pollux_slurm.store.schema import ReallocationRow
from tests.cli.inside import pollux
from tests.daemon.world import CONFIG, World


def started(world: World, *, allow_unconfirmed: bool = False) -> str:
    job_id = world.submit(allow_unconfirmed=allow_unconfirmed)
    world.settle(world.daemon(), until=lambda: world.has_stepped(job_id), seconds=8)
    return job_id


def paused(world: World, *, drain: bool = False) -> str:
    job_id = started(world)
    admin_orders.pause(world.store, job_id, by="ann", drain=drain, at=world.clock())
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=20)
    return job_id


def test_that_a_job_paused_by_hand_waits_whatever_rounds_decide_until_it_is_resumed(world: World) -> None:
    job_id = paused(world)
    world.targets = {job_id: {"n1": 4}}
    world.settle(world.daemon(), seconds=10)
    job = world.job(job_id)
    assert (job.state, job.held, job.restart_count) == (JobState.PENDING, False, 1)
    daemon = world.daemon()
    for _ in range(6):  # and it is not forgotten
        world.clock.advance(CONFIG.pause_ttl_s / 3)
        daemon.round()
    assert world.job(job_id).state is JobState.PENDING
    world.targets = {}
    admin_orders.resume(world.store, job_id, by="bob", at=world.clock())
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=20)
    assert world.job(job_id).allocation == Allocation.of({"n0": 1})
    moves = world.store.reallocations(job_id)
    assert [(move.step, move.cause, move.reason) for move in moves] == [
        (Step.CONFIRMED, ReallocationCause.PAUSE, "paused by hand: ann"),
        (Step.CONFIRMED, ReallocationCause.RESUME, "resumed by hand: bob"),
    ]
    world.targets = {job_id: {"n1": 2}}
    world.settle(world.daemon(), until=lambda: world.job(job_id).allocation.num_gpus == 2, seconds=20)
    assert world.job(job_id).allocation.num_gpus == 2


@pytest.mark.parametrize("words", [None, "", "resumed by hand: eve", "taken over from another daemon"])
def test_that_no_word_in_the_journal_decides_what_becomes_of_an_order(
    world: World, words: str | None
) -> None:
    job_id = started(world)
    admin_orders.pause(world.store, job_id, by="ann", drain=True, at=world.clock())
    with world.store.database.write() as connection:
        connection.execute(update(ReallocationRow).values(reason=words))
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=20)
    world.targets = {job_id: {"n1": 4}}
    world.settle(world.daemon(), seconds=8)
    assert world.job(job_id).held
    (drained,) = world.store.reallocations(job_id)
    assert (drained.step, drained.cause) == (Step.CONFIRMED, ReallocationCause.DRAIN)


@pytest.mark.parametrize("by_daemon", [True, False])
def test_that_a_drained_job_stays_held_until_somebody_lets_it_go(world: World, by_daemon: bool) -> None:
    job_id = paused(world, drain=True)
    world.clock.advance(10 * CONFIG.pause_ttl_s)
    world.settle(world.daemon(), seconds=8)
    assert world.job(job_id).held
    assert world.store.job(job_id).paused_at is not None
    if by_daemon:
        admin_orders.resume(world.store, job_id, by="bob", at=world.clock())
    else:
        world.slurm.release(job_id)
    world.settle(world.daemon(), until=lambda: bool(world.job(job_id).allocation), seconds=20)
    assert world.job(job_id).allocation == Allocation.of({"n0": 1})


def test_that_a_job_that_trains_on_after_its_checkpoint_is_not_stopped_by_an_order(world: World) -> None:
    """An order's reason must not pass for the owner's leave to go on without a checkpoint."""
    job_id = started(world)
    admin_orders.pause(world.store, job_id, by="ann", drain=False, at=world.clock())
    daemon = world.daemon()
    daemon.tick()
    world.clock.advance(0.5)
    world.agents[job_id].act()
    assert world.is_at(Step.CHECKPOINTED)
    world.agents[job_id].answers = False
    world.clock.advance(0.5)
    world.agents[job_id].act()
    world.settle(world.daemon(), seconds=4)
    assert world.job(job_id).restart_count == 0
    assert world.store.reallocations(job_id)[-1].step is Step.ROLLED_BACK


def test_that_without_a_checkpoint_the_owners_leave_decides_and_the_order_is_remembered(world: World) -> None:
    job_id = started(world, allow_unconfirmed=True)
    world.agents[job_id].answers = False
    admin_orders.pause(world.store, job_id, by="ann", drain=False, at=world.clock())
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=40)
    world.daemon().round()
    record = world.store.job(job_id)
    assert admin_orders.kept_by_hand(record) == (
        "paused by hand: ann; no checkpoint was confirmed in 20 s; the owner allows to go on"
    )
    assert record.last_reallocation is not None
    assert record.last_reallocation.checkpoint_waived


def test_that_orders_that_make_no_sense_are_refused(world: World) -> None:
    job_id = started(world)
    with pytest.raises(UsageError, match="is not paused: it is running"):
        admin_orders.resume(world.store, job_id, by="ann", at=world.clock())
    admin_orders.pause(world.store, job_id, by="ann", drain=False, at=world.clock())
    with pytest.raises(UsageError, match=r"is just being moved \(planned\)"):
        admin_orders.pause(world.store, job_id, by="ann", drain=False, at=world.clock())
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=20)
    world.settle(world.daemon(), seconds=4)
    with pytest.raises(UsageError, match="it is paused already"):
        admin_orders.pause(world.store, job_id, by="ann", drain=False, at=world.clock())
    world.slurm.cancel(job_id)
    world.settle(world.daemon(), seconds=8)
    with pytest.raises(UsageError, match="is over: it is cancelled"):
        admin_orders.resume(world.store, job_id, by="ann", at=world.clock())


def test_that_the_commands_give_the_orders(world: World, shared_store_url: str) -> None:
    job_id = started(world)
    url = shared_store_url
    shown = pollux("drain", job_id, "--store", url)
    assert f"it is then held until: pollux resume {job_id}" in shown.stdout
    late = pollux("resume", job_id, "--store", url)
    assert (late.returncode, "is just being moved" in late.stderr) == (2, True)
    world.settle(world.daemon(), until=lambda: not world.open_moves(), seconds=20)
    assert world.job(job_id).held
    assert pollux("resume", job_id, "--store", url).returncode == 0
    waited = pollux("pause", job_id, "--wait", "1", "--store", url)
    assert "just being moved" in waited.stderr
