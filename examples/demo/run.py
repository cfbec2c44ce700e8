"""The demo: a private Slurm cluster, a store, the daemon, and three real training jobs on one machine.

`make demo` runs it. It uses the commands that a user and an admin would type; only the live view and the
summary read the store directly. It ends with an account of idle GPUs, three sentences with figures, and
reports of the run as HTML pages. It exits with 0 if every check of the summary passes.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console
from rich.live import Live

EXAMPLES = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):  # run as a script: make `examples.demo` importable
    sys.path.insert(0, str(EXAMPLES.parent))

from examples.demo.live_view import Story, gpu_picture, screen  # noqa: E402
from examples.demo.summary import Expectation, print_idle_gpus, print_summary, three_sentences  # noqa: E402
from pollux_slurm.document.charts.time_axes import Range  # noqa: E402
from pollux_slurm.store import open_store  # noqa: E402
from pollux_slurm.store.contract.interface import Store  # noqa: E402
from pollux_slurm.store.reporting.queries import open_view_reader  # noqa: E402

POLLUX = (sys.executable, "-m", "pollux_slurm")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoJob:
    """One job of the demo; `target` is the accuracy it must reach.

    It is submitted `after_s` after the previous job, and not before that one owns `previous_gpus` GPUs, for
    which it waits until `latest_s`. So the demo runs the same way on a slow machine.
    """

    name: str
    example: str
    target: float
    sbatch: tuple[str, ...]
    arguments: tuple[str, ...]
    after_s: float = 0.0
    previous_gpus: int = 0
    latest_s: float = 0.0


# The GPUs of the sandbox's nodes.
NODES = {"n0": 4, "n1": 4}

OPENING = """
Three jobs share 8 GPUs. The first may have up to 8 and changes its size in place, while it trains.
It gives way when the others arrive, and takes their GPUs when they end. This takes about three minutes.
"""

# Emulated device time of a micro-batch: a fixed part and a part per example, in seconds.
JOBS = (
    DemoJob(
        name="digits-early",
        example="digits",
        target=0.95,
        sbatch=("--gpus=2", "--max-gpus=8"),
        arguments=("--epochs=60", "--emulate-device=0.01,0.006"),
    ),
    DemoJob(
        name="charlm",
        example="charlm",
        target=0.45,
        sbatch=("--min-gpus=4", "--max-gpus=4"),
        arguments=("--epochs=6", "--emulate-device=0.01,0.004"),
        after_s=10,
        previous_gpus=4,
        latest_s=75,
    ),
    DemoJob(
        name="digits-late",
        example="digits",
        target=0.95,
        sbatch=("--min-gpus=2", "--max-gpus=2"),  # so that another job must make room
        arguments=("--epochs=15", "--emulate-device=0.01,0.004", "--seed=1"),
        after_s=20,
        latest_s=20,
    ),
)


def main() -> int:
    """Run the demo; return 0 when every check passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("demo-run"), help="folder of all its files")
    parser.add_argument("--interval", type=float, default=4.0, help="seconds between the daemon's rounds")
    parser.add_argument("--timeout", type=float, default=900.0, help="time limit of the demo in seconds")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = 80  # a log has no width
    directory = options.dir.resolve()
    stop_leftovers(directory)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    started_at = datetime.now(timezone.utc)

    with private_slurm(directory / "slurm") as slurm_env:
        url = f"sqlite:///{directory}/pollux.db"
        settings = directory / "pollux.toml"
        settings.write_text(SETTINGS)
        env = {**os.environ, **slurm_env, "POLLUX_STORE_URL": url, "POLLUX_CONFIG": str(settings), **FAST}
        command("db", "init", env=env)
        store = open_store(url)
        with daemon(directory / "daemon.log", env, options.interval):
            job_ids = submit_and_watch(store, directory, env, console, options.timeout)
        expectations = {
            job_ids[job.name]: Expectation(
                name=job.name, target=job.target, result=directory / f"{job.name}.json"
            )
            for job in JOBS
            if job.name in job_ids
        }
        is_right = print_summary(console, store, expectations, num_expected=len(JOBS))
        store.close()
        range_ = Range(since=started_at, until=datetime.now(timezone.utc))
        with open_view_reader(url) as reports:
            use = reports.gpu_use(range_.since, range_.until)
            sentences = three_sentences(reports, use, range_, expectations, sum(NODES.values()))
        print_idle_gpus(console, use, range_)
        pages = write_reports(directory, env, started_at, job_ids)
    left = processes_under(directory)
    console.print(f"processes left running: {len(left)}" + (f" {left}" if left else ""))
    console.print(f"logs, checkpoints and the database are in {directory}")
    console.rule("in three sentences")
    for sentence in sentences:
        console.print(sentence, highlight=False)
    console.print("\nLook at it in a browser:")
    for title, page in pages.items():
        console.print(f"  {title}: {page}", soft_wrap=True, highlight=False)
    missing = [name for name in job_ids if name not in pages["the run"].read_text(encoding="utf-8")]
    if missing:
        console.print(f"the report of the run does not show {', '.join(missing)}")
    return 0 if is_right and not left and not missing else 1


# A demo of minutes needs shorter intervals than a cluster, and expects new processes to be as fast as here.
FAST = {
    "POLLUX_AGENT_REPORT_INTERVAL_S": "2",
    "POLLUX_AGENT_POLL_INTERVAL_S": "0.5",
    "POLLUX_DAEMON_IN_PLACE_DELAY_S": "8",
}


