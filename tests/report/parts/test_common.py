"""What several reports have in common."""

from __future__ import annotations

from pollux_slurm.report.parts.common import share


def test_that_a_share_is_at_most_1_and_of_nothing_none() -> None:
    assert (share(1.0, 4.0), share(4.001, 4.0), share(0.0, 4.0)) == (0.25, 1.0, 0.0)
    assert share(0.0, 0.0) is None
