"""What jobs of one kind tell each other in a simulation."""

from __future__ import annotations

import dataclasses

from pollux_slurm.goodput import ExpectedProgress
from pollux_slurm.simulator.policies.adaptive.shared_models import SharedModels
from tests.policy.builders import linear_model

ONE = linear_model(seen=1)
assert ONE.throughput is not None
SLOW = dataclasses.replace(ONE, throughput=dataclasses.replace(ONE.throughput, beta_g=1e-2))
EIGHT = dataclasses.replace(ONE, max_gpus_seen=8, max_nodes_seen=2)


def test_that_a_job_learns_sizes_and_its_length_from_those_of_its_kind_that_agree_with_it() -> None:
    shared = SharedModels()
    assert shared.teach("a", "bert", {"t4": EIGHT}, 0.0) == ({"t4": EIGHT}, None)
    shared.teach("slow", "bert", {"t4": SLOW}, 0.0)
    for name, progress in (("a", 500.0), ("slow", 20.0)):
        shared.watch(name, "bert", progress, None, is_over=True)
    models, expected = shared.teach("b", "bert", {"t4": ONE}, 10.0)
    assert models["t4"].max_gpus_seen == 8
    assert expected == ExpectedProgress(low=500.0, median=500.0, high=500.0)
    shared.teach("d", "bert", {"t4": ONE}, 0.0)
    shared.watch("d", "bert", 800.0, None, is_over=True)
    assert shared.teach("b", "bert", {"t4": ONE}, 10.0)[1] == ExpectedProgress(
        low=500.0, median=500.0, high=800.0
    )
    assert shared.teach("c", "resnet", {"t4": ONE}, 10.0) == ({"t4": ONE}, None)


def test_that_many_jobs_that_train_leave_room_for_those_that_tell_a_length() -> None:
    shared = SharedModels()
    shared.teach("over", "bert", {"t4": ONE}, 0.0)
    shared.watch("over", "bert", 500.0, None, is_over=True)
    for number in range(20):
        shared.teach(str(number), "bert", {"t4": ONE}, 0.0)
    _, expected = shared.teach("new", "bert", {"t4": ONE}, 0.0)
    assert expected is not None
    assert expected.median == 500.0


def test_that_a_job_that_has_measured_nothing_starts_with_what_its_kind_knows() -> None:
    shared = SharedModels()
    shared.teach("a", "bert", {"t4": EIGHT}, 0.0)
    models, _ = shared.teach("b", "bert", {}, 0.0)
    assert models["t4"].max_gpus_seen == 8


def test_that_only_the_newest_teach_sizes() -> None:
    shared = SharedModels()
    shared.teach("large", "bert", {"t4": dataclasses.replace(ONE, max_gpus_seen=64)}, 0.0)
    shared.watch("large", "bert", 500.0, None, is_over=True)
    for number in range(12):
        found, expected = shared.teach(str(number), "bert", {"t4": ONE}, 0.0)
        assert found["t4"].max_gpus_seen == 64
        assert expected is not None
    found, expected = shared.teach("new", "bert", {"t4": ONE}, 0.0)
    assert found["t4"].max_gpus_seen == ONE.max_gpus_seen
    assert expected is not None
