"""Whether jobs that move in place delay others: the starts of rigid jobs on a private Slurm, run by run.

    python -m benchmarks.rigid_jobs [--minutes 30] [--runs 3] [--seed 1]
    python -m benchmarks.rigid_jobs --plain [--minutes 10] [--seed 1]

The same rigid jobs (plain sbatch, no training) and the same trainings are submitted at the same times in each
run. In the first runs all trainings move by requeue; in the last one, every other one moves in place. Each
rigid job's wait there is compared with the range of its waits in the others. The runs are made side by side,
on a private Slurm each, so that what else the machine does is the same for all.

With `--plain`, one run has no daemon: plain Slurm is compared with the daemon under its default policy, on a
mixed load, in which some rigid jobs have no GPUs or two nodes. Each job that waits longer with the daemon by
more than five seconds is listed with the moves that were under way when it came, and those that began later.
So is each training that ended later. A move waits for the end of an epoch that is less than a minute away.
The epochs of most real trainings are longer, those here are not: so here it waits for none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pollux_slurm.config import SlurmConfig
from pollux_slurm.model import JobState
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.client import SlurmClient
from pollux_slurm.slurm.connection import connect
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Reallocation

POLLUX = (sys.executable, "-m", "pollux_slurm")
DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits"
SETTINGS = '[moves]\ngpu_types_without_nvlink = ["*"]\n'
BESIDE_PLAIN = "[agent]\nepoch_end_wait_s = 0\n"
# Moves that cost next to nothing: of trainings of some minutes, there are many to compare.
MANY_MOVES = '[policy]\nobjective = "generalized-mean"\npenalty = "amortised"\nhorizon_s = 36000\n'
NODES, GPUS_PER_NODE = 2, 4
# Mean seconds between two submissions, and how long rigid jobs last.
RIGID_EVERY_S, RIGID_LASTS_S = 40.0, (10.0, 60.0)
TRAINING_EVERY_S, TRAINING_EPOCHS = 75.0, (6, 16)
# Long passes: of the processes of four clusters, most must wait for their emulated devices.
DEVICE = "0.05,0.02"
DRAIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job of the workload: `epochs` of a training, or a rigid job of `lasts_s`; `gpus` on each node."""

    at_s: float
    gpus: int
    nodes: int = 1
    epochs: int = 0
    lasts_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """How long a rigid job waited, and the moves from its arrival to its start."""

    wait_s: float
    moves: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The waits of the rigid jobs, and the seconds from submission to end of each training, None without."""

    waits: list[Wait]
    trainings_s: list[float | None]


def workload(minutes: float, seed: int, *, mixed: bool = False) -> list[Submission]:
    """Return the submissions of a run in order of time; the same for the same seed."""
    sizes = [(1, 1), (1, 1), (2, 1), (4, 1), *([(0, 1), (2, 2)] if mixed else [])]
    rng, found = random.Random(seed), []
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1 / RIGID_EVERY_S)) < 60 * minutes:
        gpus, nodes = rng.choice(sizes)
        found.append(Submission(at_s=at_s, gpus=gpus, nodes=nodes, lasts_s=rng.uniform(*RIGID_LASTS_S)))
    at_s = 0.0
    while (at_s := at_s + rng.expovariate(1 / TRAINING_EVERY_S)) < 60 * minutes:
        found.append(Submission(at_s=at_s, gpus=rng.choice((1, 2)), epochs=rng.randint(*TRAINING_EPOCHS)))
    return sorted(found, key=lambda one: one.at_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of submissions (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="without moves in place (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="compare plain Slurm with the daemon")
    options = parser.parse_args()
    jobs = workload(options.minutes, options.seed, mixed=options.plain)
    if options.plain:
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
            settings = [SETTINGS + BESIDE_PLAIN] * 2
            plain, beside = executor.map(run, [jobs] * 2, ["plain", "requeue"], settings)
        compare(jobs, plain.waits, beside.waits)
        compare_trainings(plain.trainings_s, beside.trainings_s)
        return
    with ProcessPoolExecutor(options.runs + 1, multiprocessing.get_context("spawn")) as executor:
        runs = [
            executor.submit(run, jobs, "in_place" if number == options.runs else "requeue")
            for number in range(options.runs + 1)
        ]
        *without, within = ([wait.wait_s for wait in one.result().waits] for one in runs)
    report(without, within)


def run(jobs: Sequence[Submission], how: str, settings: str = SETTINGS + MANY_MOVES) -> Outcome:
    """Submit all jobs at their times, and return how they fared.

    `how` trainings move: by "requeue", every other one "in_place", or not at all without a daemon ("plain").
    """
    folder = Path(tempfile.mkdtemp(prefix="pollux-rigid-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        sandbox = Sandbox.up(
            folder / "s", [NodeGroup(num_nodes=NODES, gpus_per_node=GPUS_PER_NODE)], timeout_s=600
        )
        try:
            (folder / "pollux.toml").write_text(settings)
            return _run(sandbox, folder, jobs, how)
        finally:
            sandbox.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(sandbox: Sandbox, folder: Path, jobs: Sequence[Submission], how: str) -> Outcome:
    url = f"sqlite:///{folder}/pollux.db"
    store = open_store(url, create=True)
    env = {
        **os.environ,
        **sandbox.env,
        "PATH": f"{Path(sys.executable).parent}:{sandbox.env.get('PATH', os.environ['PATH'])}",
        "POLLUX_STORE_URL": url,
        "POLLUX_CONFIG": f"{folder}/pollux.toml",
        "POLLUX_EXAMPLE_DIR": str(DIGITS),
        "POLLUX_AGENT_REPORT_INTERVAL_S": "1",
        "POLLUX_AGENT_POLL_INTERVAL_S": "0.5",
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }
    rigid: list[str] = []
    trainings: dict[str, datetime] = {}
    ends: dict[str, datetime] = {}
    slurm, pause = connect(SlurmConfig(), env), threading.Event()
    starts: dict[str, tuple[datetime, datetime]] = {}
    with nullcontext() if how == "plain" else daemon(env, folder / "daemon.log"):
        began = time.monotonic()
        for job in jobs:
            while (left_s := job.at_s - (time.monotonic() - began)) > 0:
                pause.wait(min(left_s, 5.0))
                note_times(slurm, rigid, starts, ends)
            if job.epochs:
                in_place = how == "in_place" and len(trainings) % 2 == 0
                number = submit_training(job, len(trainings), env, folder, in_place=in_place)
                # A requeue resets Slurm's.
                trainings[number] = datetime.now(timezone.utc)
            else:
                rigid.append(submit_rigid(job, env, folder))
        deadline = time.monotonic() + DRAIN_S
        while len(starts) < len(rigid) and time.monotonic() < deadline:
            pause.wait(5.0)
            note_times(slurm, rigid, starts, ends)
        moves = store.journal.reallocations()
        ways = {
            way: sum(m.way.value == way and m.step.value == "confirmed" for m in moves)
            for way in ("requeue", "in_place")
        }
        print(
            f"{how}: {len(trainings.keys() & ends)} of {len(trainings)} "
            f"trainings completed, {len(rigid)} rigid jobs; confirmed moves: {ways}",
            flush=True,
        )
        subprocess.run(["scancel", "--user", str(os.getuid())], env=env, check=False)
    store.close()
    waits = [
        Wait(
            wait_s=(starts[number][1] - starts[number][0]).total_seconds(),
            moves=moves_between(moves, *starts[number]),
        )
        if number in starts
        else Wait(wait_s=float("inf"))
        for number in rigid
    ]
    return Outcome(
        waits=waits,
        trainings_s=[
            (ends[number] - came_at).total_seconds() if number in ends else None
            for number, came_at in trainings.items()
        ],
    )


def note_times(
    slurm: SlurmClient,
    rigid: Sequence[str],
    starts: dict[str, tuple[datetime, datetime]],
    ends: dict[str, datetime],
) -> None:
    """Note when rigid jobs came and started, and when jobs ended, while Slurm still has them."""
    for job in slurm.snapshot().jobs:
        if job.state is JobState.COMPLETED and job.ended_at is not None:
            ends[job.job_id] = job.ended_at
        if job.job_id in rigid and job.started_at is not None and job.submitted_at is not None:
            starts[job.job_id] = job.submitted_at, job.started_at


def moves_between(moves: Sequence[Reallocation], came_at: datetime, started_at: datetime) -> str:
    """Return the moves under way at some time between a job's arrival and its start, and when they were."""
    found = []
    for move in moves:
        began_s = (move.times[0][1] - came_at).total_seconds()
        ended_s = (move.times[-1][1] - came_at).total_seconds() if move.step.is_end else float("inf")
        if ended_s > 0 and move.times[0][1] < started_at:
            found.append(
                f"job {move.slurm_job_id} {move.source} → {move.target} from {began_s:.0f} to {ended_s:.0f} s"
            )
    return "; ".join(found)


