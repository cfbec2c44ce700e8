"""What the rest of the package may ask of Slurm.

Contract, held by every backend and by the tests' in-memory double:

- `snapshot` makes one bulk read of the jobs and one of the nodes, whatever their number. It returns both
  completely. If either fails, is cut or cannot be parsed, it raises `SlurmReadError` (or
  `SlurmUnavailable`). Jobs that ended a short while ago are included as long as slurmctld remembers them.
- Nothing above this layer sees Slurm's text: states are `JobState`, hosts are lists, times are aware UTC.
- A command that changes a job first reads that job's state and refuses with `JobStateError` when it is
  not the state that the command needs. In particular `reshape` refuses unless the job is PENDING: on a
  running job the same update would shrink it at once and kill its tasks (Slurm 22.05).
- Commands are idempotent: to hold a held job, or to release a released one, is not an error.
- A refused command raises `SlurmCommandError` with Slurm's message. A slurmctld that does not answer raises
  `SlurmUnavailable`; the command may or may not have taken effect then.
- No argument ever reaches a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from pollux_slurm.model import ClusterSnapshot, JobShape, SlurmJob


class SlurmClient(Protocol):
    """One connection to one Slurm cluster."""

    def version(self) -> str:
        """Return Slurm's release, such as `22.05.8`."""

    def settings(self) -> Mapping[str, str]:
        """Return slurmctld's settings by name."""

    def configuration(self) -> str:
        """Return slurmctld's settings and partitions as text to compare: it changes only when they do."""

    def controller_time(self) -> datetime:
        """Return slurmctld's clock, in whole seconds."""

    def snapshot(self) -> ClusterSnapshot:
        """Read all jobs and all nodes, completely or not at all."""

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        """Read the nodes and these jobs again, or all jobs (None): what ticks and the watch need.

        It costs a small part of `snapshot` where the queue is long. All other jobs are as the last read had
        them, and those of the chosen ones that slurmctld has forgotten are left out. A run that began since
        `snapshot` has its GPUs; its CPUs and memory by node, and what its owner has changed of the request,
        may lack until the next one.
        """

    def read_job(self, job_id: str) -> SlurmJob | None:
        """Read one job; None when slurmctld does not know it (any more)."""

    def guarded(self, guard: Callable[[], None]) -> SlurmClient:
        """Return a client of the same cluster that calls `guard` right before each command to a job.

        `guard` is called after the job's state was read. When it raises, the command is not given. When it
        takes so long that the state is stale, the command is refused with `JobStateError`.
        """

    def requeue_hold(self, job_id: str, *, restart_count: int | None = None) -> None:
        """Kill the running job and put it back into the queue, held.

        The job must be RUNNING, and, if `restart_count` is given, in the run that it numbers.
        """

    def requeue(self, job_id: str, *, restart_count: int) -> None:
        """Kill the job that is RUNNING in that run and requeue it in its present shape."""

    def requeue_failed(self, job_id: str, *, restart_count: int) -> None:
        """Requeue, held, a job that FAILED in the run numbered `restart_count`."""

    def set_begin_time(self, job_id: str, *, ahead_s: float, time_limit_s: float | None = None) -> None:
        """Let a PENDING job, held or not, start no sooner than `ahead_s` seconds from now, in its shape.

        With `time_limit_s`, that becomes its time limit, rounded up to minutes.
        """

    def hold(self, job_id: str) -> None:
        """Keep a PENDING job from starting. Refused, without effect, if it started meanwhile."""

    def reshape(self, job_id: str, shape: JobShape, *, known: SlurmJob | None = None) -> None:
        """Give a PENDING job a new shape, held or not, and a start no sooner than two seconds after its kill.

        A job that starts meanwhile keeps its shape, and `JobStateError` is raised.

        `known` is the job from a snapshot taken after it was requeued. With it, only the job's state is read
        again: in 22.05, reading one job completely means reading all jobs.

        Two seconds, because a job that starts within the second of its own kill is lost (Slurm 22.05).
        """

    def release(self, job_id: str) -> None:
        """Let a held job start."""

    def set_priority(self, job_id: str, priority: int) -> None:
        """Give a PENDING job this priority, from 1; larger starts first. Operator only.

        Refused for a held job, which Slurm would release by it. Above Slurm's largest, it gets that one.
        """

    def restore_priority(self, job_id: str) -> None:
        """Give a PENDING or RUNNING job the priority that Slurm computes for it. A held job stays as it is.

        Refused for any other job.
        """

    def create_reservation(self, name: str, nodes: Sequence[str], *, minutes: int) -> None:
        """Let no job start on these nodes for so long. Jobs that run there go on. Operator only."""

    def delete_reservation(self, name: str) -> None:
        """End a reservation. Refused for an unknown one."""

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the job's Comment. Owner or operator only."""

    def cancel(self, job_id: str) -> None:
        """Cancel the job. Does nothing when it is over already."""

    def submit(
        self, script: str, options: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
    ) -> str:
        """Submit a batch script given as text; return the job id."""
