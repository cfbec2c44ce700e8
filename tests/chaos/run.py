"""One run: faults by the schedule while six jobs train, then a pause, then the verdict."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from pollux_slurm.errors import PolluxError, SlurmError, StoreError
from pollux_slurm.model import JobState, SlurmJob
from pollux_slurm.store.contract.interface import RunPhase
from tests.chaos import killable_daemon
from tests.chaos.faults import KINDS
from tests.chaos.injection import Undo
from tests.chaos.schedule import DAEMON_KILL, Planned, make_schedule
from tests.chaos.site import NUM_JOBS, ChaosJob, Site

_STEP_S = 0.25
# How long an armed daemon may run without reaching a point; then it is armed again.
_ARMED_S = 20.0
_REWEIGH_S = 5.0
# Those whose faults, and what undoes them, are done by slurmctld.
_NEED_SLURM = frozenset({"nodes", "jobs", "newcomers", "queue", "drain"})
_UNMANAGED_S = 17.0
# How long a fault waits for jobs to train and for a round; some do not wait.
_READY_S = 10.0
# How many rounds a daemon completes before it is killed or frozen.
_ROUNDS_BETWEEN = 3
_OVERLAP = 0.5
_LOOK_S = 3.0
_MISCOUNTED_S = 6.0


@dataclass(slots=True)
class Outcome:
    """The counts of a run, and what was wrong at its end."""

    faults: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)
    not_reached: list[str] = field(default_factory=list)
    moves: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mended: int = 0
    crashes: int = 0
    refused_checkpoints: int = 0


@dataclass(slots=True)
class Run:
    """Injects `num_faults` faults into a site. `pause_s` is the (least, most) time between two of them.

    Six jobs run while faults come. Points at which the daemon is to die are given up when it came to none of
    them `tries` times in a row. Between two losses of a node all nodes stay up for `whole_s`: a running job
    is seldom moved where one is out.
    """

    site: Site
    num_faults: int
    seed: int
    pause_s: tuple[float, float]
    deadline_s: float
    log: Callable[[str], None] = print
    tries: int = 8
    whole_s: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)
    _rng: random.Random = field(init=False)
    _waiting: list[Planned] = field(init=False)
    _undos: dict[str, tuple[float, Undo]] = field(default_factory=dict)
    _armed_at: float | None = None
    _fruitless: int = 0
    _restart_at: float | None = None
    _begun: float = 0.0
    _log_read: int = 0
    _undone_at: dict[str, float] = field(default_factory=dict)
    _miscounted_since: float | None = None
    _submitter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))
    _submitting: Future[ChaosJob] | None = None
    _pause: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self._waiting = make_schedule(self.num_faults, self._rng)

    # ---------------------------------------------------------------------------------------------- the loop

    def inject_all(self) -> None:
        """Inject all faults of the schedule, and undo them."""
        self._begun = time.monotonic()
        self.site.start_daemon()
        next_fault, overlaps = self._begun + 3.0, False
        next_weights = next_unmanaged = next_check = self._begun + _REWEIGH_S
        while (self._waiting or self._undos) and self._elapsed_s() < self.deadline_s:
            now = time.monotonic()
            self._keep_daemon()
            self._undo_what_is_due(now)
            self._keep_jobs()
            if now >= next_check:
                self._mend_slurm(now)
                next_check = now + _LOOK_S
            if now >= next_weights:
                self.site.reweigh(self._rng)
                next_weights = now + _REWEIGH_S
            if now >= next_unmanaged and "slurmctld" not in self._undos:
                self._submit_unmanaged()
                next_unmanaged = now + _UNMANAGED_S
            is_late = now >= next_fault + _READY_S
            if now >= next_fault and (overlaps or is_late or self._is_at_work()) and self._inject_one(now):
                next_fault = now + self._rng.uniform(*self.pause_s)
                overlaps = self._rng.random() < _OVERLAP
                self._log_read = self._log_size()
            self._pause.wait(_STEP_S)
        if self._waiting:
            self.outcome.wrong.append(
                f"{len(self._waiting)} faults were not injected in {self.deadline_s:g} s"
            )
        self._undo_everything()

    def _is_at_work(self) -> bool:
        """Whether a round was completed since the last fault, and two jobs train."""
        with (self.site.folder / "daemon.log").open("rb") as log:
            log.seek(self._log_read)
            if b"fitness" not in log.read():
                return False
        try:
            training = sum(
                record.run is not None and record.run.num_steps > 0 and record.run.phase is RunPhase.TRAINING
                for record in self.site.user.store.jobs.active()
                if record.state is JobState.RUNNING
            )
        except StoreError:
            return False
        return training >= 2

    def _log_size(self) -> int:
        return (self.site.folder / "daemon.log").stat().st_size

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    def _tell(self, text: str) -> None:
        self.log(f"{self._elapsed_s():7.1f} s  {text}")

    def _inject_one(self, now: float) -> bool:
        """Inject the first fault of the schedule that has a target now."""
        for planned in list(self._waiting):
            if planned.kind == DAEMON_KILL:
                if not self._is_daemon_busy() and "daemon" not in self._undos:
                    self._arm(now)
                continue
            resource, inject = KINDS[planned.kind]
            busy = resource in self._undos or (resource == "daemon" and self._is_daemon_busy())
            if busy or (resource in _NEED_SLURM and "slurmctld" in self._undos):
                continue
            if resource == "nodes" and self._since_undone_s("nodes", now) < self.whole_s:
                continue
            try:
                done = inject(self.site, planned, self._rng)
            except SlurmError as error:
                # Slurm's commands try for 20 s: first of all, what is due must be undone.
                self._tell(f"(not now: {error})")
                return False
            if done is None:
                continue
            self._waiting.remove(planned)
            self._count(planned.kind, done.detail)
            if done.undo is not None:
                self._undos[resource] = (now + done.undo.after_s, done.undo)
            return True
        return False

    def _arm(self, now: float) -> None:
        """Arm the remaining points: some are reached seldom."""
        killable_daemon.arm(
            self.site.kill_file, {planned.point for planned in self._waiting if planned.point}
        )
        self._armed_at = now

    def _disarm(self) -> None:
        killable_daemon.disarm(self.site.kill_file)
        self._armed_at = None

    def _count(self, kind: str, detail: str) -> None:
        self.outcome.faults[kind] += 1
        self._tell(f"fault {sum(self.outcome.faults.values())}: {kind}: {detail}")

    def _undo_what_is_due(self, now: float) -> None:
        for resource, (at, undo) in list(self._undos.items()):
            if now < at or (resource in _NEED_SLURM and "slurmctld" in self._undos):
                continue
            try:
                done = undo.act()
            except PolluxError as error:
                self._tell(f"(undone later: {error})")
                done = False
            if done:
                del self._undos[resource]
                self._undone_at[resource] = time.monotonic()
            else:
                self._undos[resource] = (now + 1.0, undo)

    # -------------------------------------------------------------------------------------------- the daemon

    def _store_is_or_was_away(self, now: float) -> bool:
        """Whether a daemon may have been started without a store, and rightly ended."""
        return "store" in self._undos or self._since_undone_s("store", now) < _REWEIGH_S

    def _since_undone_s(self, resource: str, now: float) -> float:
        return now - self._undone_at.get(resource, float("-inf"))

    def _is_daemon_busy(self) -> bool:
        return self._armed_at is not None or self._restart_at is not None or not self._has_settled()

    def _has_settled(self) -> bool:
        """Whether the daemon has completed some rounds since its start."""
        with (self.site.folder / "daemon.log").open("rb") as log:
            log.seek(self.site.log_at_start)
            return log.read().count(b"fitness") >= _ROUNDS_BETWEEN

    def _keep_daemon(self) -> None:
        """Restart the daemon some seconds after it died, by a fault or a bug."""
        now = time.monotonic()
        if self._restart_at is not None:
            if now >= self._restart_at:
                self._restart_at = None
                self.site.start_daemon()
            return
        code = self.site.daemon_exit_code()
        if code is not None:
            hit = killable_daemon.taken_hit(self.site.kill_file)
            if hit is not None:
                self._fruitless = 0
                for planned in [planned for planned in self._waiting if planned.point == hit][:1]:
                    self._waiting.remove(planned)
                self._count(DAEMON_KILL, hit)
                self.outcome.points[hit] += 1
            elif code != -9 and not self._store_is_or_was_away(now) and "slurmctld" not in self._undos:
                self.outcome.wrong.append(f"the daemon ended by itself with exit code {code}")
            self._disarm()
            self._restart_at = now + self._rng.uniform(0.0, 2.5)
        elif self._armed_at is not None and now - self._armed_at > _ARMED_S:
            self._disarm()
            self._fruitless += 1
            if self._fruitless >= self.tries:
                given_up = [planned for planned in self._waiting if planned.kind == DAEMON_KILL]
                self._waiting = [planned for planned in self._waiting if planned.kind != DAEMON_KILL]
                self.outcome.not_reached.extend(planned.point or "" for planned in given_up)

    # ---------------------------------------------------------------------------------------------- the jobs

    def _keep_jobs(self) -> None:
        """Keep six jobs while faults come. A submission takes seconds: one at a time, in a thread."""
        if self._submitting is not None:
            if not self._submitting.done():
                return
            if self._submitting.exception() is not None:  # slurmctld was stopped during it
                self._tell(f"(not submitted: {str(self._submitting.exception()).strip()[-200:]})")
            self._submitting = None
        if "slurmctld" in self._undos or not (self._waiting or len(self.site.jobs) < NUM_JOBS):
            return
        with contextlib.suppress(SlurmError):
            if len(self.site.unfinished()) < NUM_JOBS:
                self._submitting = self._submitter.submit(self.site.submit)

    def _submit_unmanaged(self) -> None:
        """Submit one short unmanaged job at a time, for which adaptive jobs must make room."""
        with contextlib.suppress(SlurmError, AssertionError, subprocess.TimeoutExpired):
            if not self._running_unmanaged():
                options = ("--gpus=2", "--nodes=1", "--mem=100M")
                self.site.unmanaged.append(self.site.user.plain("sleep 8", *options))

    def _mend_slurm(self, now: float) -> None:
        """Restart a slurmctld that counts GPUs as used that no job has, as an admin would.

        22.05.8 does so when it was restarted while a job was completing; another restart counts anew.
        """
        if "slurmctld" in self._undos:
            return
        if not self.site.sandbox.daemons()["slurmctld"]:  # it crashed: start it, as a service manager would
            self.outcome.crashes += 1
            self._tell("(slurmctld has ended by itself: started again)")
            self._restart_slurmctld(now)
            return
        with contextlib.suppress(SlurmError):
            snapshot = self.site.user.slurm.snapshot()
            held: Counter[str] = Counter()
            for job in snapshot.jobs:
                held.update(dict(job.allocation.gpus_by_node))
            wrong = [node.name for node in snapshot.nodes if node.used_gpus > held[node.name]]
            if not wrong or any(job.state is JobState.COMPLETING for job in snapshot.jobs):
                self._miscounted_since = None
            elif self._miscounted_since is None:
                self._miscounted_since = now
            elif now - self._miscounted_since > _MISCOUNTED_S:
                self._miscounted_since = None
                self.outcome.mended += 1
                self._tell(f"(slurmctld counts GPUs of {', '.join(wrong)} that nobody holds: restarted)")
                self._restart_slurmctld(now)

    def _restart_slurmctld(self, now: float) -> None:
        self.site.stop_slurmctld()
        self.site.start_slurmctld()
        self._undos["slurmctld"] = (now, Undo(after_s=0.0, act=self.site.have_nodes_registered))

    def _running_unmanaged(self) -> list[SlurmJob]:
        """Return the unmanaged jobs that are not over; cancel those that Slurm holds.

        Raises `SlurmError`.
        """
        jobs = [job for job in self.site.user.slurm.snapshot().jobs if job.job_id in self.site.unmanaged]
        for job in jobs:
            if job.held_by_slurm:
                self.site.user.slurm.cancel(job.job_id)
        return [job for job in jobs if not job.state.is_over]

    def let_finish(self, *, timeout_s: float) -> None:
        """Wait until every job is over in Slurm and in the store, and the journal has nothing open."""
        begun = time.monotonic()
        while time.monotonic() - begun < timeout_s:
            self._keep_daemon()
            self._undo_what_is_due(time.monotonic())
            self._mend_slurm(time.monotonic())
            with contextlib.suppress(SlurmError):
                self._running_unmanaged()
                recorded = all(record.state.is_over for record in self.site.user.store.jobs.all())
                is_over = not self.site.unfinished() and not self.site.wings()
                if is_over and recorded and not self.site.user.store.journal.open_reallocations():
                    return
            self._pause.wait(1.0)
        self._tell(f"gave up waiting after {timeout_s:g} s")

    def _undo_everything(self) -> None:
        """Undo all faults, and leave a daemon that will not be killed."""
        self._disarm()
        deadline = time.monotonic() + 300
        while self._undos and time.monotonic() < deadline:
            self._undo_what_is_due(float("inf"))
            self._pause.wait(1.0)
        self.outcome.wrong.extend(f"{resource} could not be repaired" for resource in self._undos)
        self._submitter.shutdown(wait=True)
        self._restart_at = None
        if self.site.user.process is None or self.site.daemon_exit_code() is not None:
            self.site.start_daemon()
