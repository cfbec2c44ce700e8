"""Themis: its auction on numbers by hand, and its leases."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from pollux_slurm.simulator import Cluster
from pollux_slurm.simulator.policies import ThemisPolicy
from pollux_slurm.simulator.policies.themis import Bid, auction
from tests.simulator.rated import hours, job_of, one_gpu_cluster, run_rated


def bid(name: str, *gains: float) -> Bid:
    """Return a bid of 1/ρ with 0, 1, 2, ... GPUs."""
    return Bid(name=name, log_values=np.log(gains))


def test_that_bidders_who_hinder_nobody_keep_what_they_win() -> None:
    """Each takes at most 4 of the 8 GPUs, so no other would have more without it."""
    bids = [bid(name, *range(1, 6)) for name in ("a", "b")]
    assert auction(bids, 8) == {"a": 4, "b": 4}


def test_that_a_winner_pays_with_a_part_of_its_gpus() -> None:
    """1/ρ = 1 + g: both win 4, but alone each would have 9 instead of 5, and keeps 5/9 of 4 GPUs."""
    bids = [bid(name, *range(1, 10)) for name in ("a", "b")]
    assert auction(bids, 8) == {"a": 2, "b": 2}


def test_that_gpus_go_where_the_product_is_largest() -> None:
    """3·1 = 3 for two GPUs to a, 2·4 = 8 for one each, 1·5 = 5 for two to b; a alone would have 3, b 5."""
    assert auction([bid("a", 1, 2, 3), bid("b", 1, 4, 5)], 3) == {"a": 1, "b": 1}


def test_that_leases_alternate_between_equal_jobs() -> None:
    """One GPU, leases of 1,200 s in rounds of 300 s: the job that waited has the worse ρ at their ends."""
    rates = {name: {"t4": 1.0} for name in ("a", "b")}
    result = run_rated(
        ThemisPolicy(), one_gpu_cluster("t4", interval_s=300.0), rates, hours("a", 1), hours("b", 1)
    )
    turns = [next(iter(record.allocations)) for record in result.rounds]
    assert [len(list(turn)) for _, turn in groupby(turns)][:5] == [4] * 5


def test_that_only_the_worst_off_are_invited_and_others_get_the_rest() -> None:
    """Five jobs: one is invited, the oldest. It takes its 2 GPUs; the others get the last 2 one by one."""
    linear = {gpus: float(gpus) for gpus in (1, 2)}
    ages_s = (100.0, 9000.0, 0.0, 50.0, 20.0)
    jobs = [
        job_of(
            hours(f"j{index}", 1.0, "m (batch size 8)", num_replicas=2, submitted_s=9000.0 - age_s), linear
        )
        for index, age_s in enumerate(ages_s)
    ]
    given = ThemisPolicy().allocate(9000.0, jobs, Cluster(num_nodes=1, gpus_per_node=4))
    counts = {name: sum(gpus for _, gpus in allocation) for name, allocation in given.items()}
    assert counts == {"j1": 2, "j0": 1, "j3": 1}


def test_that_a_fair_finish_is_that_on_an_equal_part_of_the_cluster() -> None:
    """Two of four GPUs would make `scales` twice as fast, and `flat` no faster: `scales` is worse off."""
    jobs = [
        job_of(hours(name, 1.0, f"{name} (batch size 8)", num_replicas=4, submitted_s=9000.0), rates)
        for name, rates in (
            ("flat", {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}),
            ("scales", {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}),
        )
    ]
    given = ThemisPolicy().allocate(9100.0, jobs, Cluster(num_nodes=1, gpus_per_node=4))
    assert given == {"scales": ((0, 4),)}
