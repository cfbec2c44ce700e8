"""A real run against its simulation: the same jobs on a private Slurm, and in `pollux simulate`.

There are two sandboxes of 2 nodes × 4 fake GPUs, each with its own daemon. The journal of the first gives the
delays of moves. The jobs of the second are then simulated with their own measurements and those delays. Both
run at the same time, so that other load on the machine affects both alike. The jobs really train; their
micro-batches sleep as long as a device would compute, because the replicas share the machine's cores.

All of that is done twice: for jobs that are moved by requeue, and for jobs that can be moved in place.

    python -m benchmarks.sandbox --dir check-run [--only requeue|in-place]

Exits with 0 if the two average completion times differ by less than --tolerance, for both kinds of jobs. Ten
to twenty minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console

from examples.demo.run import EXAMPLES, command, daemon, private_slurm, processes_under, stop_leftovers
from pollux_slurm.model import JobState, ReallocationWay
from pollux_slurm.simulator import read_queue
from pollux_slurm.store import open_store

NUM_NODES, GPUS_PER_NODE = 2, 4
INTERVAL_S = 4.0
RESTART_DELAY_S = 8.0
WAYS = ("requeue", "in-place")
# The GPUs of the sandbox are like T4s: nothing is lost where a job has several wings on a node.
SETTINGS = {
    "requeue": "[moves]\nin_place = false\n",
    "in-place": '[moves]\nin_place = true\ngpu_types_without_nvlink = ["t4"]\n',
}
RHYTHM = {
    "POLLUX_AGENT_REPORT_INTERVAL_S": "2",
    "POLLUX_AGENT_POLL_INTERVAL_S": "0.5",
    "POLLUX_DAEMON_RESTART_DELAY_S": f"{RESTART_DELAY_S:g}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxJob:
    """A job that is submitted `at_s` after the first; `device` is its emulated device's times."""

    name: str
    at_s: float
    example: str
    sbatch: tuple[str, ...]
    epochs: int
    device: str
    seed: int = 0


def _charlm(name: str, at_s: float, device: str, *sbatch: str, epochs: int, seed: int) -> SandboxJob:
    return SandboxJob(
        name=name, at_s=at_s, example="charlm", sbatch=sbatch, epochs=epochs, device=device, seed=seed
    )


def _digits(name: str, at_s: float, device: str, *sbatch: str, epochs: int, seed: int) -> SandboxJob:
    return SandboxJob(
        name=name, at_s=at_s, example="digits", sbatch=sbatch, epochs=epochs, device=device, seed=seed
    )


# What the delays are calibrated on: nothing of it is compared.
CALIBRATION = (
    _digits("warm-a", 0, "0.04,0.010", "--gpus=1", "--max-gpus=4", epochs=28, seed=11),
    _digits("warm-b", 30, "0.02,0.012", "--gpus=2", "--max-gpus=4", epochs=18, seed=12),
    _charlm("warm-c", 60, "0.05,0.008", "--gpus=2", "--max-gpus=4", epochs=3, seed=13),
    _digits("warm-d", 95, "0.04,0.008", "--gpus=1", "--max-gpus=4", epochs=15, seed=14),
)
# The demo's jobs, longer and at fixed times, and a fourth. Device times are twice the demo's: the less of a
# step is the machine's own work, the fairer a stand-in it is for a device.
COMPARED = (
    _digits("digits-early", 0, "0.02,0.012", "--gpus=2", "--max-gpus=8", epochs=40, seed=0),
    _charlm("charlm", 40, "0.02,0.012", "--min-gpus=4", "--max-gpus=4", epochs=4, seed=0),
    _digits("digits-late", 60, "0.02,0.008", "--min-gpus=2", "--max-gpus=2", epochs=16, seed=1),
    _digits("digits-last", 100, "0.03,0.010", "--gpus=1", "--max-gpus=8", epochs=24, seed=2),
)