def submit_rigid(job: Submission, env: dict[str, str], folder: Path) -> str:
    command = [
        *("sbatch", "--parsable", "--output=/dev/null", f"--nodes={job.nodes}", "--mem=100M", "--time=5"),
        # One of four GPUs wants all CPUs of a node: no anchor may be there.
        *((f"--gpus-per-node={job.gpus}", "--cpus-per-gpu=2") if job.gpus else ("--cpus-per-task=4",)),
        f"--wrap=sleep {job.lasts_s:.0f}",
    ]
    done = subprocess.run(
        command, env=env, cwd=folder, check=True, capture_output=True, text=True, timeout=120
    )
    return done.stdout.strip()


def submit_training(
    job: Submission, number: int, env: dict[str, str], folder: Path, *, in_place: bool
) -> str:
    done = subprocess.run(
        [
            *(*POLLUX, "sbatch", "--parsable", *(("--in-place",) if in_place else ())),
            *("--min-gpus=1", "--max-gpus=6", f"--gpus={job.gpus}", f"--job-name=training-{number}"),
            *(f"--checkpoint-dir={folder}/checkpoints/{number}", f"--output={folder}/{number}.log"),
            *(str(DIGITS / "train.sbatch"), f"--epochs={job.epochs}", f"--emulate-device={DEVICE}"),
        ],
        env=env, cwd=folder, check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return done.stdout.strip()


@contextmanager
def daemon(env: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*POLLUX, "daemon", "--interval", "10"], env=env, stdout=stream, stderr=stream
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=120)


