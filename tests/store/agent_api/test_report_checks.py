"""Reports are data from untrusted clients: what passes the checks is finite, bounded and storable."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pollux_slurm.errors import ReportRefusedError
from pollux_slurm.model import BatchChoice, BatchLimits, GoodputModel, GradientStatistics, JobWarning
from pollux_slurm.store.agent_api.report_checks import checked_report, checked_run_number
from pollux_slurm.store.contract.interface import CheckpointConfirmation, Report, RunPhase, Store
from tests.store.builders import (
    BATCH,
    MODEL,
    THETA,
    at,
    numbers_in,
    observation,
    registration,
    report,
    token_of,
)
from tests.store.conftest import wipe

HOSTILE = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    -1e-300,
    1e300,
    10**400,
    True,
    "1",
    "'; DROP TABLE jobs; --",
    b"1",
    [],
    {},
    1j,
    np.float64("nan"),
    np.array([1.0, 2.0]),
]
BEYOND = Fraction(10**400, 3)
"""A number beyond a float's range."""
NUMBERS = [
    "run_number",
    "restart_count",
    "sequence",
    "throughput",
    "predicted_throughput",
    "step_time_s",
    "efficiency",
    "num_steps",
    "progress",
    "epoch",
    "total_epochs",
    "first_step_s",
    "restore_s",
]


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
def test_that_a_hostile_number_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ReportRefusedError, match=field) as refused:
        checked_report(dataclasses.replace(report(1), **{field: value}))
    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"phase": "training"}, "phase"),
        ({"gpus_per_node": ()}, "gpus_per_node"),
        ({"gpus_per_node": (0,)}, "gpus_per_node"),
        ({"gpus_per_node": (2000,)}, "gpus_per_node"),
        ({"gpus_per_node": (1,) * 20_000}, "gpus_per_node must be 1 to 10000 nodes, not 20000 values"),
        ({"gpus_per_node": "44"}, "gpus_per_node"),
        ({"throughput": 0.0}, "throughput"),
        ({"efficiency": 0.0}, "efficiency"),
        *(
            ({name: 1e-200}, name)
            for name in ("throughput", "predicted_throughput", "step_time_s", "first_step_s", "efficiency")
        ),
        ({"efficiency": 1.01}, "efficiency"),
        ({"run_number": 1.5}, "run_number"),
        ({"num_steps": 10**16}, "num_steps"),
        ({"batch": (256, 64, 1)}, "batch"),
        ({"batch": dataclasses.replace(BATCH, atomic_batch_size=0)}, "batch.atomic_batch_size"),
        ({"batch": dataclasses.replace(BATCH, accumulation_steps=-1)}, "batch.accumulation_steps"),
        ({"batch": dataclasses.replace(BATCH, global_batch_size=math.nan)}, "batch.global_batch_size"),
        ({"checkpoint": "yes"}, "checkpoint"),
        (
            {"checkpoint": CheckpointConfirmation(request_id=1, blocked_s=math.inf, size_bytes=1)},
            "blocked_s",
        ),
        ({"checkpoint": CheckpointConfirmation(request_id=1, blocked_s=1, size_bytes=-1)}, "size_bytes"),
        ({"checkpoint": CheckpointConfirmation(request_id=2**64, blocked_s=1, size_bytes=1)}, "request_id"),
        ({"warnings": "replicas_differ"}, "warnings"),
        ({"warnings": ("replicas_differ",)}, "warnings"),
        ({"model": "model"}, "model"),
        ({"model": dataclasses.replace(MODEL, limits=None)}, "model.limits"),
        ({"model": dataclasses.replace(MODEL, limits="128")}, "model.limits"),
        ({"model": dataclasses.replace(MODEL, statistics=(1.0, 2.0))}, "model.statistics"),
        ({"model": dataclasses.replace(MODEL, throughput=[1.0] * 7)}, "model.throughput"),
        ({"model": dataclasses.replace(MODEL, max_gpus_seen=10**9)}, "max_gpus_seen"),
        (
            {"model": dataclasses.replace(MODEL, throughput=dataclasses.replace(THETA, gamma=math.nan))},
            "gamma",
        ),
        (
            {"model": dataclasses.replace(MODEL, throughput=dataclasses.replace(THETA, alpha_g=-1.0))},
            "alpha_g",
        ),
        (
            {"model": dataclasses.replace(MODEL, statistics=GradientStatistics(sqr=math.inf, var=1.0))},
            "statistics.sqr",
        ),
        *(
            ({"model": dataclasses.replace(MODEL, statistics=statistics)}, named)
            for statistics, named in (
                (GradientStatistics(sqr=1.0, var=1.0, noise_low=math.nan), "noise_low"),
                (GradientStatistics(sqr=1.0, var=1.0, noise_low=-1.0), "noise_low"),
                (GradientStatistics(sqr=1.0, var=1.0, noise_low=5.0, noise_high=math.inf), "noise_high"),
                (GradientStatistics(sqr=1.0, var=1.0, noise_low=5.0, noise_high=4.0), "noise_high"),
                (GradientStatistics(sqr=1.0, var=1.0, noise_high=4.0), "noise_high"),
            )
        ),
        (
            {"model": dataclasses.replace(MODEL, limits=BatchLimits(initial_batch_size=10**12))},
            "initial_batch_size",
        ),
        (
            {"model": dataclasses.replace(MODEL, throughput=dataclasses.replace(THETA, alpha_g=BEYOND))},
            "alpha_g",
        ),
    ],
)
def test_that_a_bad_part_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ReportRefusedError, match=named):
        checked_report(report(1, **changes))