def run_jobs(
    jobs: Sequence[SandboxJob],
    directory: Path,
    *,
    way: str,
    timeout_s: float,
    console: Console,
    skipped_numbers: int = 0,
) -> str:
    """Run `jobs` under the daemon on a sandbox in `directory`; return the URL of the store.

    They are moved in the `way` of that name. Their numbers begin after `skipped_numbers`: those of two
    clusters on one machine had better differ. Exits with a message if a job has not completed in time.
    """
    stop_leftovers(directory)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    url = f"sqlite:///{directory}/pollux.db"
    with private_slurm(directory / "slurm") as slurm_env:
        settings = directory / "pollux.toml"
        settings.write_text(SETTINGS[way])
        env = {
            **os.environ,
            **slurm_env,
            "POLLUX_STORE_URL": url,
            "POLLUX_CONFIG": str(settings),
            **RHYTHM,
        }
        command("db", "init", env=env)
        for _ in range(skipped_numbers):
            number = slurm("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true", env=env)
            slurm("scancel", number, env=env)
        with daemon(directory / "daemon.log", env, INTERVAL_S):
            _submit_and_wait(jobs, url, directory, env, timeout_s, console)
    left = processes_under(directory)
    if left:
        raise SystemExit(f"processes left running: {left}")
    return url


def _submit_and_wait(
    jobs: Sequence[SandboxJob],
    url: str,
    directory: Path,
    env: Mapping[str, str],
    timeout_s: float,
    console: Console,
) -> None:
    waiting = sorted(jobs, key=lambda job: job.at_s)
    store = open_store(url)
    begin = time.monotonic()
    try:
        while (elapsed_s := time.monotonic() - begin) < timeout_s:
            if waiting and elapsed_s >= waiting[0].at_s:
                job = waiting.pop(0)
                number = _submit(job, directory, env)
                console.print(f"{elapsed_s:5.0f} s: {job.name} submitted as job {number}")
            records = store.jobs.all()
            bad = [one for one in records if one.state.is_over and one.state is not JobState.COMPLETED]
            if bad:
                raise SystemExit(f"job {bad[0].name} {bad[0].state.value}: see {directory}/{bad[0].name}.log")
            if not waiting and len(records) == len(jobs) and all(one.state.is_over for one in records):
                return
            time.sleep(0.25)
    finally:
        store.close()
    raise SystemExit(f"not all jobs completed within {timeout_s:.0f} s: see {directory}")


def slurm(*words: str, env: Mapping[str, str]) -> str:
    """Run one of Slurm's commands and return what it printed."""
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout.strip()


