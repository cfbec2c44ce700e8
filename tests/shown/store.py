"""A store of ten jobs in every state that people see, its Slurm, and the time at which they are looked at.

| job | whose | what it is |
|---|---|---|
| 1 | ada, vision | moved by requeue from 2 GPUs to 4, and trains |
| 2 | grace, physics | has a hostile name, and is being moved by requeue: stopped, back in the queue |
| 3 | ada, vision | paused by hand |
| 4 | edsger, no account | failed |
| 5 | ada, vision | moved in place to a second node, and trains; one of its wings waits |
| 6 | edsger, no account | waits, and rounds leave it to Slurm |
| 7 | ada, vision | runs for hours and has never reported |
| 8 | ada, vision | completed, in time for its moment |
| 9 | grace, physics | trains with a warning, has a promise, and is being moved in place |
| 10 | ada, vision | new: no round has decided about it |
"""

from __future__ import annotations

import dataclasses
from datetime import datetime

from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    ClusterSnapshot,
    JobState,
    JobWarning,
    PromiseState,
    ReallocationCause,
    ReallocationWay,
    SlurmJob,
    SlurmNode,
)
from pollux_slurm.policy import decide
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store.contract.interface import JobRegistration, PromiseRecord, Report, Store
from tests.daemon import builders as slurm
from tests.policy.builders import job, nodes, problem
from tests.report.stories import AFTER, BEFORE, HOSTILE
from tests.store import builders
from tests.store.builders import (
    Step,
    advance,
    members_of,
    move_in_place,
    move_running_job,
    observation,
    plan,
    registration,
    token_of,
)

# In the year 2100: views count what lasts up to the database's own time, of which these jobs hold nothing.
BEGIN_S = 27028 * 86400.0
DAY_S = 86400.0
LATER_S = 2 * DAY_S + 3600.0

_USERS = {"ada": (1001, "vision"), "grace": (1002, "physics"), "edsger": (1003, "")}
_OWNERS = {"1": "ada", "2": "grace", "3": "ada", "4": "edsger", "5": "ada"} | {
    "6": "edsger",
    "7": "ada",
    "8": "ada",
    "9": "grace",
    "10": "ada",
}


def at(seconds: float) -> datetime:
    """Return the time `seconds` after the first submission."""
    return builders.at(BEGIN_S + seconds)


NOW = at(LATER_S)


def _registration(number: str, submitted_s: float, **changes: object) -> JobRegistration:
    user = _OWNERS[number]
    user_id, account = _USERS[user]
    fields: dict[str, object] = {
        "user_name": user,
        "user_id": user_id,
        "account": account,
        "submitted_at": at(submitted_s),
    }
    return registration(number, **{**fields, **changes})


REGISTRATIONS = {
    one.slurm_job_id: one
    for one in (
        _registration("1", 0, terms={"max_gpus": 8}),
        _registration("3", 0),
        _registration("4", 0),
        _registration("5", 0, terms={"in_place": True, "max_gpus": 3}),
        _registration("8", 0, terms={"finish_by": at(DAY_S)}),
        _registration("7", 1.3 * DAY_S),
        _registration("9", 1.4 * DAY_S, terms={"in_place": True, "finish_by": at(2.5 * DAY_S)}),
        _registration("2", 1.7 * DAY_S, name=HOSTILE),
        _registration("6", LATER_S - 900),
        _registration("10", LATER_S - 20),
    )
}


def _say(store: Store, number: str, sequence: int, seconds: float, **changes: object) -> None:
    report: Report = builders.report(sequence, **changes)
    store.agent.report(token_of(number, REGISTRATIONS[number].user_id), report, at=at(seconds))


def _runs(
    store: Store, number: str, gpus: dict[str, int], *, begin: float, until: float = 0.0, restarts: int = 0
) -> None:
    """Let a round see a job with `gpus` that it began with, or has got by a move that ended at `until`."""
    seen = observation(number, gpus=gpus, started_at=at(begin), gpu_type="t4", restart_count=restarts)
    store.jobs.observe([seen], at=at(max(begin, until) + 1))


