"""The `JobCommands` of the PySlurm backend (PySlurm 25.11, extra `pollux-slurm[pyslurm]`).

The reads and commands of a reallocation go to slurmctld from one long-lived process, instead of one process
each. What PySlurm 25.11 cannot do is done by Slurm's commands:

- Bulk reads: PySlurm has no `gres_used` of a node, and does not parse a job's request for GPUs, CPUs per GPU
  and memory per GPU as Slurm 25.11 writes it (`gres/gpu:t4:5`).
- New shapes: `Job.modify` reports success for a number of nodes and changes nothing, and cannot clear a
  field (nor a Comment).
- Cancelling a job: `Job.cancel` reads the error number of some earlier call.
- Array tasks: PySlurm names them by id alone, which may also mean the whole array.
"""

from __future__ import annotations

from typing import Any

from pollux_slurm.errors import SlurmCommandError, SlurmReadError
from pollux_slurm.slurm.commands.job_commands import JobStatus, SlurmJobCommands, error_of_text, job_number
from pollux_slurm.slurm.parsing.job_json import state_of
from pollux_slurm.slurm.pyslurm.process import PySlurmRefusedError, PySlurmWorker

_NO_SUCH_JOB = 2017  # ESLURM_INVALID_JOB_ID of slurm_errno.h


class PySlurmJobCommands:
    """A `JobCommands` over PySlurm, with `commands` for what it cannot do."""

    def __init__(self, worker: PySlurmWorker, commands: SlurmJobCommands) -> None:
        self._worker = worker
        self._commands = commands

    def read_status(self, job_id: str) -> JobStatus | None:
        """Return the job's status; None when slurmctld does not know it (any more)."""
        job = self._load(job_id)
        if job is None:
            return None
        if job.get("array"):
            return self._commands.read_status(job_id)
        numbers = [job.get(key) for key in ("priority", "min_cpus", "user_id", "restart_count")]
        if not all(type(number) is int for number in numbers):
            raise SlurmReadError(f"PySlurm: cannot parse job {job_id}: {job}")
        return JobStatus(
            address=job_id,
            state=state_of((str(job.get("state")),), f"job {job_id}"),
            held=job["priority"] == 0,
            min_cpus_per_node=str(job["min_cpus"]),
            user_id=job["user_id"],
            restart_count=job["restart_count"],
        )

    def requeue_hold(self, job_id: str, address: str) -> None:
        """Requeue a running, failed or completed job, held."""
        if address != job_id:
            return self._commands.requeue_hold(job_id, address)
        return self._command("requeue_hold", job_id)

    def release(self, job_id: str, address: str) -> None:
        """Release a held job."""
        if address != job_id:
            return self._commands.release(job_id, address)
        return self._command("release", job_id)

    def cancel(self, job_id: str, address: str) -> None:
        """Cancel the job."""
        self._commands.cancel(job_id, address)

    def _load(self, job_id: str) -> dict[str, Any] | None:
        """Return the job that has this very id, as `worker.py` sends it; None for an unknown one."""
        try:
            job = self._worker.ask("read_status", job_number(job_id))
        except PySlurmRefusedError as error:
            if error.number == _NO_SUCH_JOB:
                return None
            raise error_of_text(f"PySlurm: {error}", SlurmReadError, about=f"job {job_id}") from None
        # The id of an array also finds the array's first task in slurmctld's list.
        if not isinstance(job, dict) or (str(job.get("job")) != job_id and not job.get("array")):
            raise SlurmReadError(f"PySlurm: cannot parse job {job_id}: {job!r}")
        return job

    def _command(self, do: str, job_id: str) -> None:
        try:
            self._worker.ask(do, job_id)
        except PySlurmRefusedError as error:
            raise error_of_text(f"PySlurm: {error}", SlurmCommandError, about=f"job {job_id}") from None
