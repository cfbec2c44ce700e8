"""What the store's tables tell of a job for its report."""

from __future__ import annotations

import pytest

from pollux_slurm.goodput import best_batch
from pollux_slurm.model import Configuration
from pollux_slurm.now.decision_text import told_of
from pollux_slurm.store import open_store
from tests.store.builders import (
    at,
    decision_of,
    observation,
    problem_of,
    registration,
    report,
    token_of,
)


def test_that_the_goodput_on_the_gpus_asked_for_is_predicted(store_url: str) -> None:
    """Six GPUs take two nodes of the last round, of four GPUs each."""
    store = open_store(store_url)
    store.jobs.register([registration(1, submitted_gpus=6), registration(2)], at=at(0))
    store.jobs.observe([observation(1, gpus={"n0": 2}, started_at=at(1)), observation(2)], at=at(1))
    assert (told_of(store, "1").asked_gpus, told_of(store, "1").asked_goodput) == (6, None), "no model yet"
    store.agent.report(token_of(1), report(1, throughput=100.0, efficiency=0.5), at=at(8))
    store.rounds.record(problem_of([1]), decision_of([1]), shadow=False, at=at(9))
    per_node = max(node.num_gpus for node in store.rounds.nodes())
    model = store.jobs.get("1").model
    assert model is not None
    expected = best_batch(model, Configuration(num_nodes=-(-6 // per_node), num_gpus=6))
    told = told_of(store, "1")
    assert expected is not None
    assert told.asked_goodput == pytest.approx(expected.goodput)
    assert told.explanation.startswith("job 1")
    assert (told_of(store, "2").explanation, told_of(store, "2").asked_goodput) == ("", None)
    store.close()
