"""A hostile site: a busy Slurm with limits, rules and small jobs, the real daemon, and adaptive jobs on it.

Most adaptive jobs only sleep, and an agent here reports for each; those that move in place really train.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pollux_slurm.agent.environment.token import new_token
from pollux_slurm.config import SlurmConfig
from pollux_slurm.model import ClusterSnapshot, JobState, JobTerms
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.sandbox.files import NodeGroup, free_ports
from pollux_slurm.slurm import connect
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.parsing.comment_terms import encode_comment
from pollux_slurm.store import open_store
from pollux_slurm.store.agent_api.token_hashes import hash_token
from pollux_slurm.store.sql_store import SqlStore
from tests.chaos.site import by_settings_file
from tests.daemon.harness import Agent
from tests.daemon.test_on_slurm import RealHarness
from tests.e2e.user_commands import POLLUX, UserCommands
from tests.slurm.accounting_site import sacctmgr

# Two of the nodes have two threads a core.
GROUPS = (NodeGroup(num_nodes=4), NodeGroup(num_nodes=2, cpus_per_node=16, threads_per_core=2))
NUM_NODES = sum(group.num_nodes for group in GROUPS)
REQUEUE_TIMEOUT_S, START_TIMEOUT_S = 30.0, 20.0
LONGEST_STOP_S = REQUEUE_TIMEOUT_S + START_TIMEOUT_S
SETTINGS = """
[daemon]
interval_s = 5
watch_s = 2
tick_s = 0.3
restart_delay_s = 5
checkpoint_timeout_s = 30
requeue_timeout_s = {requeue_timeout_s:g}
start_timeout_s = {start_timeout_s:g}
first_report_timeout_s = 120
metrics_listen = "127.0.0.1:{port}"
[moves]
gpu_types_without_nvlink = ["*"]
[policy]
objective = "generalized-mean"
penalty = "amortised"
horizon_s = 36000
"""
_UNTIL_TOLD = "#!/bin/sh\nwhile [ ! -e {file} ]; do sleep 0.5; done\n"
_METRIC = "pollux_jobs_without_their_place "
_LASTS_S = (60.0, 150.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Adaptive jobs of one kind, of which there are always so many that are not over."""

    name: str
    options: tuple[str, ...] = ()
    count: int = 1
    gpus: tuple[int, ...] = (1,)
    needs_limits: bool = False
    in_place: bool = False


ROLES = (
    Role(name="plain", options=("--time=60",), count=2, gpus=(1, 2)),
    Role(name="endless"),
    Role(name="threads", options=("--time=60", "--hint=nomultithread")),
    Role(name="narrow", options=("--time=60", "--partition=narrow")),
    Role(name="tight", options=("--time=60", "--partition=tight")),
    Role(name="few", options=("--time=60", "--qos=few"), count=3, needs_limits=True),
    Role(name="small", options=("--time=60", "--qos=small"), count=3, gpus=(2,), needs_limits=True),
    Role(name="inplace", count=2, in_place=True),
)
# Of these one waits at any time: the first is never far from the head of the queue.
WAITING = {
    "wide": ("sleep 20", ("--nodes=2", "--gpus-per-node=4", "--time=2")),
    "limited": ("sleep 10", ("--gpus=1", "--qos=few", "--time=2")),
}
SWEEP = ("sleep 6", ("--gpus=1", "--ntasks=1", "--time=2"))
_SINGLE, _ARRAY = 20, 20


@dataclass(slots=True, kw_only=True)
class Adaptive:
    """One adaptive job: its role, and when and how it is told to end."""

    name: str
    role: Role
    lasts_s: float
    done: Path | None = None
    runs_since_s: float | None = None