def _round(store: Store, seconds: float, gpus: dict[str, dict[str, int]], *, shadow: bool = False) -> int:
    """Let the policy decide about jobs that have `gpus`."""
    jobs = (job(number, held, max_gpus=REGISTRATIONS[number].terms.max_gpus) for number, held in gpus.items())
    asked = problem(nodes(5), *jobs)
    decided = dataclasses.replace(decide(asked), times_s=(("search", 0.25),))
    return store.rounds.record(asked, decided, shadow=shadow, at=at(seconds))


def fill(store: Store) -> None:
    """Record the jobs in `store`."""
    _first_day(store)
    _second_day(store)
    _last_hours(store)


def _first_day(store: Store) -> None:
    store.jobs.register([REGISTRATIONS[number] for number in "13458"], at=at(0))
    for number, gpus in (("1", {"n0": 2}), ("3", {"n1": 2}), ("4", {"n3": 2}), ("5", {"n0": 2})):
        _runs(store, number, gpus, begin=4)
    _round(store, 6, {"1": {"n0": 2}, "3": {"n1": 2}, "4": {"n3": 2}, "5": {"n0": 2}}, shadow=True)
    for index, (throughput, efficiency) in enumerate(BEFORE):
        measured = {"throughput": throughput, "efficiency": efficiency}
        _say(store, "1", index + 1, 600 * (index + 1), **measured)
        _say(store, "3", index + 1, 600 * (index + 1), **measured)
        _say(store, "4", index + 1, 500 * (index + 1), **measured)
        _say(store, "5", index + 1, 600 * (index + 1), **measured)
    store.jobs.observe([observation("4", JobState.FAILED, ended_at=at(3000))], at=at(3001))
    _round(store, 7195, {"1": {"n0": 2}, "3": {"n1": 2}, "5": {"n0": 2}})
    move_running_job(store, start=BEGIN_S + 7200)
    _runs(store, "1", {"n1": 3, "n2": 1}, begin=7209, restarts=1)
    again = {"run_number": 1, "restart_count": 1, "gpus_per_node": (3, 1), "first_step_s": 5.0}
    larger = BatchChoice(global_batch_size=16384, atomic_batch_size=2048, accumulation_steps=1)
    for index, (throughput, efficiency) in enumerate(AFTER):
        measured = {"throughput": 100 * throughput, "efficiency": efficiency}
        _say(store, "1", 10 + index, LATER_S - 3640 + 1200 * index, batch=larger, **again, **measured)
    _runs(store, "8", {"n3": 4}, begin=10000)
    _say(store, "8", 1, 20000, gpus_per_node=(4,), epoch=3, total_epochs=3)
    store.jobs.observe([observation("8", JobState.COMPLETED, ended_at=at(40000))], at=at(40001))
    _answer(store, "8", at(39000))


def _second_day(store: Store) -> None:
    move_in_place(store, 5, start=BEGIN_S + DAY_S, target={"n0": 2, "n3": 1}, standstill_s=0.25)
    _runs(store, "5", {"n0": 2, "n3": 1}, begin=4, until=DAY_S + 10)
    _say(store, "5", 9, LATER_S - 95, gpus_per_node=(2, 1), throughput=1234.5, efficiency=0.996)
    paused = plan(
        store,
        "3",
        seconds=BEGIN_S + 1.2 * DAY_S,
        source=Allocation.of({"n1": 2}),
        target=Allocation(),
        cause=ReallocationCause.PAUSE,
        reason="paused manually: ada",
    )
    advance(store, paused, (Step.CONFIRMED, BEGIN_S + 1.2 * DAY_S + 30))
    store.jobs.observe([observation("3", JobState.PENDING, restart_count=1)], at=at(1.2 * DAY_S + 31))
    store.jobs.register([REGISTRATIONS[number] for number in "79"], at=at(1.4 * DAY_S))
    _runs(store, "7", {"n2": 2}, begin=1.3 * DAY_S + 40)
    _runs(store, "9", {"n4": 2}, begin=1.4 * DAY_S + 90)
    doubted = {"warnings": (JobWarning.REPLICAS_DIFFER,), "throughput": 7.25, "efficiency": 0.5}
    _say(store, "9", 1, 1.5 * DAY_S, **doubted)
    store.jobs.register([REGISTRATIONS["2"]], at=at(1.7 * DAY_S))
    _runs(store, "2", {"n3": 2}, begin=1.7 * DAY_S + 10)
    _say(store, "2", 1, 1.8 * DAY_S, epoch=0, total_epochs=None)


