"""Reported models, compared with the progress of runs."""

from __future__ import annotations

import dataclasses

import pytest

from pollux_slurm.daemon.decide.model_checks import Models, doubts_about, model_doubt
from pollux_slurm.goodput import best_batch
from pollux_slurm.model import BatchLimits, Configuration, GoodputModel, GradientStatistics
from pollux_slurm.store.contract.interface import JobRecord, RecentRun
from pollux_slurm.store.sql_store import SqlStore
from tests.daemon.builders import MODEL, record
from tests.store.builders import at, observation, registration, report, token_of

ONE, TWO, FOUR = (Configuration(num_nodes=1, num_gpus=gpus) for gpus in (1, 2, 4))
MODELS: Models = (MODEL, ())


def doubt_about(one: JobRecord) -> str | None:
    """Return the doubt about a job among others, about which there are others."""
    others = [record("2", model=MODEL, recent_runs=(recent_run(0.001),)), record("3")]
    before, doubt, after = doubts_about([others[0], one, others[1]])
    assert before is not None
    assert after is None
    return doubt


def goodput(model: GoodputModel, configuration: Configuration) -> float:
    best = best_batch(model, configuration)
    assert best is not None
    return best.goodput


def recent_run(
    times: float, *, seconds: float = 300.0, on: Configuration = TWO, gpu_type: str | None = None
) -> RecentRun:
    """Return a run with `times` the progress that MODEL predicts."""
    made = times * goodput(MODEL, on) / MODEL.limits.initial_batch_size * seconds
    return RecentRun(made, ((on, seconds),), gpu_type)


@pytest.mark.parametrize(
    ("times", "counts"), [(1.0, True), (0.1, True), (0.02, True), (3.5, True), (0.005, False), (5.0, False)]
)
def test_that_a_model_counts_where_what_is_made_is_near(times: float, counts: bool) -> None:
    assert (model_doubt(MODELS, [recent_run(times)]) is None) is counts


def test_that_no_model_is_judged_by_a_moment() -> None:
    assert model_doubt(MODELS, [recent_run(0.001, seconds=119.0)]) is None
    assert model_doubt(MODELS, [recent_run(0.001, seconds=121.0)]) is not None


def test_that_what_a_job_makes_where_it_has_shrunk_does_not_clear_its_model() -> None:
    failed = [recent_run(0.001, on=FOUR), recent_run(0.001, on=FOUR)]
    assert model_doubt(MODELS, [recent_run(1.0, on=ONE), *failed]) is not None
    # It is accepted as soon as its model agrees with its progress.
    theta = MODEL.throughput
    assert theta is not None
    slow = dataclasses.replace(theta, alpha_g=1000 * theta.alpha_g, beta_g=1000 * theta.beta_g)
    assert model_doubt((dataclasses.replace(MODEL, throughput=slow), ()), failed) is None


def test_that_one_run_that_was_mostly_a_validation_is_accepted() -> None:
    """It was restored three steps before the end of an epoch, and moved when its validation was over."""
    assert model_doubt(MODELS, [recent_run(1.0), recent_run(0.005), recent_run(1.0)]) is None
    assert model_doubt(MODELS, [recent_run(1.0), recent_run(0.005), recent_run(0.005)]) is not None


def test_that_a_run_is_held_to_what_it_held_for_as_long_as_it_held_it() -> None:
    made = recent_run(1.0, seconds=900.0, on=FOUR).progress + recent_run(1.0, seconds=100.0, on=ONE).progress
    assert model_doubt(MODELS, [RecentRun(made, ((FOUR, 900.0), (ONE, 100.0)))]) is None
    reason = model_doubt(MODELS, [RecentRun(made / 1000, ((FOUR, 900.0), (ONE, 100.0), (FOUR, 900.0)))])
    assert reason is not None
    assert "on 4 GPUs of 1 node and 1 GPU of 1 node, but a run there made" in reason


