"""The kinds of faults: how each is injected into a site, and undone.

A fault occupies a *resource* (the daemon, slurmctld, the nodes, the store) until it is undone, so that
faults of different resources overlap and those of one do not.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import sqlite3
import threading
import time
from collections import defaultdict
from pathlib import Path

from pollux_slurm.model import JobState
from pollux_slurm.system.process_control import (
    ProcessRecord,
    identify,
    processes_with_environ,
    send_signal,
)
from tests.chaos import wing_faults
from tests.chaos.injection import Inject, Injected, Undo, jobs_in
from tests.chaos.schedule import Planned
from tests.chaos.site import Site
from tests.chaos.watch import Replica, environ_of, job_and_run, replicas
from tests.stopping import may_write

# How long a leftover stays while its job waits for GPUs on other nodes.
_SUPERSEDED_S = 120.0


# ------------------------------------------------------------------------------------------------- the daemon


def kill_daemon(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    process = site.user.process
    if process is None or process.poll() is not None:
        return None
    process.kill()
    return Injected(detail="SIGKILL")


def freeze_daemon(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Suspend the daemon, let another one take over, and continue the first beside it."""
    process = site.user.process
    if process is None or process.poll() is not None:
        return None
    process.send_signal(signal.SIGSTOP)
    site.frozen.append(process)
    site.user.process = None  # the run starts the other one
    site.start_daemon()

    def continue_it() -> bool:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        return True

    return Injected(detail="SIGSTOP", undo=Undo(after_s=rng.uniform(5, 9), act=continue_it))


# -------------------------------------------------------------------------------------------------- slurmctld


