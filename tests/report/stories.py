"""A store with jobs, runs and moves to report on: see `fill`."""

from __future__ import annotations

import shutil
from pathlib import Path

from pollux_slurm.model import BatchChoice, JobState
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Store
from tests.store.builders import (
    at,
    decision_of,
    move_running_job,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)

# Throughputs, in examples/s, and efficiencies that job 1 reports, 2 s apart: before its move and after it.
BEFORE = [(100.0, 0.5), (110.0, 0.5), (120.0, 0.6), (110.0, 0.6)]
AFTER = [(200.0, 0.75), (220.0, 0.8), (240.0, 0.8), (230.0, 0.8)]
HOSTILE = "=</title><script>document.title='taken'</script>\x1b[31m\u202etxt שלום"


def filled_store(template: Path, folder: Path) -> str:
    """Return the URL of a store with the story in it, a copy of an empty one."""
    file = folder / "pollux.db"
    shutil.copyfile(template, file)
    file.chmod(0o600)
    store = open_store(f"sqlite:///{file}")
    fill(store)
    store.close()
    return f"sqlite:///{file}"


def fill(store: Store) -> None:
    """Job 1 of vision has two GPUs from 4 s on, moves at 20 s, and has four from 29 s until it ends at 89 s.

    Job 2 of physics, with a hostile name, runs on; job 3 of no account waits. Two rounds decide about them.
    """
    store.jobs.register(
        [
            registration(1),
            registration(2, name=HOSTILE, account="physics", user_name="grace", user_id=1002),
            registration(3, name="waits", account="", user_name="edsger", user_id=1003),
        ],
        at=at(0),
    )
    store.jobs.observe(
        [
            observation(1, gpus={"n0": 2}, started_at=at(4), gpu_type="t4"),
            observation(2, gpus={"n3": 1}, started_at=at(5), gpu_type="t4"),
            observation(3, JobState.PENDING),
        ],
        at=at(5),
    )
    store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(6))
    for index, (throughput, efficiency) in enumerate(BEFORE):
        store.agent.report(
            token_of(1),
            report(index + 1, throughput=throughput, efficiency=efficiency),
            at=at(8 + 2 * index),
        )
    move_running_job(store, start=20)
    running = observation(1, gpus={"n1": 3, "n2": 1}, started_at=at(29), gpu_type="t4")
    store.jobs.observe([running, observation(2, gpus={"n3": 1}, started_at=at(5))], at=at(30))
    now = {"run_number": 1, "restart_count": 1, "gpus_per_node": (3, 1), "first_step_s": 5.0}
    larger = BatchChoice(global_batch_size=512, atomic_batch_size=128, accumulation_steps=0)
    for index, (throughput, efficiency) in enumerate(AFTER):
        store.agent.report(
            token_of(1),
            report(10 + index, throughput=throughput, efficiency=efficiency, batch=larger, **now),
            at=at(40 + 2 * index),
        )
    store.rounds.record(problem_of([1, 2]), decision_of([1, 2]), shadow=False, at=at(60))
    ended = observation(1, JobState.COMPLETED, ended_at=at(89))
    store.jobs.observe([ended, observation(2, gpus={"n3": 1}, started_at=at(5))], at=at(90))