class HostileSite(RealHarness):
    """The site. Submissions are made one after another in a thread, as each takes a while."""

    def __init__(
        self, user: UserCommands, store: SqlStore, sandbox: Sandbox, *, port: int, limits: bool, seed: int
    ) -> None:
        super().__init__(store, sandbox)
        self.user, self.limits, self._port = user, limits, port
        self.adaptive: dict[str, Adaptive] = {}
        self.waiting: dict[str, list[str]] = {name: [] for name in WAITING if limits or name != "limited"}
        self.largest_metric: float | None = None
        self.failures: list[str] = []
        self._rng = random.Random(seed)
        self._submitter = ThreadPoolExecutor(max_workers=1)
        self._submitting: Counter[str] = Counter()
        self._num_submitted = 0

    # ------------------------------------------------------------------------------------------ the daemon

    def start_daemon(self) -> None:
        with (self.user.directory / "daemon.log").open("ab") as log:
            self.user.process = subprocess.Popen(
                [*POLLUX, "daemon", f"--config={self.user.directory}/pollux.toml"],
                env=by_settings_file(self.user.env),
                stdout=log,
                stderr=log,
            )

    def read_metric(self) -> None:
        """Read how many jobs have lost their place by the daemon's own count; keep the largest."""
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            for line in lines:
                if line.startswith(_METRIC):
                    self.largest_metric = max(self.largest_metric or 0.0, float(line.split()[1]))

    # -------------------------------------------------------------------------------------------- the jobs

    def act(self, snapshot: ClusterSnapshot, at_s: float) -> None:
        """Let the agents report, end jobs that have lasted long enough, and keep all kinds of jobs there."""
        left = Counter(self._submitting)
        for job in snapshot.jobs:
            adaptive = self.adaptive.get(job.job_id)
            if adaptive is None or job.state.is_over:
                continue
            left[adaptive.role.name] += 1
            if job.state is not JobState.RUNNING:
                continue
            if job.job_id in self.agents:
                self.agents[job.job_id].act_on(job)
            if adaptive.runs_since_s is None:
                adaptive.runs_since_s = at_s
            if adaptive.done is not None and at_s - adaptive.runs_since_s > adaptive.lasts_s:
                adaptive.done.touch()
        for role in ROLES:
            for _ in range(role.count - left[role.name]):
                if self.limits or not role.needs_limits:
                    self._in_thread(role.name, lambda role=role: self._submit_adaptive(role))  # type: ignore[misc]
        waits = {job.job_id for job in snapshot.jobs if job.state is JobState.PENDING}
        for name, numbers in self.waiting.items():
            if waits.isdisjoint(numbers) and not self._submitting[name]:
                self._in_thread(name, lambda name=name: self._submit_waiting(name))  # type: ignore[misc]

    def _in_thread(self, what: str, act: Callable[[], None]) -> None:
        self._submitting[what] += 1

        def ended(done: Future[None]) -> None:
            self._submitting[what] -= 1
            if (error := done.exception()) is not None:
                self.failures.append(f"{what}: {str(error).strip()[-200:]}")

        self._submitter.submit(act).add_done_callback(ended)

    def _submit_adaptive(self, role: Role) -> None:
        name = f"{role.name}-{self._num_submitted}"
        self._num_submitted += 1
        adaptive = Adaptive(name=name, role=role, lasts_s=self._rng.uniform(*_LASTS_S))
        if role.in_place:
            number = self.user.digits(name, "--in-place", max_gpus=3, epochs=12, pass_s="0.05,0.02")
            self.adaptive[number] = adaptive
            return
        adaptive.done = self.user.directory / f"{name}.done"
        token = new_token(os.geteuid())
        terms = JobTerms(token_sha256=hash_token(token), user_id=os.geteuid(), min_gpus=1, max_gpus=8)
        options = (
            f"--job-name={name}", "--output=/dev/null", "--requeue", "--cpus-per-gpu=1", "--mem-per-gpu=100",
            f"--gpus={self._rng.choice(role.gpus)}", f"--comment={encode_comment('', terms)}", *role.options,
        )  # fmt: skip
        script = _UNTIL_TOLD.format(file=adaptive.done)
        number = self.slurm.submit(script, options, [], self.env)
        self.agents[number] = Agent(self, number, token)
        self.adaptive[number] = adaptive

    def _submit_waiting(self, name: str) -> None:
        body, options = WAITING[name]
        self.waiting[name].append(self.user.plain(body, "--mem=100M", f"--job-name={name}", *options))

    def sweep(self) -> None:
        """Submit forty jobs of one GPU: half of them as an array of which six run at a time."""
        body, options = SWEEP

        def submit() -> None:
            self.user.plain(body, "--mem=100M", "--job-name=swept", f"--array=1-{_ARRAY}%6", *options)
            for _ in range(_SINGLE):
                self.user.plain(body, "--mem=100M", "--job-name=sweep", *options)

        self._in_thread("sweep", submit)

    # ------------------------------------------------------------------------------------------- the nodes

    def scontrol(self, *words: str) -> None:
        """Run a command as an administrator would; keep what goes wrong."""
        answer = self.runner.run("scontrol", *words)
        if answer.exit_code != 0:
            self.failures.append(f"scontrol {' '.join(words)}: {answer.error_text}")

    def drain(self, node: int) -> None:
        self.scontrol("update", f"NodeName=n{node}", "State=DRAIN", "Reason=hostile")

    def resume(self, node: int) -> None:
        self.scontrol("update", f"NodeName=n{node}", "State=RESUME")

    def reserve(self, node: int, *, ahead_s: float) -> None:
        self.scontrol(
            "create", "reservation", f"ReservationName=maintenance{node}", f"Nodes=n{node}", "Users=root",
            f"StartTime=now+{ahead_s:.0f}", "Duration=1", "Flags=MAINT,IGNORE_JOBS",
        )  # fmt: skip

    # --------------------------------------------------------------------------------------------- the end

    def stop_submitting(self) -> None:
        self._submitter.shutdown(wait=True, cancel_futures=True)

    def cancel_everything(self) -> None:
        """Cancel all jobs, as their owner would."""
        self.runner.run("scancel", f"--user={getpass.getuser()}")


