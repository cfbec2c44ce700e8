"""A day of a small computing centre, with sums that can be checked by hand. Times are seconds after T0, noon.

| job | whose | what happened |
|---|---|---|
| 1 | ada, vision | 2 GPUs of n0 from 604 to 4204; moved in 39 s; 4 GPUs of n1 and n2 from 4210 to 58210 |
| 2 | grace, physics | 1 GPU of n0 from 7200 to 14400, fails; a move of it had failed |
| 3 | ada, vision | never started, cancelled at 7200 |
| 4 | linus, physics | 4 GPUs of n3 from 10000 to 17200, runs out of time, never reported |
"""

from __future__ import annotations

from pollux_slurm.model import (
    Allocation,
    BatchLimits,
    Decision,
    GoodputModel,
    JobDecision,
    JobState,
    NodeCapacity,
    Problem,
    ProblemJob,
)
from pollux_slurm.store.contract.interface import CheckpointConfirmation, RunPhase, Store
from tests.store.builders import THETA, Step, advance, at, observation, plan, registration, report, token_of

# On one GPU its only batch is 128 examples: 0.05 + 0.001 * 128 = 0.178 s a step.
FIXED_BATCH = GoodputModel(limits=BatchLimits(initial_batch_size=128), throughput=THETA)
ONE_GPU_GOODPUT = 128 / 0.178


OWNERS = {
    1: ("ada", 1001, "vision"),
    2: ("grace", 1002, "physics"),
    3: ("ada", 1001, "vision"),
    4: ("linus", 1004, "physics"),
}


def fill(store: Store) -> None:
    """Record the day in `store`."""
    for number, submitted in ((1, 0), (3, 0), (2, 3600), (4, 7200)):
        user, user_id, account = OWNERS[number]
        job = registration(
            number, user_name=user, user_id=user_id, account=account, submitted_at=at(submitted)
        )
        store.jobs.register([job], at=at(submitted))

    decide(store, 600, {1: ({"n0": 2}, 0.8, 160.0), 3: ({}, 0.0, None)})
    allocate(store, 1, 604, {"n0": 2}, "t4", 0)
    train(store, 1, run=0, gpus=(2,), start=604, every=700, count=5, rates=(200.0, 0.8, 220.0))

    second = decide(store, 4200, {1: ({"n1": 2, "n2": 2}, 1.2, 240.0), 2: ({"n0": 1}, 1.0, None)}, moves=1)
    store.jobs.observe([observation(3, JobState.CANCELLED, ended_at=at(7200))], at=at(7200))
    allocate(store, 2, 7200, {"n0": 1}, "t4", 0)
    train(store, 2, run=0, gpus=(1,), start=7200, every=600, count=10, rates=(50.0, 1.0, None))
    failed = plan(store, 2, seconds=9000, round_id=second, target=Allocation.of({"n3": 1}))
    assert store.journal.advance(
        failed.id, Step.FAILED, expected=Step.PLANNED, at=at(9010), reason="its node went down"
    )
    decide(
        store,
        7800,
        {1: ({"n1": 2, "n2": 2}, 1.0, 200.0), 2: ({"n0": 1}, 1.0, None), 4: ({"n3": 4}, 2.0, None)},
    )
    allocate(store, 4, 10000, {"n3": 4}, "a100", 0)
    end(store, 2, 14400, JobState.FAILED)
    end(store, 4, 17200, JobState.TIMEOUT)

    train(store, 1, run=1, gpus=(2, 2), start=4240, every=3000, count=17, rates=(400.0, 0.5, 360.0))
    end(store, 1, 58210, JobState.COMPLETED)


def allocate(
    store: Store,
    job: int,
    second: float,
    gpus: dict[str, int],
    gpu_type: str,
    restarts: int,
    began: float | None = None,
) -> None:
    started_at = at(second if began is None else began)
    seen = observation(job, gpus=gpus, started_at=started_at, gpu_type=gpu_type, restart_count=restarts)
    store.jobs.observe([seen], at=at(second))


