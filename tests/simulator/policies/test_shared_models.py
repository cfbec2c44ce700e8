"""What jobs of one kind tell each other in a simulation."""

from __future__ import annotations

import dataclasses

from pollux_slurm.model import BatchLimits, GoodputModel, GradientStatistics, ThroughputParameters
from pollux_slurm.simulator.policies.shared_models import SharedModels

THETA = ThroughputParameters(
    alpha_g=0.05, beta_g=0.001, alpha_n=0.3, beta_n=0.02, alpha_l=0.03, beta_l=0.004, gamma=1.5
)
ONE = GoodputModel(
    limits=BatchLimits(initial_batch_size=64, max_batch_size=1024, max_atomic=256),
    statistics=GradientStatistics(sqr=1.0, var=20.0),
    throughput=THETA,
    max_gpus_seen=1,
    max_nodes_seen=1,
)
EIGHT = dataclasses.replace(ONE, max_gpus_seen=8, max_nodes_seen=2)
SLOW = dataclasses.replace(ONE, throughput=dataclasses.replace(THETA, alpha_g=0.5, beta_g=0.01))


def test_that_a_job_learns_sizes_and_its_length_from_those_of_its_kind_that_agree_with_it() -> None:
    shared = SharedModels()
    assert shared.teach("a", "bert", {"t4": EIGHT}, 0.0) == ({"t4": EIGHT}, None)
    shared.teach("slow", "bert", {"t4": SLOW}, 0.0)
    for name, progress in (("a", 500.0), ("slow", 9.0)):
        shared.watch(name, "bert", progress, None, is_over=True)
    models, expected = shared.teach("b", "bert", {"t4": ONE}, 10.0)
    assert models["t4"].max_gpus_seen == 8
    assert expected == 500.0
    assert shared.teach("c", "resnet", {"t4": ONE}, 10.0) == ({"t4": ONE}, None)


def test_that_a_job_that_has_measured_nothing_starts_with_what_its_kind_knows() -> None:
    shared = SharedModels()
    shared.teach("a", "bert", {"t4": EIGHT}, 0.0)
    models, _ = shared.teach("b", "bert", {}, 0.0)
    assert models["t4"].max_gpus_seen == 8