def stop_slurmctld(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    site.stop_slurmctld()

    def start() -> bool:
        if not site.sandbox.daemons()["slurmctld"]:
            site.start_slurmctld()
            return False
        return site.have_nodes_registered()

    return Injected(detail="SIGTERM", undo=Undo(after_s=rng.uniform(1, 5), act=start))


# -------------------------------------------------------------------------------------------------- the nodes


def _busy_node(site: Site, rng: random.Random) -> str | None:
    nodes = {node for job in jobs_in(site, JobState.RUNNING) for node in job.allocation.nodes}
    return rng.choice(sorted(nodes)) if nodes else None


def lose_node(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Simulate a power failure of a node.

    Its processes are stopped first, and killed once slurmctld has marked the node DOWN. After a power failure
    no peer gets the connection reset that the kernel sends for a killed process.
    """
    node = _busy_node(site, rng)
    if node is None:
        return None
    site.watch.lost_nodes |= {node}
    on_it = _processes_on(site, node)
    for process in on_it:
        send_signal(process, signal.SIGSTOP)
    site.sandbox = site.sandbox.stop(node, signum=signal.SIGKILL)
    site.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
    for process in reversed(on_it):  # SIGHUP would continue the stopped children of a process that ends
        send_signal(process, signal.SIGKILL)
    return Injected(
        detail=f"{node}, {len(on_it)} processes",
        undo=Undo(after_s=rng.uniform(3, 8), act=lambda: _bring_up(site, node)),
    )


def lose_slurmd(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Kill a node's slurmd: its jobs start on other nodes while their old steps train on there.

    As soon as a job has started on another node, its old step gets SIGTERM, and tries to write a last
    checkpoint: too late. Before slurmd comes back, all other processes get SIGTERM, too.
    """
    node = _node_of_whole_jobs(site, rng)
    if node is None:
        return None
    site.watch.lost_nodes |= {node}
    left = site.replicas_on(node)
    site.sandbox = site.sandbox.stop(node, signum=signal.SIGKILL)
    site.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=chaos")
    ender = threading.Thread(target=_end_when_superseded, args=(site, left, rng.uniform(4, 8)), name=node)
    ender.start()
    signalled: list[bool] = []

    def end() -> bool:
        if ender.is_alive():
            return False
        if (
            not signalled
        ):  # the batch script's processes as well, srun among them: they may want to pass it on
            tasks = [process for process in _processes_on(site, node) if process.name != "slurmstepd"]
            signalled.extend(send_signal(process, signal.SIGTERM) for process in tasks)
            signalled.append(True)
            return False
        return _bring_up(site, node)

    return Injected(detail=f"{node}, {len(left)} replicas", undo=Undo(after_s=rng.uniform(6, 12), act=end))


def _node_of_whole_jobs(site: Site, rng: random.Random) -> str | None:
    """Return a node with a job that trains only there, so that it can continue without the other nodes.

    Its run owns the checkpoints already: the next run's claim makes it a leftover.
    """
    nodes_of: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for replica in replicas(site.watch.slurm_conf):
        nodes_of[replica.job_id, replica.run].add(replica.node)
    running = {(job.job_id, str(job.restart_count)) for job in jobs_in(site, JobState.RUNNING)}
    whole = {
        min(nodes)
        for run, nodes in nodes_of.items()
        if run in running and len(nodes) == 1 and _newest_claim(site, run[0]) == int(run[1])
    }
    return rng.choice(sorted(whole)) if whole else None


def _end_when_superseded(site: Site, left: list[Replica], stall_after_s: float) -> None:
    """Send SIGTERM, later, to the replicas of each job whose next run has claimed its checkpoints.

    At once: when that run has reported to the store, the leftover ends without one more checkpoint.
    They train on for `stall_after_s` and stall then, or they would be at their end before; but never while
    they write to SQLite, whose one lock would be theirs for as long, and nobody else could write. No other
    hand touches the job meanwhile, so that it comes to its next run.
    """
    waiting = {(replica.job_id, replica.run) for replica in left}
    reserved = {job_id for job_id, _ in waiting}
    begun = time.monotonic()
    pause = threading.Event()
    stalled = False

    def signal_all(of: set[tuple[str, str]], signum: int) -> None:
        for replica in left:
            if (replica.job_id, replica.run) in of:
                send_signal(replica.process, signum)

    site.reserved |= reserved
    while waiting and time.monotonic() - begun < _SUPERSEDED_S:
        over = {run for run in waiting if _newest_claim(site, run[0]) > int(run[1])}
        signal_all(over, signal.SIGTERM)
        signal_all(over, signal.SIGCONT)
        waiting -= over
        if not stalled and time.monotonic() - begun > stall_after_s:
            signal_all(waiting, signal.SIGSTOP)
            # PostgreSQL itself ends clients that stall.
            stalled = site.server is not None or may_write(site.disk / "pollux.db")
            if not stalled:
                signal_all(waiting, signal.SIGCONT)
        pause.wait(0.05)
    signal_all(waiting, signal.SIGCONT)
    site.reserved -= reserved


def _newest_claim(site: Site, job_id: str) -> int:
    """Return the restart count of the newest run that has claimed a job's checkpoints, -1 for none."""
    name = next((job.name for job in site.jobs if job.job_id == job_id), "")
    newest = max((site.folder / "checkpoints" / name).glob("runs/[0-9]*.json"), default=None)
    if newest is None:
        return -1
    return int(json.loads(newest.read_text(encoding="utf-8"))["restart_count"])


def _bring_up(site: Site, node: str) -> bool:
    """Start a node's slurmd, and resume the node once no old step is left on it."""
    site.sandbox = site.sandbox.start(node)
    left = [
        replica for replica in site.replicas_on(node) if _is_stale(site, replica.job_id, replica.run, node)
    ]
    if left:
        for process in _processes_on(site, node, of={(replica.job_id, replica.run) for replica in left}):
            send_signal(process, signal.SIGKILL)
        return False
    site.scontrol("update", f"NodeName={node}", "State=RESUME")
    if site.sandbox.node_states()[node] not in ("idle", "mixed", "allocated"):
        return False
    site.watch.lost_nodes -= {node}
    return True


def _is_stale(site: Site, job_id: str, run: str, node: str) -> bool:
    job = site.user.slurm.read_job(job_id)
    return job is None or str(job.restart_count) != run or node not in job.allocation.nodes


def _processes_on(site: Site, node: str, *, of: set[tuple[str, str]] | None = None) -> list[ProcessRecord]:
    """Return the slurmstepds of jobs (of certain runs) on a node, followed by the processes below them."""
    tasks = processes_with_environ(
        {"SLURM_CONF": site.watch.slurm_conf, "SLURMD_NODENAME": node}, present=("SLURM_JOB_ID",)
    )
    if of is not None:
        environs = {task.pid: environ_of(task) for task in tasks}
        tasks = [task for task in tasks if environs[task.pid] and job_and_run(environs[task.pid]) in of]
    above: dict[int, ProcessRecord] = {}
    for task in tasks:
        parent = _parent(task.pid)
        while parent is not None and parent > 1:
            known = identify("slurmstepd", parent)
            if known is not None and _comm(parent) == "slurmstepd":
                above[parent] = known
                break
            parent = _parent(parent)
    return [*above.values(), *tasks]


def _parent(pid: int) -> int | None:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/stat").open(errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])
    return None


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError), Path(f"/proc/{pid}/comm").open(errors="replace") as file:
        return file.read().strip()
    return ""


# -------------------------------------------------------------------------------------------------- the store


def take_store_away(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Rename the SQLite file, or stop PostgreSQL at once."""
    after_s = rng.uniform(2, 6)
    if site.server is not None:
        server = site.server
        server.stop()

        def start() -> bool:
            server.start()
            return True

        return Injected(detail="PostgreSQL stopped", undo=Undo(after_s=after_s, act=start))
    file, away = site.disk / "pollux.db", site.disk / "pollux.db.away"
    file.rename(away)

    def back() -> bool:
        away.rename(file)
        return True

    return Injected(detail="file renamed", undo=Undo(after_s=after_s, act=back))


def take_store_away_in_regroup(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Take it away while a job's processes regroup, or wait for those that join."""
    return take_store_away(site, planned, rng) if wing_faults.regroups(site) else None


def fill_disk(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Fill the store's disk; where no small one could be mounted, let the daemon write no file."""
    after_s = rng.uniform(3, 8)
    if not site.is_small_disk:
        site.limit_files(to_nothing=True)

        def lift() -> bool:
            site.limit_files(to_nothing=False)
            return True

        return Injected(detail="no file may grow", undo=Undo(after_s=after_s, act=lift))
    ballast = site.disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 65536)
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:  # and the last few pages
            file.write(b"\0" * 512)

    def empty() -> bool:
        ballast.unlink()
        return True

    return Injected(detail="no space left", undo=Undo(after_s=after_s, act=empty))


def integrity(site: Site) -> str:
    """Return the result of SQLite's integrity check."""
    with contextlib.closing(sqlite3.connect(site.disk / "pollux.db")) as connection:
        (result,) = connection.execute("PRAGMA integrity_check").fetchone()
        return str(result)


# ----------------------------------------------------------------------------------------------- other hands


def cancel_job(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    alive = jobs_in(site, JobState.RUNNING, JobState.PENDING)
    if not alive:
        return None
    job_id = rng.choice(sorted(job.job_id for job in alive))
    next(job for job in site.jobs if job.job_id == job_id).cancelled = True
    site.user.slurm.cancel(job_id)
    return Injected(detail=job_id)


def _let_go(site: Site, job_id: str, rng: random.Random) -> Undo:
    site.held_externally.add(job_id)

    def release() -> bool:
        job = site.user.slurm.read_job(job_id)
        if job is not None and job.state is JobState.COMPLETING:
            return False  # Slurm refuses until it is pending
        if job is not None and not job.state.is_over:
            site.scontrol("release", job_id)
        site.held_externally.discard(job_id)
        return True

    return Undo(after_s=rng.uniform(3, 8), act=release)


def hold_job(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    """Hold a pending job if there is one; a running job is held at its next requeue (22.05)."""
    alive = jobs_in(site, JobState.PENDING) or jobs_in(site, JobState.RUNNING)
    if not alive:
        return None
    job = rng.choice(sorted(alive, key=lambda job: job.job_id))
    site.scontrol("hold", job.job_id)
    return Injected(detail=f"{job.job_id}, {job.state.value}", undo=_let_go(site, job.job_id, rng))


def requeue_job(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    alive = jobs_in(site, JobState.RUNNING)
    if not alive:
        return None
    job_id = rng.choice(sorted(job.job_id for job in alive))
    site.scontrol("requeue", job_id)
    return Injected(detail=job_id)


def requeue_and_hold_job(site: Site, planned: Planned, rng: random.Random) -> Injected | None:
    alive = jobs_in(site, JobState.RUNNING)
    if not alive:
        return None
    job_id = rng.choice(sorted(job.job_id for job in alive))
    site.scontrol("requeuehold", job_id)
    return Injected(detail=job_id, undo=_let_go(site, job_id, rng))


# The resource of each kind, and its function. `Run` itself kills the daemon at a point.
KINDS: dict[str, tuple[str, Inject]] = {
    "daemon killed at any time": ("daemon", kill_daemon),
    "daemon frozen, another takes over": ("daemon", freeze_daemon),
    "slurmctld stopped": ("slurmctld", stop_slurmctld),
    "node lost with its steps": ("nodes", lose_node),
    "slurmd lost, its steps go on": ("nodes", lose_slurmd),
    "store away": ("store", take_store_away),
    "disk full": ("store", fill_disk),
    "job cancelled": ("jobs", cancel_job),
    "job held externally": ("jobs", hold_job),
    "job requeued externally": ("jobs", requeue_job),
    "job requeued and held externally": ("jobs", requeue_and_hold_job),
    "wing cancelled": ("jobs", wing_faults.cancel_wing),
    "wing of a move cancelled": ("jobs", wing_faults.cancel_new_wing),
    "newcomer killed": ("jobs", wing_faults.kill_newcomer),
    "newcomers late": ("newcomers", wing_faults.delay_newcomers),
    "rank 0 killed": ("jobs", wing_faults.kill_rank_0),
    "anchor killed": ("jobs", wing_faults.kill_anchor),
    "anchor suspended": ("jobs", wing_faults.suspend_anchor),
    "anchor's node drained": ("drain", wing_faults.drain_anchors_node),
    "store away in mid-regroup": ("store", take_store_away_in_regroup),
    "queue races for a move's GPUs": ("queue", wing_faults.race_for_gpus),
}