def end(store: Store, job: int, second: float, state: JobState) -> None:
    store.jobs.observe([observation(job, state, ended_at=at(second))], at=at(second))


def train(
    store: Store,
    job: int,
    *,
    run: int,
    gpus: tuple[int, ...],
    start: float,
    every: float,
    count: int,
    rates: tuple[float, float, float | None],
) -> None:
    """Report a start, and then `count` samples, `every` so many seconds."""
    now = {"run_number": run, "restart_count": run, "gpus_per_node": gpus, "model": None}
    starting = report(0, **now, phase=RunPhase.STARTING, throughput=None, num_steps=0)
    store.agent.report(token_of(job, OWNERS[job][1]), starting, at=at(start))
    # The next round observes the run and records its GPU type.
    if run == 0:
        allocate(store, job, start, {"n0": gpus[0]}, "t4", run)
    else:
        allocate(store, job, start, {"n1": gpus[0], "n2": gpus[1]}, "a100", run, began=4210)
    throughput, efficiency, predicted = rates
    for number in range(1, count + 1):
        sample = report(
            number, **now, throughput=throughput, efficiency=efficiency, predicted_throughput=predicted
        )
        store.agent.report(token_of(job, OWNERS[job][1]), sample, at=at(start + every * number))


def decide(
    store: Store,
    second: float,
    decided: dict[int, tuple[dict[str, int], float, float | None]],
    moves: int = 0,
) -> int:
    """Record a round: per job the GPUs, the speedup and the goodput. With `moves`, move job 1."""
    problem = Problem(
        nodes=tuple(
            NodeCapacity(
                name=f"n{n}", num_gpus=4, num_cpus=64, memory_mb=10**6, gpu_type="t4" if n < 1 else "a100"
            )
            for n in range(4)
        ),
        jobs=tuple(
            ProblemJob(job_id=str(job), model=None if goodput is None else FIXED_BATCH)
            for job, (_, _, goodput) in decided.items()
        ),
    )
    decision = Decision(
        jobs=tuple(
            JobDecision(
                job_id=str(job),
                allocation=Allocation.of(gpus),
                speedup=speedup,
                goodput=goodput,
                penalty=1.0,
                batch=None,
                bound_by="nothing" if gpus else "capacity",
                runner_up=None,
                runner_up_speedup=None,
                declared_gain=1.5 if job == 1 else None,
                declaration_doubt="it has passed what it declared" if job == 2 else None,
            )
            for job, (gpus, speedup, goodput) in decided.items()
        ),
        fitness=0.9,
        solver="test",
        upper_bound=1.0,
        gap=0.1,
        times_s=(("tables", 0.5), ("search", second / 10000)),
    )
    round_id = store.rounds.record(problem, decision, shadow=False, at=at(second))
    if moves:
        move(store, round_id)
    return round_id


def move(store: Store, round_id: int) -> None:
    """Move job 1: checkpoint confirmed at 4203, two seconds blocked, released 4207, first step by 4240."""
    moved = plan(store, 1, seconds=4200, round_id=round_id, target=Allocation.of({"n1": 2, "n2": 2}))
    advance(store, moved, (Step.CHECKPOINT_REQUESTED, 4201))
    waiting = report(
        1000,
        phase=RunPhase.WAITING,
        model=None,
        throughput=None,
        predicted_throughput=None,
        efficiency=None,
        checkpoint=CheckpointConfirmation(request_id=moved.id, blocked_s=2.0, size_bytes=4096),
    )
    store.agent.report(token_of(1), waiting, at=at(4203))
    advance(store, moved, (Step.REQUEUED, 4204))
    store.jobs.observe(
        [observation(1, JobState.COMPLETING, started_at=at(604), ended_at=at(4204))], at=at(4204)
    )
    advance(store, moved, (Step.RESHAPED, 4205), (Step.RELEASED, 4207), (Step.RUNNING, 4210))
    allocate(store, 1, 4210, {"n1": 2, "n2": 2}, "a100", 1)
    advance(store, moved, (Step.CONFIRMED, 4240))
