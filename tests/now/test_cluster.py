"""The picture of now, from a real store, with and without Slurm."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pollux_slurm.model import Allocation, ClusterSnapshot, JobState, ReallocationWay, SlurmNode
from pollux_slurm.now.cluster import NodeNow, NodeState, read_cluster
from pollux_slurm.now.tables import decisions_data
from pollux_slurm.store.contract.interface import RunPhase
from tests.report.stories import fill
from tests.store.builders import at, observation, plan, registration, report, token_of

if TYPE_CHECKING:
    from pollux_slurm.store.contract.interface import Store
    from pollux_slurm.store.sql_store import SqlStore

NOW: datetime = at(100)


def node(name: str, **changes: object) -> SlurmNode:
    values: dict[str, object] = {
        "name": name,
        "gpu_type": "t4",
        "num_gpus": 4,
        "used_gpus": 0,
        "num_cpus": 8,
        "used_cpus": 0,
        "memory_mb": 1000,
        "used_memory_mb": 0,
        "available": True,
        "state": "IDLE",
    }
    return SlurmNode(**{**values, **changes})  # type: ignore[arg-type]


def test_that_without_slurm_nodes_are_those_of_the_last_round_with_what_jobs_hold(store: Store) -> None:
    fill(store)
    picture = read_cluster(store, now=NOW)
    free = {"state": NodeState.UP, "gpu_type": "t4", "num_gpus": 4, "held": ()}
    assert picture.nodes == (
        NodeNow(name="n1", **free),  # type: ignore[arg-type]
        NodeNow(name="n2", **free),  # type: ignore[arg-type]
        NodeNow(name="n3", gpu_type="", num_gpus=1, state=NodeState.UP, held=(("2", 1),)),
    )
    assert [(job.record.slurm_job_id, picture.state_of(job)) for job in picture.jobs] == [
        ("2", "running"),
        ("3", "pending"),
    ]
    assert picture.slurm_missing == "it was not asked"
    assert picture.missing is not None
    assert picture.missing.startswith("no daemon runs: the last one was stopped")
    assert picture.next_round_at is None


def test_that_without_slurm_nodes_stand_in_the_order_of_their_numbers(store: Store) -> None:
    store.jobs.register([registration(1)], at=at(0))
    gpus = {"gpu10": 1, "gpu9": 1, "a2": 1, "gpu9b": 1}
    store.jobs.observe([observation(1, gpus=gpus, started_at=at(1))], at=at(1))
    names = [one.name for one in read_cluster(store, now=NOW).nodes]
    assert names == ["a2", "gpu9", "gpu9b", "gpu10"]


def test_that_nodes_of_slurm_say_what_is_free_drained_down_and_held_by_others(store: Store) -> None:
    nodes = (
        node("a", used_gpus=3),
        node("b", available=False, draining=True),
        node("c", available=False, responds=False),
        node("login", num_gpus=0),
    )
    snapshot = ClusterSnapshot(read_at=NOW, nodes=nodes, jobs=())
    picture = read_cluster(store, now=NOW, slurm=lambda: (snapshot, ""))
    assert [(one.name, one.state, one.num_other, one.num_free) for one in picture.nodes] == [
        ("a", NodeState.UP, 3, 1),
        ("b", NodeState.DRAINED, 0, 0),
        ("c", NodeState.DOWN, 0, 0),
    ]
    assert picture.slurm_missing is None


def test_that_a_slurm_that_does_not_answer_is_named_and_the_store_is_shown(store: Store) -> None:
    fill(store)
    picture = read_cluster(store, now=NOW, slurm=lambda: (None, "squeue: no answer in 10 s"))
    assert picture.slurm_missing == "squeue: no answer in 10 s"
    assert [one.name for one in picture.nodes] == ["n1", "n2", "n3"]


def test_that_moves_and_decisions_have_their_step_way_and_reason(store: Store) -> None:
    fill(store)
    picture = read_cluster(store, now=NOW)
    assert [one.record.slurm_job_id for one in picture.decided] == ["2"]
    ((job, _, reason, seconds),) = decisions_data(picture, most=9).rows
    assert (job, seconds) == ("2", (NOW - at(60)).total_seconds())
    assert str(reason).startswith("other jobs gain more")
    plan(store, 2, seconds=95, source=Allocation.of({"n3": 1}), way=ReallocationWay.IN_PLACE)
    picture = read_cluster(store, now=NOW)
    ((job, move),) = picture.moves
    assert (job.record.slurm_job_id, move.way) == ("2", ReallocationWay.IN_PLACE)
    assert picture.decided == (), "what moves is among the moves"


def test_that_what_was_measured_is_of_the_present_run_and_gpus(store: Store) -> None:
    def measured() -> float | None:
        (job,) = read_cluster(store, now=NOW, include_finished=True).jobs
        return None if job.measured is None else job.measured.goodput

    store.jobs.register([registration(1)], at=at(0))
    assert measured() is None
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1))], at=at(1))
    store.agent.report(token_of(1), report(1, throughput=100.0, efficiency=0.5), at=at(8))
    assert measured() == 50.0
    store.jobs.observe([observation(1, gpus={"n0": 4}, started_at=at(20), restart_count=1)], at=at(21))
    assert measured() is None
    following = {"run_number": 1, "restart_count": 1, "gpus_per_node": (4,)}
    starting = report(1, **following, phase=RunPhase.STARTING, throughput=None, num_steps=0)
    store.agent.report(token_of(1), starting, at=at(30))
    assert measured() is None
    store.agent.report(token_of(1), report(2, **following, throughput=180.0, efficiency=0.5), at=at(40))
    assert measured() == 90.0
    store.jobs.observe([observation(1, JobState.COMPLETED, ended_at=at(50))], at=at(50))
    assert measured() is None


def test_that_the_number_of_statements_does_not_grow_with_the_jobs(clean_store: SqlStore) -> None:
    from sqlalchemy import event

    counts = []
    for number in (1, 60):
        clean_store.jobs.register([registration(n) for n in range(1, number + 1)], at=at(0))
        statements: list[str] = []
        engine = clean_store.database.engine

        def count(*arguments: object, into: list[str] = statements) -> None:
            into.append(str(arguments[2]))

        event.listen(engine, "before_cursor_execute", count)
        read_cluster(clean_store, now=NOW)
        event.remove(engine, "before_cursor_execute", count)
        counts.append(len(statements))
    assert counts[0] == counts[1]
