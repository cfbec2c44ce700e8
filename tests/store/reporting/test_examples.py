"""The queries of `sql/examples/`, on a day whose results are computed by hand."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pollux_slurm.resources import resource_dir
from pollux_slurm.store.contract.interface import Store
from tests.store import builders, centre
from tests.store.builders import at
from tests.store.schema.test_views import rows_of

EXAMPLES = {path.stem: path for path in sorted((resource_dir("sql") / "examples").glob("*.sql"))}

# Job 1 trained 5 * 700 s at 200 examples/s and efficiency 0.8, then from 4240 on 17 * 3000 s at 400 and 0.5.
# Midnight is at second 43200, 40 s before the end of its 13th sample: 38960 s lie before it.
FIRST_S, SECOND_S, BEFORE_S = 3500, 51000, 38960
ALLOCATED = (2 * 3600 + 4 * 54000) / 3600
TRAINED = (2 * FIRST_S + 4 * SECOND_S) / 3600
USEFUL_EXAMPLES = FIRST_S * 160 + SECOND_S * 200
GOODPUT = USEFUL_EXAMPLES / (FIRST_S + SECOND_S)
FAIR_SHARE_S = USEFUL_EXAMPLES / 200
RHO = 58210 / FAIR_SHARE_S
# Job 2 trained 6000 s of 7200 on one GPU; job 4 had four for 7200 s.
PHYSICS_ALLOCATED = 2 + 8

APPROX = 1e-5

EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "goodput_by_account": [
        (
            "vision",
            ALLOCATED,
            TRAINED,
            (2 * FIRST_S * 0.8 + 4 * SECOND_S * 0.5) / 3600,
            USEFUL_EXAMPLES,
        ),
        ("physics", PHYSICS_ALLOCATED, 6000 / 3600, 6000 / 3600, 6000 * 50),
    ],
    "gpu_hours_by_day": [
        (
            date(2026, 3, 1),
            PHYSICS_ALLOCATED + 2 + 4 * (43200 - 4210) / 3600,
            (6000 + 2 * FIRST_S + 4 * BEFORE_S) / (36000 + 7200 + 4 * (43200 - 4210)),
        ),
        (
            date(2026, 3, 2),
            4 * (58210 - 43200) / 3600,
            (SECOND_S - BEFORE_S) / (58210 - 43200),
        ),
    ],
    "top_users": [("ada", ALLOCATED, TRAINED), ("linus", 8.0, 0.0), ("grace", 2.0, 6000 / 3600)],
    "idle_gpu_hours": [
        ("4", "linus", "physics", "timeout", 8.0, 0.0),
        ("1", "ada", "vision", "completed", ALLOCATED - TRAINED, TRAINED / ALLOCATED),
    ],
    "lost_on_jobs_that_failed": [("timeout", 1, 8.0), ("failed", 1, 2.0), ("cancelled", 1, 0.0)],
    "waiting_times": [("physics", 2, (3600 + 2800) / 2, 3600.0), ("vision", 1, 604.0, 604.0)],
    "jobs_that_never_started": [("3", "ada", "vision", "cancelled", 7200.0)],
    "speedup_by_account": [
        (
            "vision",
            1,
            GOODPUT / centre.ONE_GPU_GOODPUT,
            GOODPUT / 200,
            (FIRST_S * 0.8 + SECOND_S * 0.5) / (FIRST_S + SECOND_S),
        )
    ],
    "worst_off_jobs": [
        ("1", "ada", "vision", RHO, 58210.0, FAIR_SHARE_S, 604.0, (2 + 4 + 4) / 3, (8 + 8 + 6) / 3)
    ],
    "fairness_by_account": [("vision", 1, RHO, RHO, 1.0)],
    # Four GPUs of each node from 600 to 4200 (an hour) and to 7800 (an hour): n0 is a t4, the others a100.
    "utilization_by_gpu_type": [
        ("a100", 3, 4 * 54000 / 3600 + 8, 3 * 4 * 2.0),
        ("t4", 1, 2 + 2.0, 4 * 2.0),
    ],
    "idle_nodes": [
        ("n0", "t4", 4.0, 2),
        ("n3", "a100", 8.0, 1),
        ("n1", "a100", 30.0, 2),
        ("n2", "a100", 30.0, 2),
    ],
    "prediction_errors": [("a100", 4, 2, 17, -0.1, 0.1), ("t4", 2, 1, 5, 0.1, 0.1)],
    "models_that_overestimate": [("ada", "1", 0, 5, 0.1)],
    "slowest_restarts": [("1", "ada", at(4200), 2, 4, 2.0, 6.0, 30.0, 39.0)],
    "cost_and_benefit_of_moves": [("grown", "requeue", 1, 39 * 2 / 3600, 200 / 160)],
    "moves_by_cause": [("decision", "requeue", 2, 1, 0, 0, 0, 39 * 2 / 3600)],
    "moves_that_failed": [("2", "grace", at(9000), "decision", "requeue", "failed", "its node went down")],
    "what_happened_to_a_job": [
        (at(0), "submitted", None, None, None, None, None),
        (at(604), "started", None, None, None, None, None),
        (at(604), "allocated", 2, 1, 3600.0, None, "n0:2"),
        (at(604), "run", 2, 1, 3599.0, None, "waiting"),
        (at(4200), "reallocation", 4, 2, None, None, "planned"),
        (at(4201), "reallocation", None, None, None, None, "checkpoint_requested"),
        (at(4203), "checkpoint", None, None, None, 2.0, "4096 bytes"),
        (at(4203), "reallocation", None, None, None, None, "checkpointed"),
        (at(4204), "reallocation", None, None, None, None, "requeued"),
        (at(4205), "reallocation", None, None, None, None, "reshaped"),
        (at(4207), "reallocation", None, None, None, None, "released"),
        (at(4210), "allocated", 4, 2, 54000.0, None, "n1:2+n2:2"),
        (at(4210), "reallocation", None, None, None, None, "running"),
        (at(4240), "run", 4, 2, 51000.0, None, "training"),
        (at(4240), "reallocation", None, None, None, None, "confirmed"),
        (at(58210), "finished", None, None, None, None, "completed"),
    ],
    "round_quality": [
        ("generalized-mean", "test", False, 3, 0.1, 0.5 + 0.42, 0.5 + 0.78, 2 + 5 + 9, 48, 2),
    ],
    "effect_of_declarations": [
        ("vision", "ada", "1", 1.5, 1.5, None),
        ("physics", "grace", "2", None, None, "it has passed what it declared"),
    ],
}


def test_that_each_example_has_an_expected_result() -> None:
    assert set(EXAMPLES) == set(EXPECTED)
    assert len(EXAMPLES) >= 20


@pytest.fixture(scope="module")
def answered(day: Store) -> dict[str, list[dict[str, Any]]]:
    """Return the answers to all questions."""
    return {name: rows_of(day, on_the_day(path)) for name, path in EXAMPLES.items()}


def on_the_day(path: Path) -> str:
    """Return a query as if it ran right after the hand-made day."""
    return (
        path.read_text(encoding="utf-8")
        .replace("(SELECT month_ago FROM calendar)", "'2026-02-10'")
        .replace("(SELECT MAX(job_id) FROM job_goodput)", "(SELECT MIN(job_id) FROM job_goodput)")
    )


def test_that_every_example_has_a_result_today(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    yesterday = datetime.now(timezone.utc).replace(hour=12, minute=0, second=0, microsecond=0)
    monkeypatch.setattr(builders, "T0", yesterday - timedelta(days=2))
    centre.fill(any_store)
    empty = [name for name, path in EXAMPLES.items() if not rows_of(any_store, path.read_text())]
    assert empty == []


def test_that_examples_cover_the_last_month_only(any_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "T0", datetime.now(timezone.utc) - timedelta(days=60))
    centre.fill(any_store)
    with_rows = [name for name, path in EXAMPLES.items() if rows_of(any_store, path.read_text())]
    assert with_rows == ["what_happened_to_a_job"]


def plain(value: Any) -> Any:
    """Return what SQLite keeps of a value as text or number, so that both databases are compared alike."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, date) and not hasattr(value, "tzinfo"):
        return value.isoformat()
    if hasattr(value, "astimezone"):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    if isinstance(value, str) and value.endswith(".000000"):
        return value.removesuffix(".000000")
    return pytest.approx(value, rel=APPROX, abs=APPROX) if isinstance(value, float) else value


@pytest.mark.parametrize("name", EXPECTED)
def test_that_results_equal_those_computed_by_hand(
    answered: dict[str, list[dict[str, Any]]], name: str
) -> None:
    found = [tuple(plain(value) for value in row.values()) for row in answered[name]]
    wanted = [tuple(plain(value) for value in row) for row in EXPECTED[name]]
    assert found == wanted


@pytest.mark.parametrize("path", EXAMPLES.values(), ids=lambda path: path.stem)
def test_that_every_example_begins_with_its_question(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("-- ")
    assert first.endswith("?")