def configure(sandbox: Sandbox, sacct: CommandRunner | None) -> None:
    """Make the partitions with rules, and the QOS with limits on jobs and GPUs of a user."""
    runner = sandbox.runner()
    for partition in ("narrow Nodes=ALL MaxNodes=1", "tight Nodes=ALL MaxCPUsPerNode=3"):
        answer = runner.run("scontrol", "create", *f"PartitionName={partition} State=UP".split())
        assert answer.exit_code == 0, answer.error_text
    if sacct is not None:
        sacctmgr(sacct, "add", "qos", "few")
        sacctmgr(sacct, "modify", "qos", "few", "set", "MaxJobsPerUser=2")
        sacctmgr(sacct, "add", "qos", "small")
        sacctmgr(sacct, "modify", "qos", "small", "set", "MaxTRESPerUser=gres/gpu=4")
        sacctmgr(sacct, "modify", "user", getpass.getuser(), "set", "qos=normal,few,small")


@contextlib.contextmanager
def hostile_site(
    folder: Path, sandbox: Sandbox, sacct: CommandRunner | None, *, seed: int
) -> Iterator[HostileSite]:
    """Yield a site with its daemon; at the end stop it, and cancel what is left."""
    configure(sandbox, sacct)
    (port,) = free_ports(1, random.Random())
    settings = folder / "pollux.toml"
    settings.write_text(
        SETTINGS.format(port=port, requeue_timeout_s=REQUEUE_TIMEOUT_S, start_timeout_s=START_TIMEOUT_S)
    )
    url = f"sqlite:///{folder}/pollux.db"
    store = open_store(url, create=True)
    assert isinstance(store, SqlStore)
    user = UserCommands(
        directory=folder,
        slurm=connect(SlurmConfig(), {**os.environ, **sandbox.env}),
        slurm_env={
            **sandbox.env,
            "POLLUX_CONFIG": str(settings),
            "PATH": f"{Path(sys.executable).parent}:{sandbox.env.get('PATH', os.environ['PATH'])}",
        },
        store=store,
        store_url=url,
    )
    site = HostileSite(user, store, sandbox, port=port, limits=sacct is not None, seed=seed)
    site.start_daemon()
    try:
        yield site
    finally:
        site.stop_submitting()
        site.cancel_everything()
        user.close()
