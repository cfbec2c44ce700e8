"""Moves in place, on the made-up application: a step a second on one GPU, half a second on any others.

Its state is 0.3 GB, so a regroup with new processes stands still for 0.5 + 0.69 s. New processes start for
20 s, a restart takes 30 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.errors import SimulationError
from pollux_slurm.model import Allocation, Problem, ReallocationWay
from pollux_slurm.policy import Allocations, allocate, expected_move
from pollux_slurm.simulator import Cluster, Delays, InPlace, Rules, SimulatedJob, slurm_rules
from pollux_slurm.simulator.engine.in_place import plan_regroup
from pollux_slurm.simulator.engine.job import GpusByNode
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies import make_policy
from pollux_slurm.simulator.results.fairness import AloneTimes, alone_times
from tests.simulator.builders import made_application, made_job
from tests.simulator.scripted import Rule, run

STANDSTILL_S = 0.5 + 2.3 * 0.3
IN_PLACE = Rules(in_place=InPlace())
SEVERAL_WINGS = Rules(in_place=InPlace(several_wings=True))
SLURM_DELAYS = Delays(notice_s=2, start_s=1, launch_s=10, launch_per_gpu_s=0.5, backfill_s=5)


@pytest.mark.parametrize(
    ("wings", "after", "free", "one_wing", "several_wings"),
    [
        # Another node is added: the wing that stays continues.
        ([{0: 4}], {0: 4, 1: 4}, [0, 4], {0: 4}, {0: 4}),
        # Of two wings one is left. A wing on two nodes is kept as a whole, or not at all.
        ([{0: 4}, {1: 4}], {0: 4}, [0, 0], {0: 4}, {0: 4}),
        ([{0: 4, 1: 4}], {0: 4}, [0, 0], None, None),
        # On one node, a second wing is added where it may have several.
        ([{0: 1}], {0: 2}, [3], None, {0: 1}),
        ([{0: 1}, {0: 3}], {0: 3}, [0], {0: 3}, {0: 3}),
        # No wing can be made smaller.
        ([{0: 4}], {0: 2}, [4], None, None),
        # Beside a wing that stays, one is replaced if there are GPUs for both.
        ([{0: 4}, {1: 2}], {0: 4, 1: 1}, [0, 0], None, None),
        ([{0: 4}, {1: 2}], {0: 4, 1: 1}, [0, 1], {0: 4}, {0: 4}),
        # To other GPUs altogether.
        ([{0: 4}], {1: 4}, [4, 4], None, None),
    ],
)
def test_that_wings_can_be_added_removed_and_replaced_but_not_resized(
    wings: list[dict[int, int]],
    after: dict[int, int],
    free: list[int],
    one_wing: dict[int, int] | None,
    several_wings: dict[int, int] | None,
) -> None:
    owned = [tuple(wing.items()) for wing in wings]
    for rules, expected in ((InPlace(), one_wing), (InPlace(several_wings=True), several_wings)):
        found = plan_regroup(owned, tuple(after.items()), free, "made", rules, None)
        assert (None if found is None else found.continuing) == expected
        if found is not None:
            assert found.num_new_gpus == sum(after.values()) - sum(found.continuing.values())
            assert sum(gpus for wing in found.wings for _, gpus in wing) == sum(after.values())


def test_that_a_regroup_costs_its_warm_up_and_a_standstill_that_grows_with_the_state() -> None:
    def costs(application: str, after: GpusByNode, delays: Delays | None) -> list[float]:
        found = plan_regroup([((0, 4),)], after, [0, 4], application, InPlace(), delays)
        assert found is not None
        return [found.warm_up_s, found.standstill_s]

    grown: GpusByNode = ((0, 4), (1, 4))
    bert_s = 0.5 + 2.3 * 1.32  # 110 million parameters and two moments of Adam, 4 bytes each
    assert costs("made", grown, None) == pytest.approx([20, STANDSTILL_S])
    assert costs("bert", grown, None) == pytest.approx([20, bert_s])
    # A wing's start and launch with four new GPUs; the state comes over the network.
    assert costs("bert", grown, SLURM_DELAYS) == pytest.approx([1 + 10 + 4 * 0.5, bert_s])
    # Where they were measured, they are what was measured.
    assert costs("bert", grown, replace(SLURM_DELAYS, warm_up_s=7.0, standstill_s=0.25)) == [7, 0.25]


def test_that_removing_a_wing_takes_no_warm_up_and_sends_no_state() -> None:
    found = plan_regroup([((0, 4),), ((1, 4),)], ((0, 4),), [0, 0], "bert", InPlace(), SLURM_DELAYS)
    assert found is not None
    assert (found.warm_up_s, found.standstill_s, found.wings) == (0, 0.5, (((0, 4),),))


def grown(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
    return {"a": ((0, 1),) if now_s < 120 else ((0, 1), (1, 3))}


def test_that_a_job_moved_in_place_loses_only_its_standstill(tmp_path: Path) -> None:
    """50 steps on one GPU from 90 to 140 s, then 100.25 at half a second; epochs end at whole seconds."""
    (job,) = run(tmp_path, grown, made_job("a"), rules=IN_PLACE).jobs
    assert job.interrupted_s == {"restart": 30, "regroup": pytest.approx(STANDSTILL_S)}
    assert (job.num_restarts, job.num_regroups) == (0, 1)
    assert job.finished_s == 191, "by requeue it would be 60 + 2·30 + 30 + 120.25/2 = 210"
    lost = 30 + 20 * 3 + STANDSTILL_S * 4  # the start, three idle GPUs, the standstill
    assert job.lost_gpu_seconds == pytest.approx(lost)
    assert job.gpu_seconds == pytest.approx(lost + 50 + (191 - 140 - STANDSTILL_S) * 4)
    assert job.in_place_delay_s == pytest.approx(20 + STANDSTILL_S), "what the policy expects of such moves"
    assert job.expected_delay_s == 30, "and of the others"
    assert job.wings == (((0, 1),), ((1, 3),))


def test_that_under_rules_slurm_new_processes_take_a_start_and_a_launch(tmp_path: Path) -> None:
    """The first start waits 5 s and takes 1 + 10.5 s, the wing takes 2 + 1 + 11.5 s."""
    rules = slurm_rules(delays=SLURM_DELAYS, in_place=InPlace(), checkpoint_interval_s=None)
    (job,) = run(tmp_path, grown, made_job("a"), rules=rules).jobs
    leaves_s = 120 + 2 + 1 + 10 + 3 * 0.5
    on_one_gpu_s = leaves_s - (60 + 5 + 1 + 10.5)
    assert job.finished_s == pytest.approx(leaves_s + STANDSTILL_S + (150.25 - on_one_gpu_s) / 2)
    assert job.interrupted_s["regroup"] == pytest.approx(STANDSTILL_S)


@pytest.mark.parametrize(("rules", "counts"), [(IN_PLACE, (1, 0)), (SEVERAL_WINGS, (0, 1))])
def test_that_a_move_that_cannot_be_in_place_is_a_requeue(
    tmp_path: Path, rules: Rules, counts: tuple[int, int]
) -> None:
    def grown(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        return {"a": ((0, 2),) if now_s < 120 else ((0, 4),)}

    (job,) = run(tmp_path, grown, made_job("a"), rules=rules).jobs
    assert (job.num_restarts, job.num_regroups) == counts
    assert job.interrupted_s["restart"] == 30 + 30 * counts[0]


def test_that_new_processes_wait_for_the_donor_and_the_donor_for_nobody(tmp_path: Path) -> None:
    """a gives node 1 up within its standstill of 0.5 s; b trains on one GPU until 120 + 0.5 + 20 s."""

    def given(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        if now_s < 120:
            return {"a": ((0, 4),) if now_s < 90 else ((0, 4), (1, 4)), "b": ((2, 1),)}
        return {"b": ((2, 1), (1, 3)), "a": ((0, 4),)}

    cluster = Cluster(num_nodes=3, interval_s=10)
    jobs = (made_job("a", at_s=60, batch_size=32), made_job("b", at_s=60))
    a, b = run(tmp_path, given, *jobs, cluster=cluster, rules=IN_PLACE).jobs
    assert a.interrupted_s == {"restart": 30, "regroup": pytest.approx(STANDSTILL_S + 0.5)}
    assert b.interrupted_s["regroup"] == pytest.approx(STANDSTILL_S)
    idle_gpu_s = b.lost_gpu_seconds - 30 - STANDSTILL_S * 4
    assert idle_gpu_s == pytest.approx(20 * 3)
    trained_s = b.gpu_seconds - b.lost_gpu_seconds
    assert b.finished_s is not None
    assert trained_s == pytest.approx(50.5 + (b.finished_s - 140.5 - STANDSTILL_S) * 4)


def test_that_a_start_waits_without_gpus_for_a_donor_that_moves(tmp_path: Path) -> None:
    def moved(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        if now_s < 120:
            return {"a": ((0, 4),) if now_s < 90 else ((0, 4), (1, 4))}
        return {"a": ((1, 4), (2, 4)), "b": ((0, 4),)}

    cluster = Cluster(num_nodes=3, interval_s=10)
    jobs = (made_job("a", at_s=60, batch_size=32), made_job("b", at_s=100))
    _, b = run(tmp_path, moved, *jobs, cluster=cluster, rules=IN_PLACE).jobs
    assert b.interrupted_s == {"wait": pytest.approx(20 + STANDSTILL_S), "restart": 30}


def test_that_of_jobs_that_swap_nodes_one_restarts(tmp_path: Path) -> None:
    """b leaves first, so it cannot train on. It waits until a has moved, and then restarts."""

    def swapped(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        if now_s < 90:
            return {"a": ((0, 4),), "b": ((2, 4),)}
        given = ((1, 4),), ((3, 4),)
        to_a, to_b = given if now_s < 120 else given[::-1]
        return {"a": ((0, 4), *to_a), "b": tuple(sorted(((2, 4), *to_b)))}

    cluster = Cluster(num_nodes=4, interval_s=10)
    jobs = (made_job("a", at_s=60, batch_size=64), made_job("b", at_s=60, batch_size=64))
    a, b = run(tmp_path, swapped, *jobs, cluster=cluster, rules=IN_PLACE).jobs
    assert (a.num_restarts, a.num_regroups) == (0, 2)
    assert (b.num_restarts, b.num_regroups) == (1, 1)
    assert b.interrupted_s.pop("regroup") == pytest.approx(STANDSTILL_S)
    assert b.interrupted_s == {"restart": 60, "wait": pytest.approx(20 + STANDSTILL_S)}


def test_that_a_job_is_not_moved_again_while_new_processes_start(tmp_path: Path) -> None:
    def watched(now_s: float, jobs: Sequence[SimulatedJob]) -> Mapping[str, GpusByNode]:
        in_flight[now_s] = jobs[0].in_flight
        return grown(now_s, jobs)

    in_flight: dict[float, bool] = {}
    run(tmp_path, watched, made_job("a"), rules=Rules(in_place=InPlace(warm_up_s=70)))
    assert [in_flight[at_s] for at_s in (60, 120, 180)] == [False, False, True]


def test_that_a_regroup_is_no_checkpoint(tmp_path: Path) -> None:
    application = made_application(tmp_path)
    lost = []
    for in_place in (False, True):
        job = SimulatedJob(
            job=made_job("a"),
            application=application,
            choose_batch=lambda job: user_batch(job.job, job.application, job.num_gpus),
            exact=True,
        )
        job.reallocate(((0, 1),), now_s=0)
        job.advance(0, 30)
        wings = (((0, 1),), ((1, 1),)) if in_place else ()
        job.reallocate(((0, 1), (1, 1)), now_s=30, after_s=10, regrouped=wings)
        job.advance(30, 20)
        job.fail()
        lost.append(job.lost_progress)
    assert lost == [pytest.approx(10 / 0.5), pytest.approx(40 + 10 / 0.5)]


def of_six_jobs(tmp_path: Path, rules: Rules) -> list[SimulatedJob]:
    policy = make_policy("pollux", objective="generalized-mean", declared=False)
    jobs = [made_job(f"j{index}", at_s=20.0 * index) for index in range(6)]
    return list(run(tmp_path, policy, *jobs, rules=rules, cluster=Cluster(num_nodes=2)).jobs)


@pytest.mark.parametrize("make_rules", [Rules, slurm_rules])
def test_that_rules_without_jobs_in_place_change_nothing(tmp_path: Path, make_rules: type[Rules]) -> None:
    found = [
        [
            (job.finished_s, job.num_restarts, job.gpu_seconds, job.interrupted_s)
            for job in of_six_jobs(at, rules)
        ]
        for at, rules in (
            (tmp_path / "none", make_rules()),
            (tmp_path / "no_job", make_rules(in_place=InPlace(share=0))),
        )
    ]
    assert found[0] == found[1]
    assert sum(restarts or 0 for _, restarts, _, _ in found[0]) > 0, "jobs were moved"


def test_that_only_the_share_of_jobs_is_moved_in_place(tmp_path: Path) -> None:
    half = of_six_jobs(tmp_path, Rules(in_place=InPlace(share=0.5, several_wings=True)))
    assert [job.in_place is not None for job in half].count(True) == 3
    assert all(job.in_place is not None for job in half if job.num_regroups)
    assert sum(job.num_regroups for job in half) > 0


@pytest.mark.parametrize("several_wings", [False, True])
def test_that_moves_are_made_the_way_that_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several_wings: bool
) -> None:
    decided: Counter[ReallocationWay] = Counter()

    def watched(problem: Problem, **options: Any) -> Allocations:
        given = allocate(problem, **options)
        for job in problem.jobs:
            move = expected_move(problem, job, given.allocations.get(job.job_id, Allocation()))
            decided.update([] if move is None else [move[0]])
        return given

    monkeypatch.setattr("pollux_slurm.simulator.policies.adaptive.pollux.allocate", watched)
    jobs = of_six_jobs(tmp_path, Rules(in_place=InPlace(several_wings=several_wings)))
    assert sum(job.num_regroups for job in jobs) == decided[ReallocationWay.IN_PLACE] > 0
    assert sum(job.num_restarts or 0 for job in jobs) >= decided[ReallocationWay.REQUEUE] > 0


def test_that_alone_a_job_has_an_ordinary_start(tmp_path: Path) -> None:
    """Only its moves are in place, so ρ compares with a start of 30 s."""
    rule: Rule = lambda now_s, jobs: {"a": ((0, 2),)}  # noqa: E731
    result = run(tmp_path, rule, made_job("a"), cluster=Cluster(num_nodes=1), rules=IN_PLACE)
    assert alone_times(result, AloneTimes(4)) == [60 + 30 + 51]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.5}, "share of jobs moved in place must lie between 0 and 1, not 1.5"),
        ({"standstill_s": -1.0}, "standstill_s must be 0 or more, not -1"),
        ({"warm_up_s": float("nan")}, "warm_up_s must be 0 or more, not nan"),
    ],
)
def test_that_impossible_moves_in_place_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        InPlace(**options)  # type: ignore[arg-type]
