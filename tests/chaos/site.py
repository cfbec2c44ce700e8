"""The site of a run: a sandbox, a store on a small disk, one daemon, and up to six jobs."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pollux_slurm.config import SlurmConfig
from pollux_slurm.errors import SlurmError
from pollux_slurm.sandbox.cluster import Sandbox
from pollux_slurm.slurm import connect
from pollux_slurm.store import open_store
from tests.chaos import killable_daemon
from tests.chaos.watch import Replica, Watch, replicas
from tests.e2e.user_commands import UserCommands
from tests.store.postgres import PostgresServer

NUM_JOBS = 6
# Where training processes record the exception that ended them.
EXIT_RECORDS = "exit_records"
_EXIT_RECORDER = Path(__file__).with_name("exit_recorder")
_DISK_MB = 64

_SETTINGS = """
[daemon]
interval_s = 2
tick_s = 0.3
restart_delay_s = 5
checkpoint_timeout_s = 30
requeue_timeout_s = 30
start_timeout_s = 20
first_report_timeout_s = 120
metrics_listen = "off"
[moves]
gpu_types_without_nvlink = ["*"]
[policy]
objective = "generalized-mean"
penalty = "amortised"
horizon_s = 36000
[policy.job_weights]
"""


@dataclass(slots=True)
class ChaosJob:
    """One job of the run. It was `cancelled` by the harness, or `may_fail`, as a process of it was killed."""

    job_id: str
    name: str
    cancelled: bool = False
    may_fail: bool = False


@dataclass(slots=True)
class Site:
    """The daemon and what it depends on; each part can fail.

    `server` is the PostgreSQL that holds the store, None for SQLite on `disk`.
    """

    folder: Path
    user: UserCommands
    sandbox: Sandbox
    watch: Watch
    disk: Path
    is_small_disk: bool
    epochs: int
    pass_s: str
    server: PostgresServer | None = None
    jobs: list[ChaosJob] = field(default_factory=list)
    unmanaged: list[str] = field(default_factory=list)
    starts: int = 0
    log_at_start: int = 0
    submissions: int = 0
    frozen: list[subprocess.Popen[bytes]] = field(default_factory=list)
    # Held by the harness, as an admin would, until it releases them.
    held_externally: set[str] = field(default_factory=set)
    # Not held, requeued or cancelled for a while, since another fault needs them.
    reserved: frozenset[str] = frozenset()

    # ------------------------------------------------------------------------------------------- the daemon

    @property
    def kill_file(self) -> Path:
        return self.folder / "kill"

    def start_daemon(self) -> None:
        """Start the daemon, as systemd would after it died."""
        with (self.folder / "daemon.log").open("ab") as log:
            self.log_at_start = log.tell()
            self.user.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.chaos.killable_daemon",
                    "daemon",
                    f"--config={self.folder}/pollux.toml",
                ],
                env={**by_settings_file(self.user.env), killable_daemon.VARIABLE: str(self.kill_file)},
                stdout=log,
                stderr=log,
            )
        self.starts += 1

    def daemon_exit_code(self) -> int | None:
        """Return how the daemon ended, None while it runs or none was started."""
        process = self.user.process
        return process.poll() if process is not None else None

    def reweigh(self, rng: random.Random) -> None:
        """Change the jobs' weights, so that the policy moves some of them."""
        weights = [
            f'"{job.job_id}" = {rng.choice((0.1, 1.0, 10.0))}' for job in self.jobs if not job.cancelled
        ]
        draft = self.folder / "pollux.toml.new"
        draft.write_text(_SETTINGS + "\n".join(weights) + "\n", encoding="utf-8")
        draft.replace(self.folder / "pollux.toml")
        process = self.user.process
        if process is not None and process.poll() is None and _has_handler(process.pid, signal.SIGHUP):
            process.send_signal(signal.SIGHUP)

    # ---------------------------------------------------------------------------------------------- the jobs

    def submit(self) -> ChaosJob:
        """Submit the next training job. Every other one moves in place."""
        name = f"chaos-{self.submissions}"  # a failed submission has also used its name
        options = ("--in-place",) if self.submissions % 2 == 0 else ()
        self.submissions += 1
        number = self.user.digits(name, *options, max_gpus=4, epochs=self.epochs, pass_s=self.pass_s)
        self.jobs.append(ChaosJob(job_id=number, name=name))
        return self.jobs[-1]

    def job(self, job_id: str) -> ChaosJob:
        return next(job for job in self.jobs if job.job_id == job_id)

    def wings(self) -> list[str]:
        """Return the wings that are not over, by name and number. Raises `SlurmError`."""
        done = subprocess.run(
            ["squeue", "--noheader", "--Format=Name:60,JobID:20"],
            env=self.user.env,
            capture_output=True,
            text=True,
            timeout=3000,
            check=False,
        )
        if done.returncode != 0:
            raise SlurmError(done.stderr)
        return [" ".join(line.split()) for line in done.stdout.splitlines() if "+" in line]

    def unfinished(self) -> list[ChaosJob]:
        """Return the jobs that Slurm does not show as over. Raises `SlurmError`."""
        states = {job.job_id: job.state for job in self.user.slurm.snapshot().jobs}
        return [job for job in self.jobs if job.job_id in states and not states[job.job_id].is_over]

    def scontrol(self, *arguments: str) -> str:
        """Run a command as a person would, whatever its result."""
        done = subprocess.run(
            ["scontrol", *arguments],
            env=self.user.env,
            capture_output=True,
            text=True,
            timeout=3000,
            check=False,
        )
        return done.stdout + done.stderr

    def replicas_on(self, node: str) -> list[Replica]:
        return [replica for replica in replicas(self.watch.slurm_conf) if replica.node == node]

    # ------------------------------------------------------------------------------------------- slurmctld

    def stop_slurmctld(self) -> None:
        self.sandbox = self.sandbox.stop("slurmctld")

    def start_slurmctld(self) -> None:
        """Start slurmctld. Until the nodes have registered, 22.05.8 starts jobs without their GPUs."""
        self.sandbox = self.sandbox.start("slurmctld")

    def have_nodes_registered(self) -> bool:
        """Whether all nodes but those that are lost have registered with slurmctld."""
        lost = self.watch.lost_nodes
        states = [state for node, state in self.sandbox.node_states().items() if node not in lost]
        return not any(state == "unreachable" or state.endswith("*") or "unk" in state for state in states)

    # ------------------------------------------------------------------------------------------- the store

    def limit_files(self, *, to_nothing: bool) -> None:
        """Stop or allow the daemon's writes to files: a full disk where none can be mounted."""
        process = self.user.process
        if process is None or process.poll() is not None:
            return
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0 if to_nothing else hard, hard))