def _submit(job: SandboxJob, directory: Path, env: Mapping[str, str]) -> str:
    example = EXAMPLES / job.example
    return command(
        "sbatch",
        "--parsable",
        *job.sbatch,
        f"--checkpoint-dir={directory / 'checkpoints' / job.name}",
        f"--job-name={job.name}",
        f"--output={directory / job.name}.log",
        str(example / "train.sbatch"),
        f"--epochs={job.epochs}",
        f"--emulate-device={job.device}",
        f"--seed={job.seed}",
        "--target-accuracy=0",
        f"--result={directory / job.name}.json",
        env={
            **env,
            "POLLUX_EXAMPLE_DIR": str(example),
            "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        },
    ).strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Completion times in seconds by job, in the sandbox and simulated, and moves of running jobs.

    Moves are (by requeue, in place).
    """

    real_s: Mapping[str, float]
    simulated_s: Mapping[str, float]
    real_moves: tuple[int, int]
    simulated_moves: tuple[float, float]

    @property
    def difference(self) -> float:
        """The simulated average's distance from the real one, as a part of that."""
        return fmean(self.simulated_s.values()) / fmean(self.real_s.values()) - 1


def compare(compared: str, directory: Path, delays: Path, *, way: str) -> Comparison:
    """Simulate the jobs of the store `compared` with the delays in a file, and set both side by side."""
    jobs = export(compared, directory / "compared.json")
    output = command(
        "simulate",
        f"--traces={jobs}",
        f"--delays={delays}",
        "--rules=slurm",
        f"--nodes={NUM_NODES}",
        f"--gpus-per-node={GPUS_PER_NODE}",
        f"--interval={INTERVAL_S:g}",
        f"--restart-delay={RESTART_DELAY_S:g}",
        "--policy=pollux",
        *(("--in-place", "--several-wings") if way == "in-place" else ()),
        "--json",
    )
    summary = json.loads(output)
    store = open_store(compared)
    try:
        records = store.jobs.all()
        moves = Counter(
            move.way
            for move in store.journal.reallocations()
            if move.moves_running and move.step.value == "confirmed"
        )
    finally:
        store.close()
    real_s = {
        f"{one.slurm_job_id} {one.name}": (one.finished_at - one.submitted_at).total_seconds()
        for one in records
        if one.finished_at is not None
    }
    if set(real_s) != set(summary["jobs"]):
        raise SystemExit(f"simulated were {sorted(summary['jobs'])}, run {sorted(real_s)}")
    return Comparison(
        real_s=real_s,
        simulated_s=summary["jobs"],
        real_moves=(moves[ReallocationWay.REQUEUE], moves[ReallocationWay.IN_PLACE]),
        simulated_moves=(
            summary["restarts_per_job"] * len(real_s),
            summary["regroups_per_job"] * len(real_s),
        ),
    )


def export(url: str, file: Path) -> Path:
    """Export the jobs and delays of the store at `url` to `file`; return the file."""
    command("simulate", "export", f"--store={url}", f"--output={file}")
    return file


def show(found: Comparison, delays: Path, console: Console) -> None:
    """Print a line for each job, and the averages."""
    measured = read_queue(delays).delays
    assert measured is not None
    console.print(
        f"calibrated on {measured.num_moves} moves and {measured.num_starts} starts: notice "
        f"{measured.notice_s:.2f} s, checkpoint {measured.checkpoint_s:.2f} s, requeue to running "
        f"{measured.requeue_s:.2f} s, start {measured.start_s:.2f} s, launch {measured.launch_s:.2f} s + "
        f"{measured.launch_per_gpu_s:.2f} s a GPU",
        soft_wrap=True,
    )
    if measured.num_regroups:
        console.print(
            f"and on {measured.num_regroups} moves in place: warm-up {measured.warm_up_s or math.nan:.2f} s, "
            f"standstill {measured.standstill_s or math.nan:.2f} s",
            soft_wrap=True,
        )
    rows = [(name, real_s, found.simulated_s[name]) for name, real_s in found.real_s.items()]
    rows.append(("average", fmean(found.real_s.values()), fmean(found.simulated_s.values())))
    console.print(f"{'job':<20}{'sandbox (s)':>14}{'simulated (s)':>15}{'difference':>13}")
    for name, real_s, simulated_s in rows:
        console.print(f"{name:<20}{real_s:>14.1f}{simulated_s:>15.1f}{simulated_s / real_s - 1:>+13.1%}")
    (requeues, regroups), simulated = found.real_moves, found.simulated_moves
    console.print(
        f"moves of running jobs by requeue: {requeues}, simulated {simulated[0]:.0f}; "
        f"in place: {regroups}, simulated {simulated[1]:.0f}"
    )


def main() -> int:
    """Run both, simulate one, and compare, for each way; return 0 when all averages agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("check-run"), help="where everything is kept")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds that each run may take")
    parser.add_argument("--tolerance", type=float, default=0.10)
    parser.add_argument("--only", choices=WAYS, help="how the jobs are moved; by default one after the other")
    options = parser.parse_args()
    console = Console()
    differences = {}
    for way in [options.only] if options.only else WAYS:
        console.print(f"jobs that are moved {'in place' if way == 'in-place' else 'by requeue'}:")
        found = run_and_compare(options.dir.resolve() / way, way, options.timeout, console)
        differences[way] = found.difference
    return 0 if all(abs(one) <= options.tolerance for one in differences.values()) else 1


def run_and_compare(directory: Path, way: str, timeout_s: float, console: Console) -> Comparison:
    """Run both sandboxes, simulate the jobs of one, and print the comparison."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        calibration, compared = (
            pool.submit(
                run_jobs,
                jobs,
                directory / name,
                way=way,
                timeout_s=timeout_s,
                console=console,
                skipped_numbers=skipped,
            )
            for name, jobs, skipped in (("calibration", CALIBRATION, 0), ("compared", COMPARED, 40))
        )
    delays = export(calibration.result(), directory / "calibration.json")
    found = compare(compared.result(), directory, delays, way=way)
    show(found, delays, console)
    return found


if __name__ == "__main__":
    sys.exit(main())
