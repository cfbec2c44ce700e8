"""The pictures of the documentation, from real runs: the demo, and a year of made-up jobs.

    python examples/pictures.py --output docs/images

`make pictures` runs it, in about five minutes. It needs the extras `view` and `dev`, Slurm and Chromium.
While the demo's jobs train, `pollux top` and `pollux web` are photographed; then pages and plots of reports.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # run as a script: make the examples importable
    sys.path.insert(0, str(ROOT))

from examples.demo.run import slurm_environment  # noqa: E402
from pollux_slurm.config import load_config  # noqa: E402
from pollux_slurm.errors import StoreError  # noqa: E402
from pollux_slurm.report.frames import open_frames  # noqa: E402
from pollux_slurm.store import open_store  # noqa: E402
from pollux_slurm.store.contract.interface import Store  # noqa: E402

POLLUX = (sys.executable, "-m", "pollux_slurm")
WEB_PORT = 8299
DEMO_LIMIT_S = 900.0
SERVER_LIMIT_S = 120.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    output: Path = parser.parse_args().output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pollux-pictures-") as name, opened_browser() as browser:
        directory = Path(name)
        draw_demo(directory / "demo", output, browser)
        draw_year(directory, output, browser)
    for picture in sorted(output.iterdir()):
        print(f"{picture.name}: {picture.stat().st_size / 1024:.0f} KiB")


def draw_demo(directory: Path, output: Path, browser: Any) -> None:
    """Run the demo; draw `pollux top` and `pollux web` while it runs, its reports when it is over."""
    url = f"sqlite:///{directory}/pollux.db"
    with subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "demo" / "run.py"), "--dir", str(directory)]
    ) as demo:
        store = wait_for_two_jobs(url, demo)
        first = min(store.jobs.all(), key=lambda record: record.submitted_at).slurm_job_id
        os.environ.update(slurm_environment(directory / "slurm"))
        draw_terminal(url, output, browser)
        with web_pages(url) as address:
            photograph(browser, f"{address}/", output / "web.png", height=1000)
        if demo.wait(DEMO_LIMIT_S) != 0:
            sys.exit("the demo failed")
    begin = min(record.submitted_at for record in store.jobs.all()) - timedelta(seconds=5)
    with open_frames(url) as frames:
        plot = frames.cluster_plots(since=begin)["Who held what when"]
    # Room for names in a font that is wider than the one that was measured.
    plot.properties(padding={"left": 30, "right": 5, "top": 5, "bottom": 5}).save(
        str(output / "demo-gpus.svg")
    )
    page = directory / "job.html"
    run("report", "job", first, "--output", str(page), store=url)
    photograph(browser, page.as_uri(), output / "report-job.png", height=1300)
    store.close()


def draw_year(directory: Path, output: Path, browser: Any) -> None:
    """Draw a month's report and a simulation of its jobs, as the tutorials make them."""
    from examples.notebooks.sample_store import make_store

    url = make_store(directory / "sample.db", 2000)
    month = ("--since", "2025-11-01", "--until", "2025-12-01")
    page, jobs, queue = (directory / name for name in ("november.html", "jobs.json", "queue.html"))
    run("report", "cluster", *month, "--output", str(page), store=url)
    photograph(browser, page.as_uri(), output / "report-cluster.png", height=1300)
    run("simulate", "export", *month, "--output", str(jobs), store=url)
    cluster = ("--rules", "slurm", "--nodes", "2x4")
    policies = ("--policy", "pollux", "--policy", "slurm")
    data = json.loads(jobs.read_text(encoding="utf-8"))
    for job in data["measured-jobs"]["jobs"]:
        job["submitted_s"] /= 60  # a month in twelve hours
    jobs.write_text(json.dumps(data), encoding="utf-8")
    run("simulate", "--traces", str(jobs), *cluster, *policies, "--report", str(queue), store=url)
    photograph(browser, f"{queue.as_uri()}#plots-1", output / "simulate.png", height=1300)


def wait_for_two_jobs(url: str, demo: subprocess.Popen[bytes]) -> Store:
    """Return the demo's store once two of its jobs have run for a while."""
    deadline = time.monotonic() + DEMO_LIMIT_S
    while demo.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(StoreError):  # not made yet
            store = open_store(url)
            if (
                sum(record.sample is not None and record.finished_at is None for record in store.jobs.all())
                >= 2
            ):
                return store
            store.close()
        time.sleep(1.0)
    sys.exit("the demo ended before two jobs had trained")


def draw_terminal(url: str, output: Path, browser: Any) -> None:
    """Draw `pollux top` over a store, 80 columns wide."""
    from pollux_slurm.cli.top.app import TopApp

    config = load_config(os.environ)
    app = TopApp(replace(config, store=replace(config.store, url=url)), every_s=3600.0)
    app.title = "pollux top"

    async def look() -> str:
        async with app.run_test(size=(80, 26)) as pilot:
            for _ in range(300):
                await pilot.pause(0.1)
                if app.picture:
                    break
            await pilot.pause(0.5)
            return app.export_screenshot()

    def in_thread(make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """Run a coroutine: Playwright's own event loop runs in this thread."""
        with ThreadPoolExecutor() as threads:
            return threads.submit(lambda: asyncio.run(make())).result()

    drawing = output / "top.svg.tmp.html"
    drawing.write_text(in_thread(look), encoding="utf-8")
    photograph(browser, drawing.as_uri(), output / "top.png", height=720)
    drawing.unlink()


@contextmanager
def web_pages(url: str) -> Iterator[str]:
    """Run `pollux web` over a store; yield its address."""
    with subprocess.Popen([*POLLUX, "web", "--port", str(WEB_PORT), "--store", url]) as server:
        try:
            yield f"http://127.0.0.1:{WEB_PORT}"
        finally:
            server.terminate()


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Run Chromium; yield Playwright's browser."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def photograph(browser: Any, address: str, file: Path, *, height: int) -> None:
    """Write the top `height` pixels of a page, 1,100 wide, as it is after its scripts have drawn."""
    from playwright.sync_api import Error

    page = browser.new_page(viewport={"width": 1100, "height": height})
    deadline = time.monotonic() + SERVER_LIMIT_S
    while True:
        try:
            page.goto(address)
            break
        except Error:  # a server that does not listen yet
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
    page.wait_for_timeout(3000)
    page.screenshot(path=str(file))
    page.close()


def run(*arguments: str, store: str) -> None:
    """Run one `pollux` command."""
    subprocess.run(
        [*POLLUX, *arguments], env={**os.environ, "POLLUX_STORE_URL": store}, check=True, timeout=600
    )


if __name__ == "__main__":
    main()
