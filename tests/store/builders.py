"""Small literal data for the store's tests, and times in seconds after T0."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pollux_slurm.model import (
    Allocation,
    BatchChoice,
    BatchLimits,
    Configuration,
    Decision,
    GoodputModel,
    GradientStatistics,
    JobDecision,
    JobState,
    JobTerms,
    NodeCapacity,
    Problem,
    ProblemJob,
    ReallocationStep,
    ReallocationWay,
    ThroughputParameters,
)
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import (
    CheckpointConfirmation,
    GenerationMember,
    GenerationRecord,
    GenerationState,
    JobObservation,
    JobRegistration,
    Reallocation,
    Report,
    RunPhase,
    Store,
)
from pollux_slurm.store.contract.membership import wing_members

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone.utc)
Step = ReallocationStep

THETA = ThroughputParameters(
    alpha_g=0.05, beta_g=0.001, alpha_n=0.04, beta_n=0.002, alpha_l=0.03, beta_l=0.001, gamma=1.5
)
MODEL = GoodputModel(
    limits=BatchLimits(initial_batch_size=128, max_batch_size=1024, max_atomic=256, accumulation=True),
    statistics=GradientStatistics(sqr=0.5, var=3.0, noise_low=500.0, noise_high=1000.0),
    throughput=THETA,
    max_gpus_seen=2,
    max_nodes_seen=1,
)
BATCH = BatchChoice(global_batch_size=256, atomic_batch_size=64, accumulation_steps=1)


def at(seconds: float) -> datetime:
    """Return the time `seconds` after T0."""
    return T0 + timedelta(seconds=seconds)


def token_of(number: int | str, user_id: int = 1001) -> str:
    return f"{user_id}-" + hashlib.sha256(f"token of job {number}".encode()).hexdigest()


def registration(number: int | str, **changes: Any) -> JobRegistration:
    """Return job `number` with the token `token_of(number)`; `terms` of the changes are JobTerms' fields."""
    user_id = changes.get("user_id", 1001)
    owned = {"token_sha256": hash_token(token_of(number, user_id)), "user_id": user_id}
    terms = {**owned, **changes.pop("terms", {})}
    values: dict[str, Any] = {
        "slurm_job_id": str(number),
        "name": f"train-{number}",
        "user_name": "ada",
        "user_id": 1001,
        "account": "vision",
        "partition": "gpu",
        "cpus_per_gpu": 2,
        "memory_per_gpu_mb": 4000,
        "submitted_at": T0,
    }
    return JobRegistration(terms=JobTerms(**terms), **{**values, **changes})


def observation(
    number: int | str,
    state: JobState = JobState.RUNNING,
    gpus: Mapping[str, int] | None = None,
    *,
    started_at: datetime | None = None,
    ended_at: datetime | None = None,
    gpu_type: str | None = None,
    restart_count: int = 0,
    **changes: Any,
) -> JobObservation:
    return JobObservation(
        slurm_job_id=str(number),
        state=state,
        allocation=Allocation.of(gpus or {}),
        started_at=started_at,
        ended_at=ended_at,
        gpu_type=gpu_type,
        restart_count=restart_count,
        **changes,
    )


def report(sequence: int = 1, **changes: Any) -> Report:
    """Return a report of a run that trains on two GPUs of one node."""
    values: dict[str, Any] = {
        "run_number": 0,
        "restart_count": 0,
        "sequence": sequence,
        "phase": RunPhase.TRAINING,
        "gpus_per_node": (2,),
        "model": MODEL,
        "batch": BATCH,
        "throughput": 200.0,
        "predicted_throughput": 190.0,
        "step_time_s": 1.28,
        "efficiency": 0.8,
        "num_steps": 10 * sequence,
        "progress": 8.0 * sequence,
        "epoch": 1,
        "total_epochs": 5,
    }
    return Report(**{**values, **changes})


def confirmation(request_id: int | None, sequence: int = 2, **changes: Any) -> Report:
    """Return the report of a checkpoint that blocked training for half a second."""
    checkpoint = CheckpointConfirmation(request_id=request_id, blocked_s=0.5, size_bytes=4096)
    return report(sequence, phase=RunPhase.WAITING, checkpoint=checkpoint, **changes)


def plan(store: Store, number: int | str = 1, *, seconds: float = 20.0, **changes: Any) -> Reallocation:
    """Plan to move a running job from two GPUs of n0 to four on n1 and n2."""
    values: dict[str, Any] = {
        "source": Allocation.of({"n0": 2}),
        "target": Allocation.of({"n1": 3, "n2": 1}),
        "moves_running": True,
        "from_restart_count": 0,
        "round_id": None,
    }
    return store.journal.plan(str(number), at=at(seconds), **{**values, **changes})


def advance(
    store: Store, reallocation: Reallocation, *steps: tuple[ReallocationStep, float]
) -> ReallocationStep:
    """Advance a reallocation from its current step through `steps`, each with its second."""
    (current,) = (r.step for r in store.journal.reallocations() if r.id == reallocation.id)
    for step, seconds in steps:
        assert store.journal.advance(reallocation.id, step, expected=current, at=at(seconds))
        current = step
    return current