def test_that_a_number_of_too_many_digits_to_be_printed_is_refused() -> None:
    limits = dataclasses.replace(MODEL.limits, accumulation=10**5000)  # type: ignore[arg-type]
    with pytest.raises(ReportRefusedError, match="accumulation"):
        checked_report(report(1, model=dataclasses.replace(MODEL, limits=limits)))


def test_that_what_is_no_report_is_refused() -> None:
    for sent in (None, {"run_number": 0}, "report"):
        with pytest.raises(ReportRefusedError, match="a Report"):
            checked_report(sent)  # type: ignore[arg-type]
    for number in (-1, 10**9, "0", None, math.nan):
        with pytest.raises(ReportRefusedError, match="run_number"):
            checked_run_number(number)  # type: ignore[arg-type]


def test_that_a_good_report_passes_unchanged() -> None:
    good = report(3, checkpoint=CheckpointConfirmation(request_id=7, blocked_s=0.25, size_bytes=10**9))
    assert checked_report(good) == good


def test_that_rounding_above_an_efficiency_of_one_is_forgiven() -> None:
    assert checked_report(report(1, efficiency=1.0000000002)).efficiency == 1.0


def test_that_numbers_of_numpy_become_plain_ones() -> None:
    limits = BatchLimits(initial_batch_size=np.int64(32), max_batch_size=np.int32(64))  # type: ignore[arg-type]
    model = GoodputModel(limits=limits, max_gpus_seen=np.int64(2), max_nodes_seen=np.int64(1))  # type: ignore[arg-type]
    checked = checked_report(
        report(np.int64(4), throughput=np.float32(1.5), gpus_per_node=(np.int32(2),), model=model)
    )
    assert (checked.sequence, checked.throughput, checked.gpus_per_node) == (4, 1.5, (2,))
    assert checked.model is not None
    for number in (checked.sequence, checked.gpus_per_node[0], checked.model.limits.initial_batch_size):
        assert type(number) is int
    assert type(checked.throughput) is float


# ------------------------------------------------------------------------------------------- anything at all

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.integers(min_value=0, max_value=10),
    st.floats(min_value=0.001, max_value=10.0),
)
sizes = st.one_of(anything, st.lists(st.integers(-1, 9) | anything, max_size=4).map(tuple))
batches = st.none() | st.builds(
    BatchChoice, global_batch_size=anything, atomic_batch_size=anything, accumulation_steps=anything
)
thetas = st.builds(type(THETA), **dict.fromkeys((f.name for f in dataclasses.fields(THETA)), anything))
models = st.none() | st.builds(
    GoodputModel,
    limits=st.just(MODEL.limits)
    | st.builds(
        BatchLimits,
        initial_batch_size=anything,
        max_batch_size=anything,
        min_atomic=anything,
        max_atomic=anything,
        accumulation=anything,
    ),
    statistics=st.none()
    | st.builds(GradientStatistics, sqr=anything, var=anything, noise_low=anything, noise_high=anything),
    throughput=st.none() | st.just(THETA) | thetas,
    max_gpus_seen=anything,
    max_nodes_seen=anything,
)
checkpoints = st.none() | st.builds(
    CheckpointConfirmation, request_id=anything, blocked_s=anything, size_bytes=anything
)
fair = {
    "run_number": st.integers(0, 3),
    "restart_count": st.integers(0, 3),
    "sequence": st.integers(0, 10**12),
    "phase": st.sampled_from(RunPhase),
    "gpus_per_node": st.lists(st.integers(1, 8), min_size=1, max_size=4).map(tuple),
    "num_steps": st.integers(0, 10**15),
    "progress": st.floats(0, 1e18),
    "epoch": st.integers(0, 10**9),
    "efficiency": st.none() | st.floats(1e-300, 1.0),
    "throughput": st.none() | st.floats(1e-300, 1e12),
    "batch": batches | st.just(BATCH),
    "model": models | st.just(MODEL),
    "checkpoint": checkpoints,
    "warnings": st.lists(st.sampled_from(JobWarning), max_size=4).map(tuple),
}
foul = dict.fromkeys(NUMBERS, anything) | {"gpus_per_node": sizes, "phase": anything, "warnings": anything}
reports = st.builds(Report, **fair) | st.builds(
    Report,
    **{key: strategy | foul.get(key, strategy) for key, strategy in fair.items()},
    total_epochs=anything,
    first_step_s=anything,
    restore_s=anything,
    step_time_s=anything,
)


@given(sent=reports)
@settings(max_examples=300, deadline=None)
def test_that_any_report_is_either_refused_or_finite_and_checked_once(sent: Report) -> None:
    try:
        checked = checked_report(sent)
    except ReportRefusedError:
        return
    assert checked_report(checked) == checked
    for number in numbers_in(checked):
        assert math.isfinite(number)
        assert abs(number) < 2**63


@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=reports)
def test_that_what_passes_the_checks_the_database_takes(
    request: pytest.FixtureRequest, backend: str, sent: Report
) -> None:
    store: Store = request.getfixturevalue(f"{backend}_store")
    wipe(store)
    store.jobs.register([registration(1)], at=at(0))
    store.jobs.observe([observation(1, gpus={f"n{number}": 8 for number in range(4)})], at=at(0))
    try:
        store.agent.report(token_of(1), sent, at=at(1))
    except ReportRefusedError:
        assert store.history.runs("1") == ()
        return
    record = store.jobs.get("1")
    assert record.run is not None
    assert record.run.gpus_per_node == checked_report(sent).gpus_per_node
    assert record.model == checked_report(sent).model
