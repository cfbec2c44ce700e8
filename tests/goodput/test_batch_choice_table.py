"""Tables over many jobs and configurations: their entries are each pair's best batch."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pollux_slurm.goodput import (
    BatchChooser,
    GoodputTable,
    TableCache,
    evaluate,
    geometric_batches,
    goodput_table,
)
from pollux_slurm.goodput.batch_search import MAX_MICRO_BATCHES
from pollux_slurm.model import (
    BatchLimits,
    Configuration,
    GoodputModel,
    GradientStatistics,
    ThroughputParameters,
)
from tests.goodput.plain_batches import best_batch, best_of
from tests.goodput.test_batch_choice import adaptive, fixed, models, on


@settings(max_examples=80, deadline=None)
@given(st.lists(models(), min_size=1, max_size=4))
def test_that_a_table_is_each_job_in_each_configuration(jobs: list[GoodputModel]) -> None:
    configurations = [on(1, 1), on(1, 3), on(2, 6), on(4, 4), on(2, 1)]
    table = goodput_table(jobs, configurations)
    for row, model in enumerate(jobs):
        for column, configuration in enumerate(configurations):
            entry, single = table.estimate(row, column), best_batch(model, configuration)
            assert (entry is None) == (single is None)
            if entry is None or single is None:
                continue
            # Where two batches have the same goodput, rounding may choose either.
            assert entry.goodput == pytest.approx(single.goodput, rel=1e-12)
            if entry.batch == single.batch:
                assert entry.step_time_s == pytest.approx(single.step_time_s, rel=1e-12)
                assert entry.efficiency == pytest.approx(single.efficiency, rel=1e-12)
                assert entry.throughput == pytest.approx(single.throughput, rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(models(), st.integers(1, 70), st.booleans())
def test_that_a_geometric_table_is_the_best_of_the_geometric_batches(
    model: GoodputModel, num_gpus: int, spread: bool
) -> None:
    configuration = on(min(2, num_gpus) if spread else 1, num_gpus)
    entry = goodput_table([model], [configuration], geometric=True).estimate(0, 0)
    batches = geometric_batches(model.limits, num_gpus)
    single = best_of(model, configuration, batches)
    assert (entry is None) == (single is None)
    if entry is not None and single is not None:
        assert entry.batch in batches
        assert entry.goodput == pytest.approx(single.goodput, rel=1e-12)
        tried = [evaluate(model, configuration, batch) for batch in batches]
        most = max(one.goodput for one in tried if one is not None)
        assert single.goodput == pytest.approx(most, rel=1e-9)
    if model.throughput is not None:
        for some in (batches, list(batches)):
            kept = BatchChooser(model.throughput, model.limits, configuration, some)
            without = best_of(dataclasses.replace(model, statistics=None), configuration, batches)
            for found, wanted in ((kept.best(model.statistics), single), (kept.best(None), without)):
                assert (found is None) == (wanted is None)
                if found is not None and wanted is not None:
                    assert found.goodput == pytest.approx(wanted.goodput, rel=1e-12)
                    again = evaluate(model, configuration, found.batch)
                    assert again is not None
                    assert found.step_time_s == pytest.approx(again.step_time_s, rel=1e-12)
                    assert found.throughput == pytest.approx(again.throughput, rel=1e-12)


def test_that_masked_entries_are_left_out() -> None:
    mask = np.array([[True, False], [False, True]])
    table = goodput_table([fixed(8), fixed(16)], [on(1, 1), on(1, 2)], mask=mask)
    assert (table.goodput > 0).tolist() == mask.tolist()


def test_that_no_jobs_make_an_empty_table() -> None:
    assert goodput_table([], [on(1, 1)]).goodput.shape == (0, 1)


def test_that_hostile_limits_cost_a_table_bounded_work() -> None:
    table = goodput_table([adaptive(1, 10**9, max_atomic=1, accumulation=True)], [on(1, 1)])
    assert table.goodput[0, 0] > 0
    assert table.accumulation_steps[0, 0] < MAX_MICRO_BATCHES


@pytest.mark.parametrize("gamma", [1.0, 2.0, 10.0])
def test_that_tops_of_long_ranges_are_those_that_halving_finds(gamma: float) -> None:
    # 3,000 ranges at once: exact guesses, steep curves that mislead guesses, maxima at the ends, θ of zeros.
    # Some are found at once and dropped.
    jobs = [
        GoodputModel(
            limits=BatchLimits(initial_batch_size=8, max_batch_size=largest),
            statistics=GradientStatistics(sqr=sqr, var=var),
            throughput=ThroughputParameters(
                alpha_g=alpha, beta_g=beta, alpha_n=sync, beta_n=0.0, alpha_l=0.0, beta_l=0.0, gamma=gamma
            ),
        )
        for largest in (9, 1000, 10**9)
        for alpha, beta in ((0.0, 1e-3), (1e-7, 1e-6), (0.3, 1e-3), (0.3, 0.0), (50.0, 1e-9))
        for sync in (0.0, 1e-4, 0.7, 900.0)
        for sqr, var in ((0.0, 5.0), (3.0, 0.0), (1e-6, 1e3), (1.0, 4.0), (1.0, 1e5))
    ]
    sizes = [on(1, 1), on(2, 2), on(2, 5), on(8, 64)]
    table = goodput_table(jobs, sizes)
    for row, job in enumerate(jobs):
        for column, size in enumerate(sizes):
            single = best_batch(job, size)
            assert table.goodput[row, column] == pytest.approx(single.goodput if single else 0.0, rel=1e-12)


def test_that_many_hostile_limits_cost_a_table_bounded_memory() -> None:
    models = [adaptive(1 + job, 10**9, max_atomic=100, accumulation=True) for job in range(40)]
    sizes = [on(1, gpus) for gpus in range(1, 129)]
    tracemalloc.start()
    table = goodput_table(models, sizes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150e6  # all at once would take half a gigabyte
    for job, size in ((0, 0), (17, 3), (39, 127)):  # in three of the parts that it is searched in
        found = best_batch(models[job], sizes[size])
        assert found is not None
        assert table.goodput[job, size] == pytest.approx(found.goodput, rel=1e-12)


@pytest.mark.parametrize("geometric", [False, True])
def test_that_a_large_table_is_the_small_ones_bit_by_bit(geometric: bool) -> None:
    hostile = [adaptive(1 + job, 10**9, max_atomic=100, accumulation=True) for job in range(40)]
    usual = [adaptive(16, 64 * (1 + job), accumulation=job % 2 == 0) for job in range(80)]
    jobs = [one for trio in zip(hostile, usual, usual[40:], strict=False) for one in trio] + [fixed(8)] * 9
    sizes = [on(1, 1), on(1, 3), on(2, 2), on(2, 7), on(3, 20), on(2, 1)]
    table = goodput_table(jobs, sizes, geometric=geometric)
    for row, job in enumerate(jobs):
        small = goodput_table([job], sizes, geometric=geometric)
        for name in GoodputTable.__dataclass_fields__:
            assert getattr(table, name)[row].tolist() == getattr(small, name)[0].tolist()


# -------------------------------------------------------------------------------------------- the cache

# Two nodes for a single GPU cannot be.
KEYS = [(False, 1), (False, 2), (False, 4), (True, 4), (True, 7), (True, 1)]


def of_keys(jobs: list[GoodputModel], keys: list[tuple[bool, int]], *, geometric: bool) -> GoodputTable:
    return goodput_table(jobs, [on(1 + spread, gpus) for spread, gpus in keys], geometric=geometric)


@pytest.mark.parametrize("geometric", [False, True])
def test_that_entries_looked_up_one_by_one_are_those_of_the_table(geometric: bool) -> None:
    unknown = GoodputModel(limits=BatchLimits(initial_batch_size=8))
    jobs = [adaptive(16, 64 * (1 + row), accumulation=row % 2 == 0) for row in range(40)] + [
        fixed(8),
        unknown,
    ]
    table = of_keys(jobs, KEYS, geometric=geometric)
    cache = TableCache()
    rng = np.random.default_rng(1)
    for _ in range(60):
        some = rng.choice(len(jobs), size=rng.integers(0, 6)).tolist()
        columns = rng.choice(len(KEYS), size=rng.integers(0, 4)).tolist()
        found, rows = cache.lookup(
            [jobs[row] for row in some], [KEYS[c] for c in columns], geometric=geometric
        )
        assert found.tolist() == table.goodput[np.ix_(some, columns)].tolist()
        for row, job in zip(rows.tolist(), some, strict=True):
            column = int(rng.integers(len(KEYS)))
            assert cache.estimate(row, KEYS[column], geometric=geometric) == table.estimate(job, column)


def test_that_only_wanted_entries_are_returned_whatever_is_cached() -> None:
    jobs = [adaptive(16, 1024), adaptive(16, 4096)]
    table, cache = of_keys(jobs, KEYS, geometric=False), TableCache()
    wanted = np.array([[True, False, True, False, True, False], [False, True, False, True, False, False]])
    for _ in range(2):
        found, _ = cache.lookup(jobs, KEYS, wanted=wanted)
        assert found.tolist() == np.where(wanted, table.goodput, 0.0).tolist()
        all_of_it, _ = cache.lookup(jobs, KEYS)
        assert all_of_it.tolist() == table.goodput.tolist()


def test_that_a_search_that_raises_caches_nothing() -> None:
    # γ of 10 makes so short a synchronisation nothing beside a micro-batch, if that is not an error.
    theta = ThroughputParameters(
        alpha_g=0.1, beta_g=0.01, alpha_n=1e-40, beta_n=0.0, alpha_l=1e-40, beta_l=0.0, gamma=10.0
    )
    jobs, cache = [dataclasses.replace(adaptive(16, 1024), throughput=theta)], TableCache()
    with np.errstate(under="raise"), pytest.raises(FloatingPointError):
        cache.lookup(jobs, KEYS)
    found, _ = cache.lookup(jobs, KEYS)
    assert found.tolist() == of_keys(jobs, KEYS, geometric=False).goodput.tolist()


def test_that_a_faster_gpu_changes_times_and_not_the_batch() -> None:
    cache = TableCache()
    _, rows = cache.lookup([adaptive(16, 1024)], [(False, 4)])
    slow, fast = cache.estimate(int(rows[0]), (False, 4)), cache.estimate(int(rows[0]), (False, 4), 2.0)
    assert slow is not None
    assert fast is not None
    assert fast.batch == slow.batch
    assert fast.goodput == pytest.approx(2 * slow.goodput)
    assert fast.step_time_s == pytest.approx(slow.step_time_s / 2)


def test_that_a_cache_does_not_grow_without_bound() -> None:
    cache = TableCache()
    most = 0
    for round_ in range(300):
        cache.trim(3)
        jobs = [adaptive(16, 1024 + 3 * round_ + job) for job in range(3)]
        found, rows = cache.lookup(jobs, KEYS)
        assert found.tolist() == of_keys(jobs, KEYS, geometric=False).goodput.tolist()
        most = max(most, int(rows.max()))
    assert most < 2 * 3 + 256 + 3


def test_that_a_billionth_of_a_micro_batch_is_one_micro_batch() -> None:
    # As the artifact rounds, not even one micro-batch would be needed for one example of a billion that fit.
    model = GoodputModel(
        limits=BatchLimits(initial_batch_size=1, max_batch_size=10**9, accumulation=True),
        statistics=GradientStatistics(sqr=1.0, var=1.0),
        throughput=ThroughputParameters(
            alpha_g=1.0, beta_g=1.0, alpha_n=0.0, beta_n=0.0, alpha_l=0.0, beta_l=0.0, gamma=1.0
        ),
    )
    entry = goodput_table([model], [Configuration(num_nodes=1, num_gpus=1)], geometric=True).estimate(0, 0)
    assert entry is not None
    assert entry.goodput > 0
    assert entry.batch in geometric_batches(model.limits, 1)
