"""Which GPUs a move waits for."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from pollux_slurm.daemon.enact.gpu_ledger import GpuLedger, Needs
from pollux_slurm.model import Allocation, JobState, ReallocationWay
from pollux_slurm.model import ReallocationStep as Step
from tests.daemon.builders import NOON, job, node, reallocation, snapshot


def test_that_shrinking_in_place_waits_for_nothing() -> None:
    shrink = reallocation(1, "1", Step.PLANNED, source={"n0": 4}, target={"n0": 2})
    ledger = GpuLedger(snapshot([node("n0", used=4)], [job("1", on={"n0": 4})]), [shrink])
    assert ledger.is_free_for(shrink)


def test_that_growth_waits_until_its_gpus_are_free() -> None:
    grow = reallocation(1, "1", Step.PLANNED, source={"n0": 1}, target={"n0": 3})
    nodes = [node("n0", used=3)]
    ledger = GpuLedger(snapshot(nodes, [job("1", on={"n0": 1}), job("2", on={"n0": 2})]), [grow])
    assert not ledger.is_free_for(grow)
    ledger = GpuLedger(snapshot([node("n0", used=2)], [job("1", on={"n0": 1})]), [grow])
    assert ledger.is_free_for(grow)


def test_that_gpus_of_a_target_in_motion_are_spoken_for() -> None:
    stopped = reallocation(1, "1", Step.REQUEUED, source={"n0": 4}, target={"n0": 2})
    grow = reallocation(2, "2", Step.PLANNED, source={"n1": 1}, target={"n0": 3})
    ledger = GpuLedger(
        snapshot([node("n0"), node("n1", used=1)], [job("1"), job("2", on={"n1": 1})]), [stopped, grow]
    )
    assert not ledger.is_free_for(grow)  # 4 free on n0, 2 of them reserved for job 1


@pytest.mark.parametrize(("taken", "lost"), [(1, False), (3, True)])
def test_that_gpus_taken_by_an_unmanaged_job_are_lost(taken: int, lost: bool) -> None:
    grow = reallocation(1, "1", Step.PLANNED, source={"n0": 1}, target={"n0": 3})
    jobs = [job("1", on={"n0": 1}), job("99", on={"n0": taken})]
    ledger = GpuLedger(snapshot([node("n0", used=1 + taken)], jobs), [grow])
    assert ledger.target_is_lost(grow) is lost


@pytest.mark.parametrize(
    ("ahead_s", "limit_s", "way", "lost"),
    [
        (600, 3600.0, ReallocationWay.REQUEUE, True),
        (600, None, ReallocationWay.REQUEUE, True),
        (7200, 3600.0, ReallocationWay.REQUEUE, False),
        (600, 3600.0, ReallocationWay.IN_PLACE, False),
    ],
)
def test_that_a_target_is_lost_to_a_reservation_announced_meanwhile(
    ahead_s: float, limit_s: float | None, way: ReallocationWay, lost: bool
) -> None:
    """Slurm starts no job there; in place, the wing on that node stays."""
    announced = node("n0", used=1, reserved_from=NOON + timedelta(seconds=ahead_s))
    grow = dataclasses.replace(
        reallocation(1, "1", Step.CHECKPOINTED, source={"n0": 1}, target={"n0": 1, "n1": 1}), way=way
    )
    running = job("1", on={"n0": 1}, time_limit_s=limit_s, started_at=NOON)
    ledger = GpuLedger(snapshot([announced, node("n1")], [running]), [grow])
    assert ledger.target_is_lost(grow) is lost


@pytest.mark.parametrize(
    ("step", "limit_s", "lost"),
    [
        (Step.CHECKPOINTED, 3600.0, True),  # the move takes longer than the minute that is left
        (Step.REQUEUED, 7200.0, False),  # it gets what is left of its time with its shape
        (Step.RELEASED, 3600.0, False),
        (Step.RELEASED, 3720.0, True),
    ],
)
def test_that_a_job_that_ends_before_a_reservation_starts_there(
    step: Step, limit_s: float, lost: bool
) -> None:
    nodes = [node("n0"), node("n1", reserved_from=NOON + timedelta(seconds=3660))]
    move = reallocation(1, "1", step, source={"n0": 1}, target={"n1": 1})
    is_stopped = step is not Step.CHECKPOINTED
    moving = job(
        "1",
        JobState.PENDING if is_stopped else JobState.RUNNING,
        on={} if is_stopped else {"n0": 1},
        time_limit_s=limit_s,
        started_at=None if is_stopped else NOON,
    )
    assert GpuLedger(snapshot(nodes, [moving]), [move]).target_is_lost(move) is lost


@pytest.mark.parametrize(
    ("step", "lost"),
    [
        (Step.PLANNED, True),
        (Step.CHECKPOINTED, True),
        (Step.REQUEUED, True),
        (Step.RELEASED, False),
        (Step.REGROUP_REQUESTED, False),
    ],
)
def test_that_what_started_between_the_reads_of_jobs_and_nodes_may_be_the_job_itself(
    step: Step, lost: bool
) -> None:
    grow = reallocation(1, "1", step, source={"n0": 4}, target={"n0": 4, "n1": 4})
    nodes, own = [node("n0", used=4), node("n1", used=4)], job("1", on={"n0": 4})
    assert GpuLedger(snapshot(nodes, [own]), [grow]).target_is_lost(grow) is lost
    taken = GpuLedger(snapshot(nodes, [own, job("99", on={"n1": 1})]), [grow])
    assert taken.target_is_lost(grow), "another job is shown there"


def test_that_a_drained_or_unknown_node_is_lost() -> None:
    grow = reallocation(1, "1", Step.PLANNED, source={"n0": 1}, target={"n1": 2})
    assert GpuLedger(snapshot([node("n0"), node("n1", available=False)], []), [grow]).target_is_lost(grow)
    assert GpuLedger(snapshot([node("n0")], []), [grow]).target_is_lost(grow)


def test_that_two_jobs_that_swap_nodes_do_not_wait_for_each_other() -> None:
    first = reallocation(1, "1", Step.PLANNED, source={"n0": 4}, target={"n1": 4})
    second = reallocation(2, "2", Step.PLANNED, source={"n1": 4}, target={"n0": 4})
    seen = snapshot(
        [node("n0", used=4), node("n1", used=4)], [job("1", on={"n0": 4}), job("2", on={"n1": 4})]
    )
    ledger = GpuLedger(seen, [first, second])
    assert not ledger.is_free_for(first)
    assert ledger.may_break_cycle(first)
    assert not ledger.may_break_cycle(second)


def test_that_no_move_starts_early_while_another_uses_its_nodes() -> None:
    shrink = reallocation(1, "1", Step.CHECKPOINT_REQUESTED, source={"n0": 4}, target={"n0": 2})
    grow = reallocation(2, "2", Step.PLANNED, source={"n1": 2}, target={"n0": 2})
    seen = snapshot(
        [node("n0", used=4), node("n1", used=2)], [job("1", on={"n0": 4}), job("2", on={"n1": 2})]
    )
    assert not GpuLedger(seen, [shrink, grow]).may_break_cycle(grow)


def test_that_what_comes_nearest_is_one_node_or_what_is_left_of_the_target() -> None:
    grow = reallocation(1, "1", Step.RELEASED, source={}, target={"n0": 4, "n1": 4})

    def nearest(*used: int, target: dict[str, int]) -> Allocation:
        nodes = [node(f"n{number}", used=gpus) for number, gpus in enumerate(used)]
        ledger = GpuLedger(snapshot(nodes, [job("1")]), [grow])
        return ledger.best_fit(job("1"), Allocation.of(target), needs=Needs(), own_id=1)

    assert nearest(4, 0, 1, target={"n0": 3}) == Allocation.of({"n2": 3})
    assert nearest(0, 2, 4, target={"n0": 4, "n1": 4}) == Allocation.of({"n0": 4, "n1": 2})
    assert nearest(2, 2, 0, target={"n0": 4, "n1": 1}) == Allocation.of({"n2": 4})
    assert nearest(4, 4, 4, target={"n0": 4}) == Allocation()


def test_that_the_best_fit_leaves_reserved_gpus_and_needs_cpus() -> None:
    mine = reallocation(1, "1", Step.RELEASED, source={}, target={"n0": 4})
    other = reallocation(2, "2", Step.RELEASED, source={}, target={"n1": 3})
    ledger = GpuLedger(snapshot([node("n0", used=4), node("n1")], [job("1"), job("2")]), [mine, other])
    assert ledger.best_fit(job("1"), mine.target, needs=Needs(), own_id=1) == Allocation.of({"n1": 1})
    short = Needs(cpus_per_gpu=1000)
    assert ledger.best_fit(job("1"), mine.target, needs=short, own_id=1) == Allocation()