def test_that_batches_that_were_more_efficient_earlier_are_accepted() -> None:
    """Late in training the noise is lower: 4 GPUs make less progress than earlier with large batches."""
    limits = dataclasses.replace(MODEL.limits, max_batch_size=64 * 64, max_atomic=1024)
    noisy, noiseless = (
        dataclasses.replace(MODEL, limits=limits, statistics=GradientStatistics(sqr=sqr, var=1.0))
        for sqr in (1e-6, 1e6)
    )
    made = 2.0 * goodput(noisy, FOUR) / limits.initial_batch_size * 300.0
    assert 2.0 * goodput(noisy, FOUR) > 4.0 * goodput(noiseless, FOUR)
    assert model_doubt((noiseless, ()), [RecentRun(made, ((FOUR, 300.0),))]) is None
    assert model_doubt((noiseless, ()), [RecentRun(3.0 * made, ((FOUR, 300.0),))]) is not None


def test_that_a_job_is_not_doubted_where_its_owners_limits_exclude_what_it_holds() -> None:
    """Batches of 4 at most, and never less than 64 of them together, need 16 GPUs; it was started on 2."""
    limits = BatchLimits(initial_batch_size=64, max_batch_size=1024, max_atomic=4)
    steep = dataclasses.replace(MODEL, limits=limits)
    assert model_doubt((steep, ()), [RecentRun(100.0, ((TWO, 300.0),))]) is None


def test_that_a_run_is_judged_by_the_model_of_its_type_of_gpu() -> None:
    theta = MODEL.throughput
    assert theta is not None
    slow = dataclasses.replace(
        MODEL,
        throughput=dataclasses.replace(theta, alpha_g=100 * theta.alpha_g, beta_g=100 * theta.beta_g),
    )
    known = (("t4", slow), ("a100", MODEL))
    fast, slow = recent_run(1.0, gpu_type="a100"), recent_run(0.01, gpu_type="t4")
    assert doubt_about(record("1", models=known, recent_runs=(slow, fast))) is None
    assert doubt_about(record("1", models=known, recent_runs=(slow, recent_run(1.0, gpu_type="t4")))) is None
    assert (
        doubt_about(record("1", models=known, recent_runs=(recent_run(1.0, gpu_type="t4"), slow))) is not None
    )
    for unknown in ("h100", None):
        assert (
            doubt_about(record("1", models=known, recent_runs=(recent_run(9.0, gpu_type=unknown),))) is None
        )


def test_that_a_job_without_reports_is_not_doubted() -> None:
    for known in (record("1"), record("1", model=None, recent_runs=(recent_run(9.0),))):
        assert doubt_about(known) is None


def test_that_a_rejected_model_is_not_accepted_again_with_each_new_run(clean_store: SqlStore) -> None:
    """It predicts a thousand times its progress, is rejected on 8 GPUs, keeps one, and is started again."""
    store, theta = clean_store, MODEL.throughput
    assert theta is not None
    times = {"alpha_g": theta.alpha_g / 1000, "beta_g": theta.beta_g / 1000}
    fast = dataclasses.replace(MODEL, throughput=dataclasses.replace(theta, **times))
    store.jobs.register([registration(1)], at=at(0))
    accepted = []

    def send(number: int, sequence: int, seconds: float, model: GoodputModel) -> None:
        message = report(sequence, run_number=number, restart_count=number, progress=seconds, model=model)
        store.agent.report(token_of(1), message, at=at(seconds))
        accepted.append(doubt_about(store.jobs.get("1")) is None)

    for number, gpus in enumerate((8, 1, 1)):
        begun = 1000.0 * number
        seen = observation(1, gpus={"n0": gpus}, started_at=at(begun), restart_count=number)
        store.jobs.observe([seen], at=at(begun))
        for sequence, seconds in enumerate((10.0, 70.0, 300.0)):
            send(number, sequence, begun + seconds, fast)
    assert accepted == [True, True, *[False] * 7]
    send(2, 9, 2400.0, MODEL)
    assert accepted[-1], "its model now agrees with its progress"