def _last_hours(store: Store) -> None:
    store.jobs.register([REGISTRATIONS["6"]], at=at(LATER_S - 890))
    store.jobs.observe([observation("6", JobState.PENDING)], at=at(LATER_S - 889))
    last = _round(
        store,
        LATER_S - 72,
        {
            "1": {"n1": 3, "n2": 1},
            "2": {"n3": 2},
            "5": {"n0": 2, "n3": 1},
            "7": {"n2": 2},
            "9": {"n4": 2},
        },
    )
    store.jobs.record_not_moved({"6": "Slurm does not start it now, whatever is free (PartitionDown)"})
    _answer(store, "9", at(2.5 * DAY_S - 7000))
    moved = plan(
        store,
        "2",
        seconds=BEGIN_S + LATER_S - 70,
        source=Allocation.of({"n3": 2}),
        target=Allocation.of({"n0": 2, "n2": 1}),
        round_id=last,
    )
    steps = (Step.CHECKPOINT_REQUESTED, Step.CHECKPOINTED, Step.REQUEUED)
    advance(store, moved, *((step, BEGIN_S + LATER_S - 60 + index) for index, step in enumerate(steps)))
    store.jobs.observe([observation("2", JobState.PENDING)], at=at(LATER_S - 55))
    grows = plan(
        store,
        "9",
        seconds=BEGIN_S + LATER_S - 69,
        source=Allocation.of({"n4": 2}),
        target=Allocation.of({"n4": 4}),
        round_id=last,
        way=ReallocationWay.IN_PLACE,
    )
    asked = BEGIN_S + LATER_S - 50
    store.journal.request_regroup(grows.id, members_of(grows), expected=grows.step, at=builders.at(asked))
    store.jobs.register([REGISTRATIONS["10"]], at=at(LATER_S - 15))
    store.lease.acquire("ctl:77:a", ttl_s=60, at=at(LATER_S - 10), interval_s=60, watch_s=10)


def _answer(store: Store, number: str, finish_at: datetime) -> None:
    promise = PromiseRecord(state=PromiseState.ACCEPTED, least_gpus=2, finish_at=finish_at)
    store.jobs.record_promises({number: promise})


def _of_slurm(number: str, state: JobState, on: dict[str, int] | None = None, **changes: object) -> SlurmJob:
    known = REGISTRATIONS[number]
    fields: dict[str, object] = {
        "name": known.name,
        "user_name": known.user_name,
        "user_id": known.user_id,
        "account": known.account,
        "comment": encode_comment("", known.terms),
        "submitted_at": known.submitted_at,
    }
    return slurm.job(number, state, on=on, **{**fields, **changes})


def snapshot() -> ClusterSnapshot:
    """Return what Slurm shows at `NOW`."""
    waiting = slurm.job("502", JobState.PENDING, reason="Resources")
    wings = (slurm.job("501", on={"n0": 2}), slurm.job("503", on={"n3": 1}), waiting)
    jobs = (
        _of_slurm("1", JobState.RUNNING, {"n1": 3, "n2": 1}, restart_count=1),
        _of_slurm("2", JobState.PENDING, held=True, reason="JobHeldUser", restart_count=1),
        _of_slurm("3", JobState.PENDING, restart_count=1, reason="BeginTime"),
        _of_slurm("5", JobState.RUNNING, {"n0": 2, "n3": 1}, wings=wings),
        _of_slurm("6", JobState.PENDING, reason="PartitionDown"),
        _of_slurm("7", JobState.RUNNING, {"n2": 2}),
        _of_slurm("9", JobState.RUNNING, {"n4": 2}, wings=(slurm.job("901", on={"n4": 2}),)),
        _of_slurm("10", JobState.PENDING, reason="Priority"),
        slurm.job("600", on={"n1": 1}, user_name="linus"),
    )
    used = {"n0": 2, "n1": 4, "n2": 3, "n3": 1, "n4": 2}
    machines: list[SlurmNode] = [slurm.node(name, used=number) for name, number in used.items()]
    machines.append(slurm.node("n5", available=False, draining=True))
    return ClusterSnapshot(read_at=NOW, nodes=tuple(machines), jobs=jobs)