def by_settings_file(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without settings of the daemon: those of training tests keep jobs in place."""
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(("POLLUX_DAEMON_", "POLLUX_POLICY_"))
    }


def _has_handler(pid: int, signum: int) -> bool:
    """Whether a process has a signal handler yet: a daemon that is just starting would die of SIGHUP."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small disk at `folder` if this user may; return whether it is mounted."""
    folder.mkdir()
    size = f"size={_DISK_MB}m"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", folder], check=False, timeout=300, capture_output=True
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=True, timeout=300)


@contextlib.contextmanager
def running_site(
    folder: Path, sandbox: Sandbox, *, epochs: int, pass_s: str, server: PostgresServer | None = None
) -> Iterator[Site]:
    """Yield a site on a sandbox; at the end stop its daemon and jobs, and keep its files."""
    with small_disk(folder / "disk") as is_small_disk:
        url = server.create_database("chaos") if server is not None else f"sqlite:///{folder}/disk/pollux.db"
        slurm = connect(SlurmConfig(), {**os.environ, **sandbox.env})
        (folder / EXIT_RECORDS).mkdir()
        python_path = [str(_EXIT_RECORDER), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            "CHAOS_EXIT_RECORDS": str(folder / EXIT_RECORDS),
            "PYTHONPATH": os.pathsep.join(python_path),
            "POLLUX_CONFIG": str(folder / "pollux.toml"),
        }
        user = UserCommands(
            directory=folder,
            slurm=slurm,
            slurm_env={**sandbox.env, **variables},
            store=open_store(url, create=True),
            store_url=url,
        )
        site = Site(
            folder=folder,
            user=user,
            sandbox=sandbox,
            watch=Watch(slurm=slurm, slurm_conf=sandbox.env["SLURM_CONF"]),
            disk=folder / "disk",
            is_small_disk=is_small_disk and server is None,
            epochs=epochs,
            pass_s=pass_s,
            server=server,
        )
        site.reweigh(random.Random(0))
        site.watch.start()
        try:
            yield site
        finally:
            site.watch.stop()
            for process in site.frozen:
                process.kill()
                process.wait(timeout=3000)
            killable_daemon.disarm(site.kill_file)
            user.close()
