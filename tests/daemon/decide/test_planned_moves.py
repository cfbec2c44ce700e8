"""From a decision to moves, in the order in which they should start."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pollux_slurm.daemon.decide.planned_moves import planned_moves
from pollux_slurm.daemon.observe import cluster_picture
from pollux_slurm.model import Allocation, Decision, JobDecision, JobState, SlurmJob
from pollux_slurm.model import ReallocationStep as Step
from tests.daemon.builders import NOON, job, node, reallocation, record, snapshot


def decided(excluded: tuple[tuple[str, str], ...] = (), **targets: dict[str, int]) -> Decision:
    jobs = tuple(
        JobDecision(
            job_id=name.removeprefix("j"),
            allocation=Allocation.of(target),
            speedup=1.0,
            goodput=None,
            penalty=1.0,
            batch=None,
            bound_by="nothing",
            runner_up=None,
            runner_up_speedup=None,
        )
        for name, target in targets.items()
    )
    return Decision(jobs=jobs, fitness=1.0, solver="test", excluded=excluded)


def seen(*jobs: SlurmJob) -> cluster_picture.Picture:
    return cluster_picture.build_picture(
        snapshot([node("n0"), node("n1")], list(jobs)), [record(j.job_id) for j in jobs]
    )


def names(picture: cluster_picture.Picture, decision: Decision, limit: int = 8) -> list[str]:
    return [move.job.slurm.job_id for move in planned_moves(picture, decision, max_in_flight=limit)]


def test_that_shrinking_jobs_go_first_and_unchanged_ones_stay() -> None:
    picture = seen(job("1", on={"n0": 1}), job("2", on={"n1": 4}), job("3", on={"n0": 2}))
    assert names(picture, decided(j1={"n0": 2}, j2={"n1": 2}, j3={"n0": 2})) == ["2", "1"]


def test_that_a_running_job_is_never_taken_down_to_nothing() -> None:
    assert names(seen(job("1", on={"n0": 1})), decided(j1={})) == []


def test_that_a_job_that_has_just_come_and_fits_is_left_to_start_in_its_owners_shape() -> None:
    new = job("1", JobState.PENDING, requested_gpus=4)
    submitted = record("1", submitted_at=NOON - timedelta(seconds=3))
    fits = cluster_picture.build_picture(snapshot([node("n0")], [new]), [submitted])
    assert names(fits, decided(j1={"n0": 1})) == []
    full = cluster_picture.build_picture(snapshot([node("n0", used=1)], [new]), [submitted])
    assert names(full, decided(j1={"n0": 1})) == ["1"]
    drained = cluster_picture.build_picture(
        snapshot([node("n0", available=False), node("n1", used=2)], [new]), [submitted]
    )
    assert names(drained, decided(j1={"n1": 1})) == ["1"]


@pytest.mark.parametrize(("begins_after_s", "placed"), [(20, True), (45, False), (0, False)])
def test_that_a_job_that_was_submitted_to_wait_for_its_size_is_placed(
    begins_after_s: float, placed: bool
) -> None:
    came_at = NOON - timedelta(seconds=3)
    begins_at = came_at + timedelta(seconds=begins_after_s)
    new = job("1", JobState.PENDING, requested_gpus=1, submitted_at=came_at, begins_at=begins_at)
    picture = cluster_picture.build_picture(
        snapshot([node("n0")], [new]), [record("1", submitted_at=came_at)]
    )
    assert (names(picture, decided(j1={"n0": 4})) == ["1"]) is placed


def test_that_a_job_that_fits_but_does_not_start_is_placed() -> None:
    stuck = job("1", JobState.PENDING, requested_gpus=1)
    old = record("1", submitted_at=NOON - timedelta(seconds=60))
    assert names(
        cluster_picture.build_picture(snapshot([node("n0")], [stuck]), [old]), decided(j1={"n0": 1})
    ) == ["1"]


def test_that_a_pending_job_is_given_nodes_by_name_while_others_move() -> None:
    """Otherwise Slurm starts it on GPUs that a moving job frees only for a moment."""
    waiting = job("2", JobState.PENDING, requested_gpus=1)
    picture = seen(job("1", on={"n0": 4, "n1": 4}), waiting)
    assert names(picture, decided(j1={"n1": 4}, j2={"n0": 1})) == ["2", "1"]


def test_that_a_pending_job_is_placed_where_nothing_is_free_yet() -> None:
    waiting, leaving = job("1", JobState.PENDING, requested_gpus=1), job("2", on={"n0": 4})
    flight = reallocation(1, "2", Step.PLANNED, source={"n0": 4}, target={"n0": 3})
    picture = cluster_picture.build_picture(
        snapshot([node("n0", used=4)], [waiting, leaving]),
        [record("1"), record("2", open_reallocation=flight)],
    )
    assert names(picture, decided(j1={"n0": 1})) == ["1"]


def test_that_no_job_moves_to_what_another_holds_that_has_no_slot_to_leave_it() -> None:
    jobs = [job(str(number), on={f"n{number}": 4}) for number in (0, 1)]
    growing, waiting = job("2", on={"n2": 1}), job("3", JobState.PENDING, requested_gpus=1)
    nodes = [node("n0", used=4), node("n1", used=4), node("n2", used=1)]
    picture = cluster_picture.build_picture(
        snapshot(nodes, [*jobs, growing, waiting]), [record(str(number)) for number in range(4)]
    )
    one = decided(j0={"n0": 2}, j1={"n1": 3}, j2={"n1": 1, "n2": 1}, j3={"n0": 2})
    assert names(picture, one, limit=8) == ["3", "0", "1", "2"]
    assert names(picture, one, limit=1) == ["3", "0"]
    other = decided(j0={"n0": 3}, j1={"n1": 2}, j2={"n1": 1, "n2": 1}, j3={"n0": 1})
    assert names(picture, other, limit=1) == ["1"]
    assert names(picture, other, limit=2) == ["3", "1", "0"]


def test_that_a_slot_goes_to_the_next_where_a_move_has_no_room() -> None:
    """Job 1 comes before job 2, but has room only after job 2 moves."""
    nodes = [node("n0", used=4), node("n1")]
    jobs = [job("1", on={"n0": 2}), job("2", on={"n0": 2})]
    picture = cluster_picture.build_picture(snapshot(nodes, jobs), [record("1"), record("2")])
    decision = decided(j1={"n0": 3}, j2={"n0": 1, "n1": 2})
    assert names(picture, decision, limit=1) == ["2"]
    assert names(picture, decision, limit=2) == ["1", "2"]


def test_that_jobs_that_swap_nodes_move_together_or_not_at_all() -> None:
    picture = cluster_picture.build_picture(
        snapshot([node("n0", used=4), node("n1", used=4)], [job("1", on={"n0": 4}), job("2", on={"n1": 4})]),
        [record("1"), record("2")],
    )
    swap = decided(j1={"n1": 4}, j2={"n0": 4})
    assert names(picture, swap, limit=2) == ["1", "2"]
    assert names(picture, swap, limit=1) == []


@pytest.mark.parametrize("needs", [{"cpus_per_gpu": 3}, {"memory_per_gpu_mb": 3000}])
def test_that_cpus_and_memory_must_be_left_as_well(needs: dict[str, int]) -> None:
    """Eve's 1 would leave what Ann's 2 needs, but has no slot as long as Eve's 3 moves."""
    jobs = [job("1", on={"n0": 2}), job("2", on={"n1": 1}), job("3", on={"n2": 1})]
    flight = reallocation(1, "3", Step.PLANNED, source={"n2": 1}, target={"n3": 1})
    nodes = [node("n0", used=2), node("n1", used=1), node("n2", used=1), node("n3")]
    for moving, expected in ((None, ["1", "2"]), (flight, [])):
        eves = record("3", user_name="eve", open_reallocation=moving, **needs)
        picture = cluster_picture.build_picture(
            snapshot(nodes, jobs), [record("1", user_name="eve", **needs), record("2", **needs), eves]
        )
        assert names(picture, decided(j1={"n0": 1}, j2={"n0": 1, "n1": 1}), limit=2) == expected


def test_that_only_so_many_running_jobs_are_on_the_move() -> None:
    jobs = [job(str(number), on={"n0": 1}) for number in (1, 2, 3)]
    targets = {f"j{number}": {"n1": 1} for number in (1, 2, 3)}
    assert names(seen(*jobs), decided(**targets), limit=2) == ["1", "2"]


def test_that_jobs_in_flight_are_not_moved_again_and_count() -> None:
    moving, other = job("1", on={"n0": 1}), job("2", on={"n0": 1})
    flight = reallocation(1, "1", Step.CHECKPOINT_REQUESTED, source={"n0": 1}, target={"n1": 1})
    picture = cluster_picture.build_picture(
        snapshot([node("n0"), node("n1")], [moving, other]),
        [record("1", open_reallocation=flight), record("2")],
    )
    decision = decided(j1={"n0": 2}, j2={"n1": 2})
    assert names(picture, decision, limit=2) == ["2"]
    assert names(picture, decision, limit=1) == []


def test_that_an_excluded_job_keeps_what_it_has() -> None:
    decision = decided(excluded=(("1", "alpha_g is not finite"),), j1={"n1": 2})
    assert names(seen(job("1", on={"n0": 1})), decision) == []
