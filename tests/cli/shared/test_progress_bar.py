"""What a long command shows where its errors go to no terminal."""

from __future__ import annotations

import pytest

from pollux_slurm.cli.shared.progress_bar import LINE_EVERY_S, ProgressBar


def test_that_a_file_gets_a_line_every_five_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 1000.0
    with ProgressBar(4, "4 simulations", clock=lambda: now_s) as bar:
        for _ in range(21):
            bar.update(1.0, "12 of 40 jobs ended")
            now_s += LINE_EVERY_S / 10
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "pollux: 4 simulations: 25 %, 12 of 40 jobs ended\n" * 2
