"""Moves in place on a real Slurm, by parts, and the same job's moves by requeue.

    python -m benchmarks.moves_in_place [--moves 30] [--requeues 6] [--state-mb 100] [--default-scheduler]

One job trains on a private Slurm of two nodes with four GPUs each. It goes to and fro between two, three and
four GPUs, one move after another; nothing else runs. Its moves are planned here, and a daemon makes them.
With `--default-scheduler` slurmctld has Slurm's own settings for scheduling, not the sandbox's.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.slurm_scale import rpcs
from pollux_slurm.config import SlurmConfig
from pollux_slurm.model import Allocation, ReallocationStep, ReallocationWay
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm.connection import connect, make_runner
from pollux_slurm.store import open_store
from pollux_slurm.store.contract.interface import Reallocation, Store

Step = ReallocationStep
POLLUX = (sys.executable, "-m", "pollux_slurm")
TARGETS: tuple[dict[str, int], ...] = (
    {"n0": 2, "n1": 1},
    {"n0": 2},
    {"n0": 2, "n1": 2},
    {"n0": 2},
    {"n0": 3},
    {"n0": 2},
)
SETTINGS = '[moves]\ngpu_types_without_nvlink = ["*"]\n'
TIMEOUT_S = 600.0
SCRIPT = """#!/bin/bash
#SBATCH --gpus=2 --nodes=1 --nodelist=n0 --cpus-per-gpu=1 --mem-per-gpu=1500M
exec {python} -m pollux_slurm run -- {python} -m benchmarks.regroup --train {state_mb} {events} 0.05
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=30)
    parser.add_argument("--requeues", type=int, default=6)
    parser.add_argument("--state-mb", type=float, default=100.0)
    parser.add_argument("--default-scheduler", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pollux-moves-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        sandbox = Sandbox.up(folder / "s", [NodeGroup(num_nodes=2)], timeout_s=600.0)
        try:
            if options.default_scheduler:
                use_default_scheduler(sandbox)
            measure(sandbox, folder, options)
        finally:
            sandbox.down()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def use_default_scheduler(sandbox: Sandbox) -> None:
    """Take the scheduler's settings out of slurm.conf."""
    file = Path(sandbox.env["SLURM_CONF"])
    file.write_text(re.sub(r"^SchedulerParameters=.*\n", "", file.read_text(), flags=re.MULTILINE))
    subprocess.run(["scontrol", "reconfigure"], env={**os.environ, **sandbox.env}, check=True)


def measure(sandbox: Sandbox, folder: Path, options: argparse.Namespace) -> None:
    url, settings = f"sqlite:///{folder}/pollux.db", folder / "pollux.toml"
    settings.write_text(SETTINGS)
    store = open_store(url, create=True)
    env = {
        **os.environ,
        **sandbox.env,
        "POLLUX_STORE_URL": url,
        "POLLUX_CONFIG": str(settings),
        "POLLUX_AGENT_REPORT_INTERVAL_S": "1",
        "POLLUX_AGENT_POLL_INTERVAL_S": "0.5",
        # Rounds of their own would move the job, too.
        "POLLUX_POLICY_HYSTERESIS": "0.999",
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }
    script = folder / "train.sbatch"
    script.write_text(
        SCRIPT.format(python=sys.executable, state_mb=options.state_mb, events=folder / "events.jsonl")
    )
    with daemon(env, folder / "daemon.log"):
        job_id = subprocess.run(
            [*POLLUX, "sbatch", "--parsable", "--in-place", "--max-gpus=4",
             f"--checkpoint-dir={folder}/checkpoints", f"--output={folder}/log", str(script)],
            env=env, cwd=folder, check=True, capture_output=True, text=True, timeout=TIMEOUT_S,
        ).stdout.strip()  # fmt: skip
        slurm = connect(SlurmConfig(), env)
        wait_for_steps(store, job_id)
        runner = make_runner(SlurmConfig(), env)
        before = rpcs(runner)
        began = time.monotonic()
        moves = [
            move_to(store, job_id, slurm.read_job(job_id).allocation, target, ReallocationWay.IN_PLACE)  # type: ignore[union-attr]
            for target in itertools.islice(itertools.cycle(TARGETS), options.moves)
        ]
        took_s = time.monotonic() - began
        num_rpcs = (rpcs(runner) - before).total()
        requeued = []
        for target in itertools.islice(itertools.cycle(({"n0": 3}, {"n0": 2})), options.requeues):
            wait_for_steps(store, job_id)
            source = slurm.read_job(job_id).allocation  # type: ignore[union-attr]
            requeued.append(move_to(store, job_id, source, target, ReallocationWay.REQUEUE))
        subprocess.run(["scancel", job_id], env=env, check=False)
        report(moves, requeued, num_rpcs / max(len(moves), 1), took_s)


@contextmanager
def daemon(env: Mapping[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*POLLUX, "daemon", "--interval", "5"], env=dict(env), stdout=stream, stderr=stream
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=120)


def wait_for_steps(store: Store, job_id: str) -> None:
    """Wait until the job's present run has reported steps."""
    deadline = time.monotonic() + TIMEOUT_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        known = {record.slurm_job_id: record for record in store.jobs.active()}
        run = known[job_id].run if job_id in known else None
        if run is not None and run.num_steps > 0 and known[job_id].open_reallocation is None:
            return
        pause.wait(0.2)
    raise SystemExit(f"job {job_id} made no step in {TIMEOUT_S:g} s")


def move_to(
    store: Store, job_id: str, source: Allocation, target: Mapping[str, int], way: ReallocationWay
) -> Reallocation:
    """Plan a move, and return it once it has ended."""
    wait_for_steps(store, job_id)
    run = store.jobs.get(job_id).run
    planned = store.journal.plan(
        job_id,
        source=source,
        target=Allocation.of(target),
        moves_running=True,
        from_restart_count=0 if run is None else run.restart_count,
        round_id=None,
        at=datetime.now(timezone.utc),
        way=way,
    )
    deadline = time.monotonic() + TIMEOUT_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        found = next(one for one in store.journal.reallocations(job_id) if one.id == planned.id)
        if found.step.is_end:
            print(f"{found.source} → {found.target} {way.value}: {found.step.value} {found.reason or ''}")
            return replace(found)
        pause.wait(0.1)
    raise SystemExit(f"a move of job {job_id} did not end in {TIMEOUT_S:g} s")


def report(
    moves: Sequence[Reallocation], requeued: Sequence[Reallocation], rpcs_a_move: float, took_s: float
) -> None:
    done = [move for move in moves if move.step is Step.CONFIRMED]
    print(
        f"\n{len(done)} of {len(moves)} moves in place confirmed, in {took_s:.0f} s; "
        f"{rpcs_a_move:.0f} RPCs a move"
    )
    for name, grows in (("grown", True), ("shrunk", False)):
        some = [move for move in done if (move.target.num_gpus > move.source.num_gpus) is grows]
        print(f"{name}, {len(some)} moves:")
        print_times(
            "  planned to regroup requested", [between(m, Step.PLANNED, Step.REGROUP_REQUESTED) for m in some]
        )
        print_times(
            "  requested to first step", [between(m, Step.REGROUP_REQUESTED, Step.REGROUPED) for m in some]
        )
        print_times("  first step to confirmed", [between(m, Step.REGROUPED, Step.CONFIRMED) for m in some])
    print_times("standstill, all", [move.standstill_s for move in done])
    of_requeue = [move for move in requeued if move.step is Step.CONFIRMED]
    print(f"{len(of_requeue)} of {len(requeued)} moves by requeue confirmed")
    print_times(
        "  checkpoint confirmed to first step",
        [between(m, Step.CHECKPOINTED, Step.CONFIRMED) for m in of_requeue],
    )
    print_times(
        "  of it Slurm, requeue to running", [between(m, Step.REQUEUED, Step.RUNNING) for m in of_requeue]
    )


def between(move: Reallocation, start: Step, end: Step) -> float | None:
    since, until = move.entered_at(start), move.entered_at(end)
    return None if since is None or until is None else (until - since).total_seconds()


def print_times(name: str, values: Sequence[float | None]) -> None:
    known = sorted(value for value in values if value is not None)
    if known:
        highest = known[min(int(0.95 * len(known)), len(known) - 1)]
        print(
            f"{name}: median {statistics.median(known):.2f} s, 95th percentile {highest:.2f} s "
            f"({known[0]:.2f} to {known[-1]:.2f})"
        )


if __name__ == "__main__":
    main()
