"""How long a job will be, by completed jobs of its kind."""

from __future__ import annotations

import pytest

from pollux_slurm.goodput import expected_progress


@pytest.mark.parametrize(
    ("progress", "lengths", "expected"),
    [
        (0.0, (), None),
        (0.0, (100.0,), 100.0),
        (50.0, (100.0, 120.0, 9000.0), 120.0),
        (100.0, (100.0, 300.0), 300.0),
        (299.0, (100.0, 300.0), 300.0),
        (300.0, (100.0, 300.0), 375.0),
        (374.0, (100.0, 300.0), 375.0),
        (375.0, (100.0, 300.0), None),
    ],
    ids=["nothing known", "one", "one of three disagrees", "as the shorter", "short of the longer", "as long",
         "a little longer", "refuted"],
)  # fmt: skip
def test_that_a_job_is_expected_to_end_as_those_of_its_kind_that_it_has_not_passed(
    progress: float, lengths: tuple[float, ...], expected: float | None
) -> None:
    assert expected_progress(progress, lengths) == expected
