"""What the rest of the package may ask of Slurm.

Contract, held by every backend and by the tests' in-memory double:

- `snapshot` makes one bulk read of the jobs and one of the nodes, whatever their number, and returns both
  whole. If either fails, or is cut, or cannot be understood, it raises `SlurmReadError` (or
  `SlurmUnavailable`); it never returns a part. Jobs that ended a short while ago are included as long as
  slurmctld remembers them.
- Nothing above this layer sees Slurm's text: states are `JobState`, hosts are lists, times are aware UTC.
- A command that changes a job first reads that job's state and refuses with `JobStateError` when it is
  not the state that the command needs. In particular `reshape` refuses unless the job is PENDING: on a
  running job the same update would shrink it at once and kill its tasks (Slurm 22.05).
- Commands are idempotent: to hold a held job, or to release a released one, is no error.
- A refused command raises `SlurmCommandError` with Slurm's own words; a slurmctld that does not answer
  raises `SlurmUnavailable`, and the caller must assume that the command may or may not have happened.
- No argument ever reaches a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from pollux_slurm.model import ClusterSnapshot, JobShape, SlurmJob


class SlurmClient(Protocol):
    """One connection to one Slurm cluster."""

    def version(self) -> str:
        """Return Slurm's release, such as `22.05.8`."""

    def cluster_name(self) -> str:
        """Return ClusterName of slurm.conf."""

    def settings(self) -> Mapping[str, str]:
        """Return slurmctld's settings by name."""

    def controller_time(self) -> datetime:
        """Return slurmctld's clock, in whole seconds."""

    def snapshot(self) -> ClusterSnapshot:
        """Read all jobs and all nodes, completely or not at all."""

    def read_job(self, job_id: str) -> SlurmJob | None:
        """Read one job; None when slurmctld no longer (or never) knew it."""

    def guarded(self, guard: Callable[[], None]) -> SlurmClient:
        """Return a client of the same cluster that calls `guard` right before each command to a job.

        It is called after the job's state was read; what it raises passes, and the command is not given.
        When it takes so long that the state just read is stale, the command is refused with `JobStateError`.
        """

    def requeue_hold(self, job_id: str, *, restart_count: int | None = None) -> None:
        """Kill the running job and put it back into the queue, held.

        The job must be RUNNING, and, if `restart_count` is given, in the run that it numbers.
        """

    def requeue(self, job_id: str, *, restart_count: int) -> None:
        """Kill the job RUNNING in that run and put it back into the queue, to start again as it is."""

    def requeue_failed(self, job_id: str, *, restart_count: int) -> None:
        """Put a job that FAILED in the run numbered `restart_count` back into the queue, held."""

    def park(self, job_id: str, *, for_s: float, time_limit_s: float | None = None) -> None:
        """Let a PENDING job start no sooner than `for_s` seconds from now, in its shape, held or not.

        With `time_limit_s`, that is its time limit from now on, rounded up to minutes.
        """

    def hold(self, job_id: str) -> None:
        """Keep a PENDING job from starting. Refused, without effect, if it started meanwhile."""

    def reshape(self, job_id: str, shape: JobShape, *, known: SlurmJob | None = None) -> None:
        """Give a PENDING job a new shape, held or not, and a start no sooner than two seconds after its kill.

        A job that starts meanwhile keeps its shape, and `JobStateError` says so.

        `known` is the job as a snapshot has shown it since it was requeued: then only its state is read
        again. In 22.05 to read one job whole is to read them all.

        Two seconds, because a job that starts within the second of its own kill is lost (Slurm 22.05).
        """

    def release(self, job_id: str) -> None:
        """Let a held job start."""

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the job's Comment. Owner or operator only."""

    def cancel(self, job_id: str) -> None:
        """End the job. Nothing happens when it is over already."""

    def submit(
        self, script: str, options: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
    ) -> str:
        """Submit a batch script given as text; return the job's number."""
