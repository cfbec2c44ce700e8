"""The demo ends with the report of its own run."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

from rich.console import Console

from examples.demo.run import write_reports
from examples.demo.summary import Expectation, print_idle_gpus, print_summary
from pollux_slurm.report.charts.time_axes import Range
from pollux_slurm.store import open_store
from pollux_slurm.store.reporting.queries import open_view_reader
from tests.report.stories import filled_store
from tests.store.builders import at


def test_that_the_demo_writes_a_page_for_each_job_and_the_run(store_template: Path, tmp_path: Path) -> None:
    env = {**os.environ, "POLLUX_STORE_URL": filled_store(store_template, tmp_path)}
    pages = write_reports(tmp_path, env, at(-60), {"train-1": "1"})
    assert list(pages) == ["train-1", "the run"], "the last one is the whole run's"
    job, run = (page.read_text(encoding="utf-8") for page in pages.values())
    assert "Job 1 <bdi>train-1</bdi>" in job
    for words in ("train-1", "Who held what when", "12.5 s"):
        assert words in run


def test_that_the_demo_tells_moves_and_idle_gpus(store_template: Path, tmp_path: Path) -> None:
    """Job 1 moves by requeue; job 3 waits all the time, and no round decides about it."""
    url = filled_store(store_template, tmp_path)
    store = open_store(url)
    expected = {"1": Expectation(name="train-1", target=0.9, result=tmp_path / "none.json")}
    console = Console(width=400, record=True, file=io.StringIO())
    assert not print_summary(console, store, expected, num_expected=1), "there is no result"
    range_ = Range(since=at(0), until=at(90))
    with open_view_reader(url) as reports:
        print_idle_gpus(console, reports.gpu_use(range_.since, range_.until), range_)
    store.close()
    text = console.export_text()
    assert "train-1: submitted at 0 s → 4 s n0:2 → 29 s n1:3+n2:1 → ended at 89 s" in text
    assert re.search(r"train-1 +requeue +n0:2 +n1:3\+n2:1 +confirmed .* 12\.5 s", text)
    assert "GPUs were idle for 30 s or more while a job could have used them, 1 time" in text
    waits = r"27 s +29 s +8 +1 train-1: n0:2 → n1:3\+n2:1, waits for Slurm to start it; .*; 3 waits: no round"
    assert re.search(waits, text)
