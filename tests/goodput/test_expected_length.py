"""How long a job will be, by completed jobs of its kind."""

from __future__ import annotations

import pytest

from pollux_slurm.goodput import expected_progress


@pytest.mark.parametrize(
    ("progress", "lengths", "expected"),
    [
        (0.0, (), None),
        (0.0, (100.0,), (100.0, 100.0, 100.0)),
        (50.0, (120.0, 9000.0, 100.0), (100.0, 120.0, 9000.0)),
        (100.0, (300.0, 100.0, 310.0), (300.0, 300.0, 310.0)),
        (299.0, (100.0, 300.0), (300.0, 300.0, 300.0)),
        (300.0, (100.0, 300.0), (375.0, 375.0, 375.0)),
        (374.0, (100.0, 300.0), (375.0, 375.0, 375.0)),
        (375.0, (100.0, 300.0), None),
    ],
    ids=["nothing known", "one", "one of three disagrees", "two are left", "short of the longer", "as long",
         "a little longer", "refuted"],
)  # fmt: skip
def test_that_a_job_is_expected_to_end_as_those_of_its_kind_that_it_has_not_passed(
    progress: float, lengths: tuple[float, ...], expected: tuple[float, float, float] | None
) -> None:
    found = expected_progress(progress, lengths)
    assert (None if found is None else (found.low, found.median, found.high)) == expected