def compare(jobs: Sequence[Submission], plain: Sequence[Wait], beside: Sequence[Wait]) -> None:
    """Print how long rigid jobs waited under plain Slurm and under the daemon, and which waited longer."""
    print_waits("plain Slurm", [wait.wait_s for wait in plain])
    print_waits("the daemon", [wait.wait_s for wait in beside])
    rigid = [job for job in jobs if not job.epochs]
    waits = list(zip(rigid, plain, beside, strict=True))
    late_s = sorted(max(now.wait_s - was.wait_s, 0.0) for _, was, now in waits)
    later = [(job, was, now) for job, was, now in waits if now.wait_s > was.wait_s + 5]
    print(
        f"{len(later)} of {len(rigid)} rigid jobs waited more than 5 s longer with the daemon; "
        f"lateness: 95th percentile {percentile_95(late_s):.0f} s"
    )
    for job, was, now in later:
        print(
            f"  at {job.at_s:.0f} s, {job.nodes} nodes of {job.gpus} GPUs: "
            f"{now.wait_s:.0f} s instead of {was.wait_s:.0f} s; {now.moves or 'no move'}"
        )


def compare_trainings(plain: Sequence[float | None], beside: Sequence[float | None]) -> None:
    """Print how long trainings took from submission to end in both runs, and which took longer beside."""
    pairs = list(zip(plain, beside, strict=True))
    both = [(was, now) for was, now in pairs if was is not None and now is not None]
    lost = sum(was is not None and now is None for was, now in pairs)
    means = [statistics.mean(times) for times in zip(*both, strict=True)]
    print(
        f"{len(both)} trainings ended in both, {lost} only with plain Slurm; s on average, plain Slurm "
        f"and the daemon: {[round(mean) for mean in means]}"
    )
    for was, now in both:
        if now > was + 5:
            print(f"  {now:.0f} s instead of {was:.0f} s")


def report(without: Sequence[Sequence[float]], within: Sequence[float]) -> None:
    """Print how long rigid jobs waited in each run, and which waited longer than in all runs without."""
    for number, waits_s in enumerate(without, 1):
        print_waits(f"run {number}, all trainings by requeue", waits_s)
    print_waits("every other training in place", within)
    longest = [max(waits) for waits in zip(*without, strict=True)]
    later = [
        (number, wait_s, most_s)
        for number, (wait_s, most_s) in enumerate(zip(within, longest, strict=True))
        if wait_s > most_s
    ]
    print(f"{len(later)} of {len(within)} rigid jobs waited longer than in any run without moves in place")
    for number, wait_s, most_s in later:
        print(f"  rigid job {number}: {wait_s:.0f} s, at most {most_s:.0f} s without")
    # Of runs that are alike, the last is the longest of so many in one case of so many.
    held_out = [
        sum(w > max(o) for w, *o in zip(one, *(x for x in without if x is not one), strict=True))
        for one in without
    ]
    print(f"each run without against the others without: {held_out} rigid jobs waited longer")


def print_waits(name: str, waits_s: Sequence[float]) -> None:
    ordered = sorted(waits_s)
    print(
        f"{name}: rigid jobs wait {statistics.mean(ordered):.1f} s on average, median "
        f"{statistics.median(ordered):.0f} s, 95th percentile {percentile_95(ordered):.0f} s, at most "
        f"{ordered[-1]:.0f} s"
    )


def percentile_95(ordered: Sequence[float]) -> float:
    return ordered[min(int(0.95 * len(ordered)), len(ordered) - 1)]


if __name__ == "__main__":
    main()
