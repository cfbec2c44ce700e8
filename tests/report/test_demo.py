"""The demo ends with the report of its own run."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from examples.demo import run as demo
from examples.demo.live_view import Story, screen
from examples.demo.summary import Expectation, print_idle_gpus, print_summary, three_sentences
from pollux_slurm.document.charts.time_axes import Range
from pollux_slurm.store import open_store
from pollux_slurm.store.reporting.queries import open_view_reader
from tests.cli.inside import pollux
from tests.report.stories import filled_store
from tests.store.builders import at


def test_that_the_demo_writes_a_page_for_each_job_and_the_run(
    store_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_this_process(*arguments: str, env: Mapping[str, str]) -> str:
        monkeypatch.setenv("POLLUX_STORE_URL", env["POLLUX_STORE_URL"])
        done = pollux(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    monkeypatch.setattr(demo, "command", in_this_process)
    env = {"POLLUX_STORE_URL": filled_store(store_template, tmp_path)}
    pages = demo.write_reports(tmp_path, env, at(-60), {"train-1": "1"})
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
    assert re.search(r"train-1 +requeue +n0:2 +n1:3\+n2:1 +confirmed .* 12\.5 s", text)
    assert "GPUs were idle for 30 s or more while a job could have used them, 1 time" in text
    waits = r"27 s +29 s +8 +1 train-1: n0:2 → n1:3\+n2:1, waits for Slurm to start it; .*; 3 waits: no round"
    assert re.search(waits, text)


def test_that_the_demo_tells_each_event_once_and_fits_80_columns(
    store_template: Path, tmp_path: Path
) -> None:
    store = open_store(filled_store(store_template, tmp_path))
    story = Story(at(0))
    told = [str(event) for event in story.update(store)]
    assert [line for line in told if "train-1" in line] == [
        "0:00  train-1 arrives and asks for 1 or more GPUs",
        "0:20  train-1 grows 2 → 4 GPUs by requeue: free GPUs make it faster",
        "0:36  train-1 trains with 4 GPUs on n1:3+n2:1; it stood still for 12.5 s",
        "1:29  train-1 has completed after 1:29; its GPUs are free",
    ]
    assert story.update(store) == []
    records = sorted(store.jobs.all(), key=lambda record: record.slurm_job_id)
    store.close()
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(screen(records, story.events, gpus_by_node={"n3": 4}, at_s=90))
    text = console.export_text()
    assert "n3 [ B . . . ]" in text
    assert "1 of 4 GPUs held by 1 jobs, 1 waiting" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_that_the_demo_ends_with_three_sentences(store_template: Path, tmp_path: Path) -> None:
    """The store's job 1 has goodputs of 50 to 160 with two GPUs, 80.6 on average, and of 126.5 over all."""
    result = tmp_path / "train-1.json"
    result.write_text('{"audit": [{"min": 1, "max": 1}, {"min": 0, "max": 1}]}')
    expected = {"1": Expectation(name="train-1", target=0.9, result=result)}
    range_ = Range(since=at(0), until=at(90))
    with open_view_reader(filled_store(store_template, tmp_path)) as reports:
        use = reports.gpu_use(range_.since, range_.until)
        idle, speed, samples = three_sentences(reports, use, range_, expected, 8)
    assert "of the 720 GPU seconds" in idle
    assert speed.startswith("train-1 trained 1.6 times as fast as with the 2 GPUs")
    assert samples == "Over 2 epochs of 3 jobs, samples were lost in 1 and used twice in 0."