def move_running_job(store: Store, *, start: float = 20.0, run_number: int = 0) -> Reallocation:
    """Record a whole reallocation of job 1, with a restart delay of 12.5 s.

    Seconds after `start`: requested 1, checkpoint confirmed 3 (half a second blocked), requeued 4, reshaped
    5, released 7, running 9, first step of the next run 15, confirmed 16.
    """
    planned = plan(store, seconds=start, from_restart_count=run_number)
    advance(store, planned, (Step.CHECKPOINT_REQUESTED, start + 1))
    now = {"run_number": run_number, "restart_count": run_number}
    store.agent.report(token_of(1), confirmation(planned.id, sequence=1000, **now), at=at(start + 3))
    advance(
        store,
        planned,
        (Step.REQUEUED, start + 4),
        (Step.RESHAPED, start + 5),
        (Step.RELEASED, start + 7),
        (Step.RUNNING, start + 9),
    )
    following = {"run_number": run_number + 1, "restart_count": run_number + 1, "gpus_per_node": (3, 1)}
    starting = report(1, **following, phase=RunPhase.STARTING, throughput=None, num_steps=0)
    store.agent.report(token_of(1), starting, at=at(start + 11))
    store.agent.report(
        token_of(1), report(2, **following, first_step_s=5.0, restore_s=1.0), at=at(start + 15)
    )
    advance(store, planned, (Step.CONFIRMED, start + 16))
    return planned


def plan_generation(
    store: Store,
    number: int | str = 1,
    *,
    at_s: float = 20.0,
    restart_count: int = 0,
    is_ready: bool = False,
) -> GenerationRecord:
    """Plan that a process on n7 joins the one that trains on n0; `is_ready`: it waits already."""
    members = (
        GenerationMember(id="base.0", node_name="n0", is_ready=True),
        GenerationMember(id="wing7.0", node_name="n7", is_ready=is_ready),
    )
    return store.generations.plan(str(number), members, restart_count=restart_count, at=at(at_s))


def members_of(reallocation: Reallocation) -> list[GenerationMember]:
    """Return the processes of the target: those that stay, then those of a new wing on each node."""
    had = reallocation.source.as_dict()
    target = reallocation.target.gpus_by_node
    stay = Allocation.of({node: min(gpus, had.get(node, 0)) for node, gpus in target})
    more = Allocation.of({node: gpus - stay.as_dict().get(node, 0) for node, gpus in target})
    restart = reallocation.from_restart_count
    return [
        *(replace(member, is_ready=True) for member in wing_members(restart, 0, stay)),
        *wing_members(restart, reallocation.id, more),
    ]


def move_in_place(
    store: Store,
    number: int = 1,
    *,
    start: float = 20.0,
    target: Mapping[str, int] | None = None,
    standstill_s: float = 0.5,
    restart_count: int = 0,
) -> Reallocation:
    """Record a whole reallocation in place of a job with two GPUs of n0, to one more on n1 unless told.

    Seconds after `start`: regroup requested 1, committed 8, regrouped 9, confirmed 10.
    """
    planned = plan(
        store,
        number,
        seconds=start,
        target=Allocation.of(target or {"n0": 2, "n1": 1}),
        from_restart_count=restart_count,
        way=ReallocationWay.IN_PLACE,
    )
    generation = store.journal.request_regroup(
        planned.id, members_of(planned), expected=Step.PLANNED, at=at(start + 1)
    )
    assert generation is not None
    of_start: dict[str, Any] = {"number": generation.number, "restart_count": restart_count}
    for member in generation.members:
        store.agent.report_ready(token_of(number), member.id, **of_start)
    for state, seconds, said in (
        (GenerationState.COMMITTED, start + 8, {"meeting": "10.0.0.7:41213"}),
        (GenerationState.REGROUPED, start + 9, {"standstill_s": standstill_s}),
    ):
        assert store.agent.advance_generation(
            token_of(number), state=state, at=at(seconds), **of_start, **said
        )
    advance(store, planned, (Step.REGROUPED, start + 9), (Step.CONFIRMED, start + 10))
    return planned


def problem_of(numbers: list[int]) -> Problem:
    """Return a problem with a node and a job per number."""
    return Problem(
        nodes=tuple(
            NodeCapacity(name=f"n{number}", num_gpus=4, num_cpus=8, memory_mb=16000, gpu_type="t4")
            for number in numbers
        ),
        jobs=tuple(
            ProblemJob(
                job_id=str(number),
                model=MODEL if number % 2 else None,
                max_gpus=8,
                age_s=61.5,
                current=Allocation.of({f"n{number}": 2}),
                partition_nodes=frozenset({f"n{number}", "n1"}),
            )
            for number in numbers
        ),
        seed=7,
    )


def decision_of(numbers: list[int]) -> Decision:
    """Return a decision that allocates three GPUs on its node and one on another to each job."""
    return Decision(
        jobs=tuple(
            JobDecision(
                job_id=str(number),
                allocation=Allocation.of({f"n{number}": 3, f"m{number}": 1}),
                speedup=1.75,
                goodput=320.5,
                penalty=0.9,
                batch=BATCH,
                bound_by="capacity",
                runner_up=Configuration(num_nodes=1, num_gpus=3),
                runner_up_speedup=1.5,
                runner_up_cost=-0.25,
                cost=1.0,
                gpu_type="t4",
                runner_up_gpu_type="a100",
                declared_gain=1.5 if number % 2 else None,
                declaration_doubt=None if number % 2 else "it has passed what it declared",
                pinned_because="it is being moved" if number % 2 else None,
            )
            for number in numbers
        ),
        fitness=0.8,
        solver="test",
        excluded=(("99", "its minimum does not fit"),),
        upper_bound=0.9,
        gap=1 / 9,
        gpu_prices=(("a100", 0.5), ("t4", 0.25)),
        timed_out=True,
    )


def numbers_in(value: Any) -> list[float]:
    """Return every number in frozen types and tuples, at any depth."""
    if dataclasses.is_dataclass(value):
        return [n for f in dataclasses.fields(value) for n in numbers_in(getattr(value, f.name))]
    if isinstance(value, tuple):
        return [n for item in value for n in numbers_in(item)]
    return [value] if isinstance(value, int | float) else []
