"""What a store says about the GPUs that users had, on both databases."""

from __future__ import annotations

from datetime import timedelta

from pollux_slurm.model import JobState
from pollux_slurm.store.contract.interface import Store, UsedGpus
from tests.store.builders import T0, at, observation, registration

# T0 is noon.
MIDNIGHT = T0 + timedelta(hours=12)
HOUR_S = 3600.0


def run(store: Store, number: int, gpus: int, start_s: float, end_s: float | None, **owner: object) -> None:
    store.jobs.register([registration(number, **owner)], at=at(start_s))
    started = observation(number, gpus={"n0": 1, "n1": gpus - 1}, started_at=at(start_s))
    store.jobs.observe([started], at=at(start_s))
    if end_s is not None:
        over = observation(number, JobState.COMPLETED, started_at=at(start_s), ended_at=at(end_s))
        store.jobs.observe([over], at=at(end_s))


def used(user: str, account: str, since_s: float, until_s: float, gpu_s: float) -> UsedGpus:
    return UsedGpus(user_name=user, account=account, since=at(since_s), until=at(until_s), gpu_s=gpu_s)


def test_that_ended_intervals_are_summed_by_day_and_those_that_last_are_returned(any_store: Store) -> None:
    run(any_store, 1, 2, 0.0, 18 * HOUR_S)
    run(any_store, 2, 4, 13 * HOUR_S, 14 * HOUR_S)
    bob = {"user_name": "bob", "user_id": 1002, "account": "speech"}
    run(any_store, 3, 3, 10 * HOUR_S, None, **bob)
    now_s = 20 * HOUR_S
    first = used("ada", "vision", -12 * HOUR_S, 12 * HOUR_S, 2 * 12 * HOUR_S)
    second = used("ada", "vision", 12 * HOUR_S, now_s, 2 * 6 * HOUR_S + 4 * HOUR_S)
    lasting = used("bob", "speech", 10 * HOUR_S, now_s, 3 * 10 * HOUR_S)
    found = any_store.jobs.used_gpus(since=at(0), at=at(now_s))
    assert sorted(found, key=lambda one: (one.user_name, one.since)) == [first, second, lasting]
    assert first not in any_store.jobs.used_gpus(since=MIDNIGHT, at=at(now_s))
