"""The demo ends with the report of its own run."""

from __future__ import annotations

import os
from pathlib import Path

from examples.demo.run import write_reports
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
