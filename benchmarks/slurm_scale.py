"""A daemon's rounds on a real slurmctld with many nodes: wall time by phase, and RPCs by sdiag.

python -m benchmarks.slurm_scale --nodes 200 --jobs 100
python -m benchmarks.slurm_scale --nodes 8 --jobs 8 --rounds 1 --moves 24 --toggle
python -m benchmarks.slurm_scale --nodes 10 --jobs 10 --rounds 1 --moves 10 --toggle --queued 12000

Every node is a slurmd of its own on this machine, with fake GPUs. The jobs only sleep; their agents are
simulated here, from what the daemon itself reads. First come some rounds in shadow mode, on running jobs;
then moves, up to `--in-flight` at a time, until `--moves` are confirmed. The moves are the policy's, or with
`--toggle` each job changes on its own node between one GPU and two, so that none waits for another. With
`--queued N`, the moves are measured twice: with an empty queue, and with N jobs in it that are held, or, with
`--not-held`, wait for nodes that are full.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.daemon_round import _report
from pollux_slurm.config import DaemonConfig, SlurmConfig
from pollux_slurm.daemon.loop import Daemon
from pollux_slurm.daemon.round import Settings
from pollux_slurm.daemon.service.metrics import DaemonMetrics, totals
from pollux_slurm.model import (
    Allocation,
    ClusterSnapshot,
    Decision,
    JobDecision,
    JobState,
    JobTerms,
    Problem,
    ProblemJob,
    ReallocationStep,
    SlurmJob,
)
from pollux_slurm.policy import decide
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup
from pollux_slurm.slurm import SlurmClient, connect
from pollux_slurm.slurm.commands.command_client import CommandClient
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store import open_store
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.contract.interface import (
    CheckpointConfirmation,
    Reallocation,
    Report,
    RunPhase,
    Store,
)

SLEEP = "#!/bin/sh\nexec sleep 7200\n"
# What sdiag itself asks, and what nodes send on their own.
_NOT_OURS = (
    *("REQUEST_STATS_INFO", "MESSAGE_NODE_REGISTRATION_STATUS", "MESSAGE_EPILOG_COMPLETE"),
    "REQUEST_COMPLETE_BATCH_SCRIPT",
)
_BY_TYPE = re.compile(r"^\s*(\w+)\s*\(\s*\d+\)\s+count:(\d+)", re.MULTILINE)


@dataclass(slots=True, kw_only=True)
class SimulatedAgent:
    """The agent of a job: it reports steps, and confirms a checkpoint when one is requested."""

    token: str
    number: int
    sequence: int = 0
    confirmed: int | None = None
    _seen: object = field(default=None, repr=False)

    def act(self, store: Store, job: SlurmJob, at: datetime) -> None:
        """Report the first step of a new run, or confirm a requested checkpoint."""
        run = job.restart_count
        request = store.agent.poll(self.token, run, at=at).checkpoint_request
        if self._seen == (run, request):
            return
        self._seen = (run, request)
        self.sequence += 1
        model = _report(self.number).model
        counts = tuple(gpus for _, gpus in job.allocation.gpus_by_node)
        new = request is not None and request != self.confirmed
        report = Report(
            run_number=run,
            restart_count=run,
            sequence=self.sequence,
            phase=RunPhase.WAITING if request else RunPhase.TRAINING,
            gpus_per_node=counts,
            model=model,
            throughput=100.0,
            efficiency=0.9,
            num_steps=5,
            first_step_s=3.0,
            checkpoint=CheckpointConfirmation(request_id=request, blocked_s=0.5, size_bytes=1000)
            if new and request is not None
            else None,
        )
        store.agent.report(self.token, report, at=at)
        self.confirmed = request if new else self.confirmed


def rpcs(runner: CommandRunner) -> Counter[str]:
    """Return how many RPCs slurmctld has served, by message type, without those of sdiag and the nodes."""
    text = runner.run("sdiag").stdout
    section = text.partition("by message type")[2].partition("by user")[0]
    found = Counter({match[1]: int(match[2]) for match in _BY_TYPE.finditer(section)})
    return Counter({name: count for name, count in found.items() if name not in _NOT_OURS})


def waited(condition: Callable[[], bool], what: str, timeout_s: float, every_s: float = 0.5) -> float:
    """Wait for a condition; return how long it took."""
    began = time.monotonic()
    pause = threading.Event()
    while not condition():
        if time.monotonic() - began > timeout_s:
            raise SystemExit(f"gave up after {timeout_s:g} s waiting for {what}")
        pause.wait(every_s)
    return time.monotonic() - began


def shown(counts: Counter[str]) -> str:
    """Return the counts in words, most frequent first."""
    parts = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return f"{counts.total()} RPCs" + (f" ({parts})" if parts else "")


def now() -> datetime:
    return datetime.now(timezone.utc)


def main() -> None:
    """Start the cluster and the jobs, run the rounds, move jobs, and print times and RPCs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--moves", type=int, default=16)
    parser.add_argument("--backend", choices=("commands", "pyslurm"), default="commands")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--toggle", action="store_true")
    parser.add_argument("--queued", type=int, default=0)
    parser.add_argument("--not-held", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pollux-scale-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        began = time.monotonic()
        sandbox = Sandbox.up(folder / "s", [NodeGroup(num_nodes=options.nodes)], timeout_s=600.0)
        if options.queued:
            sandbox = with_long_queue(sandbox)
        print(f"{options.nodes} nodes idle after {time.monotonic() - began:.1f} s", flush=True)
        try:
            measure(sandbox, folder, options)
        finally:
            began = time.monotonic()
            sandbox.down()
            print(f"down after {time.monotonic() - began:.1f} s", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(sandbox: Sandbox, folder: Path, options: argparse.Namespace) -> None:
    """Measure on a cluster that runs."""
    metrics = DaemonMetrics(monotonic=time.monotonic)

    plain = sandbox.runner(timeout_s=60.0)
    print(f"Slurm {CommandClient(plain).version()}, {os.cpu_count()} CPUs", flush=True)
    config = SlurmConfig(backend=options.backend, command_timeout_s=60.0)
    slurm = connect(config, plain.environ, on_run=metrics.count_command)
    store = open_store(f"sqlite:///{folder}/pollux.db", create=True)
    agents: dict[str, SimulatedAgent] = {}
    for number in range(1, options.jobs + 1):
        token = f"{os.geteuid()}-token-{number}"
        terms = JobTerms(token_sha256=hash_token(token), user_id=os.geteuid(), min_gpus=1, max_gpus=16)
        gpus = (
            ("--gpus=1", f"--nodelist=n{(number - 1) % options.nodes}")
            if options.toggle
            else (f"--gpus={1 + number % 4}",)
        )
        job_id = CommandClient(plain).submit(
            SLEEP,
            ["--output=/dev/null", "--requeue", *gpus, "--cpus-per-gpu=1",
             "--mem-per-gpu=100", f"--comment={encode_comment('', terms)}"],
            [],
            {**os.environ, **sandbox.env},
        )  # fmt: skip
        agents[job_id] = SimulatedAgent(token=token, number=number)

    def all_run() -> bool:
        return sum(job.state is JobState.RUNNING for job in slurm.snapshot().jobs) == options.jobs

    print(f"{options.jobs} jobs run after {waited(all_run, 'the jobs to run', 300):.1f} s", flush=True)
    print(f"one bulk read: {bulk_read_s(slurm):.2f} s", flush=True)
    watched = CachingClient(slurm)
    run_rounds(
        daemon(watched, store, metrics, options, shadow=True), plain, watched, store, agents, options.rounds
    )
    acting = daemon(watched, store, metrics, options, shadow=False)
    if options.moves:
        empty_s = move_jobs(acting, plain, watched, store, agents, options.moves)
    if options.moves and options.queued:
        fill_queue(plain, sandbox, options)
        print(
            f"{options.queued} jobs more in the queue; one bulk read: {bulk_read_s(slurm):.2f} s", flush=True
        )
        long_s = move_jobs(acting, plain, watched, store, agents, options.moves)
        print(
            f"median standstill {long_s:.1f} s, {empty_s:.1f} s with an empty queue: "
            f"{long_s / empty_s:.2f} times",
            flush=True,
        )
    store.close()


def with_long_queue(sandbox: Sandbox) -> Sandbox:
    """Let slurmctld take more jobs than its usual ten thousand."""
    conf = sandbox.layout.slurm_conf
    conf.write_text(conf.read_text() + "MaxJobCount=50000\nMaxArraySize=5001\n")
    return sandbox.stop("slurmctld").start("slurmctld")


def fill_queue(plain: CommandRunner, sandbox: Sandbox, options: argparse.Namespace) -> None:
    """Put jobs into the queue. An array's tasks are jobs of their own once they differ from its last one.

    Another priority would release those that are held.
    """
    client, held = CommandClient(plain), () if options.not_held else ("--hold",)
    for first in range(0, options.queued, 4000):
        count = min(4000, options.queued - first)
        array = client.submit(
            SLEEP, ["--output=/dev/null", *held, f"--array=0-{count}", "--gpus=4", "--nice=1000"],
            [], {**os.environ, **sandbox.env},
        )  # fmt: skip
        plain.run("scontrol", "update", f"JobId={array}_[0-{count - 1}]", "Comment=queued")


class CachingClient:
    """A client that keeps its last snapshot, from which the agents are simulated without further reads."""

    def __init__(self, slurm: SlurmClient) -> None:
        self._slurm = slurm
        self.last: ClusterSnapshot | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slurm, name)

    def snapshot(self) -> ClusterSnapshot:
        self.last = self._slurm.snapshot()
        return self.last

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        self.last = self._slurm.refresh(job_ids)
        return self.last

    def run_agents(self, store: Store, agents: dict[str, SimulatedAgent]) -> None:
        """Let the agents of the jobs that ran at the last read act once."""
        for job in self.last.jobs if self.last is not None else ():
            if job.state is JobState.RUNNING and job.job_id in agents:
                agents[job.job_id].act(store, job, now())


def toggled(problem: Problem) -> Decision:
    """Give each job that may move one GPU where it has two, and two where it has one."""

    def target(job: ProblemJob) -> Allocation:
        if job.pinned or not job.current:
            return job.current
        return Allocation.of({job.current.nodes[0]: 3 - job.current.num_gpus})

    return Decision(
        jobs=tuple(
            JobDecision(
                job_id=job.job_id, allocation=target(job), speedup=1.0, goodput=None, penalty=1.0, batch=None,
                bound_by="nothing", runner_up=None, runner_up_speedup=None,
            )
            for job in problem.jobs
        ),
        fitness=1.0,
        solver="toggle",
    )  # fmt: skip


def daemon(
    slurm: CachingClient, store: Store, metrics: DaemonMetrics, options: argparse.Namespace, *, shadow: bool
) -> Daemon:
    return Daemon(
        slurm=slurm,  # type: ignore[arg-type]
        store=store,
        settings=Settings(
            config=DaemonConfig(shadow=shadow, restart_delay_s=5.0, max_in_flight=options.in_flight),
            decide=toggled if options.toggle else decide,
        ),
        owner="benchmark",
        wall_clock=now,
        monotonic=time.monotonic,
        stop=threading.Event(),
        metrics=metrics,
    )


def bulk_read_s(slurm: SlurmClient) -> float:
    times = []
    for _ in range(5):
        began = time.monotonic()
        slurm.snapshot()
        times.append(time.monotonic() - began)
    return statistics.median(times)


def cpu_s() -> tuple[float, float]:
    """Return the seconds of CPU of this process, and of the commands that it has run."""
    own, commands = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, commands.ru_utime + commands.ru_stime


def run_rounds(
    shadow: Daemon, plain: CommandRunner, slurm: CachingClient, store: Store,
    agents: dict[str, SimulatedAgent], rounds: int,
) -> None:  # fmt: skip
    """Run rounds that change nothing, and print each one's time and RPCs."""
    shadow.round()  # registers the jobs
    slurm.run_agents(store, agents)
    for _ in range(rounds):
        phases, commands = totals(shadow.metrics.phases), totals(shadow.metrics.commands)
        before, began, used = rpcs(plain), time.monotonic(), cpu_s()
        result = shadow.round()
        wall_s, spent = (
            time.monotonic() - began,
            [now - then for now, then in zip(cpu_s(), used, strict=True)],
        )
        after = rpcs(plain)
        parts = ", ".join(
            f"{name[0]} {seconds - phases.get(name, 0.0):.2f}"
            for name, seconds in sorted(totals(shadow.metrics.phases).items())
        )
        num_commands = sum(totals(shadow.metrics.commands).values()) - sum(commands.values())
        print(
            f"round: {result.num_jobs} jobs, {result.num_moves} moves wished, {wall_s:.2f} s ({parts}); "
            f"CPU {spent[0]:.2f} s, of its commands {spent[1]:.2f} s; "
            f"{shown(after - before)}; {num_commands:.0f} commands; "
            f"{result.skipped or 'whole'}",
            flush=True,
        )


def move_jobs(
    acting: Daemon, plain: CommandRunner, slurm: CachingClient, store: Store,
    agents: dict[str, SimulatedAgent], wanted: int,
) -> float:  # fmt: skip
    """Enact rounds until enough moves are confirmed; print where their time went, and their RPCs.

    Return the median of the seconds in which a moving job does not run.
    """
    before, began = rpcs(plain), time.monotonic()
    ticks = 0
    earlier = {move.id for job_id in agents for move in store.journal.reallocations(job_id)}
    confirmed: dict[int, Reallocation] = {}
    starts: dict[int, datetime] = {}
    deadline = began + 300
    pause = threading.Event()
    while len(confirmed) < wanted and time.monotonic() < deadline:
        acting.round()
        slurm.run_agents(store, agents)
        while acting.tick() and time.monotonic() < deadline:
            ticks += 1
            slurm.run_agents(store, agents)
            pause.wait(0.5)
        started = {job.job_id: job.started_at for job in slurm.last.jobs} if slurm.last is not None else {}
        for move in (move for job_id in agents for move in store.journal.reallocations(job_id)):
            if move.id in earlier or move.id in confirmed:
                continue
            if move.step is ReallocationStep.CONFIRMED and move.moves_running:
                confirmed[move.id] = move
                if (start := started.get(move.slurm_job_id)) is not None:
                    starts[move.id] = start
        pause.wait(0.5)
    wall_s, after = time.monotonic() - began, rpcs(plain)
    if not confirmed:
        raise SystemExit("no move was confirmed")
    print(
        f"{len(confirmed)} moves confirmed in {wall_s:.0f} s, {totals(acting.metrics.outcomes)}", flush=True
    )
    step = ReallocationStep
    spans = {
        "checkpoint to requeuehold": spans_s(confirmed, step.CHECKPOINTED, step.REQUEUED),
        "requeuehold to PENDING seen": spans_s(confirmed, step.REQUEUED, step.RESHAPED),
        "new shape given": spans_s(confirmed, step.RESHAPED, step.RELEASED),
        "release to RUNNING seen": spans_s(confirmed, step.RELEASED, step.RUNNING),
        "requeuehold to RUNNING seen": spans_s(confirmed, step.REQUEUED, step.RUNNING),
        "requeuehold to Slurm's start": [
            (starts[number] - requeued).total_seconds()
            for number, move in confirmed.items()
            if number in starts and (requeued := move.entered_at(step.REQUEUED)) is not None
        ],
    }
    for what, seconds in spans.items():
        under = sum(one < 5.0 for one in seconds)
        print(
            f"  {what:30} median {statistics.median(seconds):5.1f} s, longest {max(seconds):5.1f}, "
            f"{under} of {len(seconds)} under 5 s",
            flush=True,
        )
    print(
        f"{ticks} ticks; {shown(after - before)}, {(after - before).total() / wall_s:.1f} a second; "
        f"commands of the daemon so far: {totals(acting.metrics.commands)}",
        flush=True,
    )
    return statistics.median(spans["requeuehold to Slurm's start"])


def spans_s(
    moves: Mapping[int, Reallocation], first: ReallocationStep, last: ReallocationStep
) -> list[float]:
    """Return the seconds from one step to another, of the moves that took both."""
    return [
        (until - since).total_seconds()
        for move in moves.values()
        if (since := move.entered_at(first)) is not None and (until := move.entered_at(last)) is not None
    ]


if __name__ == "__main__":
    main()