# The GPUs of the sandbox are like T4s: nothing is lost where a job has several wings on a node.
SETTINGS = """[moves]
in_place = true
gpu_types_without_nvlink = ["t4"]
"""


def submit_and_watch(
    store: Store, directory: Path, env: Mapping[str, str], console: Console, timeout_s: float
) -> dict[str, str]:
    """Submit the jobs when they are due, show what happens and why, and return job ids by name.

    A terminal gets a picture that changes; a log gets each event once, with the GPUs after it.
    """
    waiting = list(JOBS)
    job_ids: dict[str, str] = {}
    begin = last_submitted = time.monotonic()
    story = Story(datetime.now(timezone.utc))
    console.print(OPENING, highlight=False)
    with Live(console=console, refresh_per_second=2, transient=False) as live:
        while (elapsed := time.monotonic() - begin) < timeout_s:
            if waiting and is_due(waiting[0], store, time.monotonic() - last_submitted):
                job = waiting.pop(0)
                job_ids[job.name] = submit(job, directory, env)
                last_submitted = time.monotonic()
            records = sorted(store.jobs.all(), key=lambda record: record.submitted_at)
            news = story.update(store)
            if console.is_terminal:
                live.update(screen(records, story.events, gpus_by_node=NODES, at_s=elapsed))
            elif news:
                marks = {record.slurm_job_id: mark for mark, record in enumerate(records)}
                console.print("\n".join(map(str, news)), highlight=False, markup=False)
                console.print("      ", gpu_picture(records, marks, NODES), highlight=False)
            finished = {record.slurm_job_id for record in records if record.state.is_over}
            if not waiting and finished >= set(job_ids.values()):
                break
            time.sleep(0.5)
    return job_ids


def write_reports(
    directory: Path, env: Mapping[str, str], started_at: datetime, job_ids: Mapping[str, str]
) -> dict[str, Path]:
    """Write a report page for each job and for the whole run; return them by title."""
    pages = {name: directory / f"report-{name}.html" for name in job_ids}
    for name, page in pages.items():
        command("report", "job", job_ids[name], "--output", str(page), env=env)
    whole = directory / "report.html"
    command("report", "cluster", "--since", started_at.isoformat(), "--output", str(whole), env=env)
    return {**pages, "the run": whole}


def is_due(job: DemoJob, store: Store, waited_s: float) -> bool:
    """Tell whether to submit `job` now, `waited_s` after the previous one."""
    gpus = max((record.allocation.num_gpus for record in store.jobs.all()), default=0)
    return waited_s >= job.latest_s or (waited_s >= job.after_s and gpus >= job.previous_gpus)


def submit(job: DemoJob, directory: Path, env: Mapping[str, str]) -> str:
    """Submit one job with `pollux sbatch`; return its job id."""
    example = EXAMPLES / job.example
    return command(
        "sbatch",
        "--parsable",
        *job.sbatch,
        f"--checkpoint-dir={directory / 'checkpoints' / job.name}",
        f"--job-name={job.name}",
        f"--output={directory / job.name}.log",
        str(example / "train.sbatch"),
        *job.arguments,
        f"--target-accuracy={job.target}",
        f"--result={directory / job.name}.json",
        "--audit",
        env={
            **env,
            "POLLUX_EXAMPLE_DIR": str(example),
            "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        },
    ).strip()


@contextmanager
def private_slurm(directory: Path) -> Iterator[dict[str, str]]:
    """Run a sandbox of 2 nodes × 4 fake GPUs; yield the environment variables for its use."""
    dir_option = ("--dir", str(directory))
    command(
        "sandbox", "up", *dir_option, "--nodes", str(len(NODES)), "--gpus-per-node", "4", "--gpu-type", "t4"
    )
    try:
        yield slurm_environment(directory)
    finally:
        command("sandbox", "down", *dir_option)


def slurm_environment(directory: Path) -> dict[str, str]:
    """Return the environment variables that point Slurm's commands at a sandbox."""
    lines = command("sandbox", "env", "--dir", str(directory)).splitlines()
    exports = (shlex.split(line)[1] for line in lines if line.startswith("export "))
    return dict(pair.split("=", 1) for pair in exports)


@contextmanager
def daemon(log: Path, env: Mapping[str, str], interval_s: float) -> Iterator[None]:
    """Run the daemon as its own process; stop it as systemd would."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*POLLUX, "daemon", "--interval", str(interval_s)], env=env, stdout=stream, stderr=stream
        )
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


def command(*arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Run one `pollux` command and return its output; an error ends the demo."""
    done = subprocess.run(
        [*POLLUX, *arguments], env=env, stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"pollux {shlex.join(arguments)} failed with exit code {done.returncode}")
    return done.stdout


def stop_leftovers(directory: Path) -> None:
    """Stop the sandbox of an interrupted earlier demo."""
    if (directory / "slurm").is_dir():
        subprocess.run(
            [*POLLUX, "sandbox", "down", "--dir", str(directory / "slurm")], check=False, timeout=120
        )


def processes_under(directory: Path) -> list[int]:
    """Return the processes with `directory` in their command line, except this one and its parents."""
    found, own, pid = [], set[int](), os.getpid()
    while pid > 0:
        own.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in own:
            continue
        try:
            text = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if str(directory) in text:
            found.append(int(entry.name))
    return found


if __name__ == "__main__":
    sys.exit(main())
