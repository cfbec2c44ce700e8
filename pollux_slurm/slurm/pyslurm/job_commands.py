"""The `JobHand` of the PySlurm backend (PySlurm 25.11, extra `pollux-slurm[pyslurm]`).

The looks and commands around each move of a job go to slurmctld from one long-lived process, instead of one
process each. What PySlurm 25.11 cannot say or do stays with Slurm's commands:

- the bulk read: PySlurm has no `gres_used` of a node, and loses a job's request for GPUs, CPUs per GPU and
  memory per GPU in the form that Slurm 25.11 writes it (`gres/gpu:t4:5`);
- new shapes: `Job.modify` reports success for a number of nodes and changes nothing, and cannot clear a
  field (nor a Comment);
- ending a job: `Job.cancel` looks at the error number of some earlier call;
- tasks of job arrays: it names them by number alone, which may also mean the whole array.
"""

from __future__ import annotations

from typing import Any

from pollux_slurm.errors import SlurmCommandError, SlurmReadError
from pollux_slurm.slurm.commands.job_commands import CommandHand, Peek, job_number, refusal
from pollux_slurm.slurm.parsing.job_json import state_of
from pollux_slurm.slurm.pyslurm.process import PySlurmRefusedError, PySlurmWorker

_NO_SUCH_JOB = 2017  # ESLURM_INVALID_JOB_ID of slurm_errno.h


class PySlurmHand:
    """A `JobHand` over PySlurm, with `commands` for what it cannot do."""

    def __init__(self, worker: PySlurmWorker, commands: CommandHand) -> None:
        self._worker = worker
        self._commands = commands

    def peek(self, job_id: str) -> Peek | None:
        """Return the job's state; None when slurmctld no longer (or never) knew it."""
        seen = self._look(job_id)
        if seen is None:
            return None
        if seen["array"]:
            return self._commands.peek(job_id)
        numbers = [seen[key] for key in ("priority", "min_cpus", "user_id", "restart_count")]
        if not all(type(number) is int for number in numbers):
            raise SlurmReadError(f"PySlurm: cannot make sense of job {job_id}: {seen}")
        return Peek(
            address=job_id,
            state=state_of((str(seen["state"]),), f"job {job_id}"),
            held=seen["priority"] == 0,
            min_cpus_per_node=str(seen["min_cpus"]),
            user_id=seen["user_id"],
            restart_count=seen["restart_count"],
        )

    def requeue_hold(self, job_id: str, address: str) -> None:
        """Put a running, failed or completed job back into the queue, held."""
        if address != job_id:
            return self._commands.requeue_hold(job_id, address)
        return self._command("requeue_hold", job_id)

    def release(self, job_id: str, address: str) -> None:
        """Let a held job start."""
        if address != job_id:
            return self._commands.release(job_id, address)
        return self._command("release", job_id)

    def cancel(self, job_id: str, address: str) -> None:
        """End the job."""
        self._commands.cancel(job_id, address)

    def _look(self, job_id: str) -> dict[str, Any] | None:
        """Return what slurmctld says of the very job that has this number."""
        try:
            seen = self._worker.ask("peek", job_number(job_id))
        except PySlurmRefusedError as error:
            if error.number == _NO_SUCH_JOB:
                return None
            raise refusal(f"PySlurm: {error}", SlurmReadError, about=f"job {job_id}") from None
        # The number of an array also finds its first task, in the order of slurmctld's list.
        if not isinstance(seen, dict) or (str(seen.get("job")) != job_id and not seen.get("array")):
            raise SlurmReadError(f"PySlurm: cannot make sense of job {job_id}: {seen!r}")
        return seen

    def _command(self, do: str, job_id: str) -> None:
        try:
            self._worker.ask(do, job_id)
        except PySlurmRefusedError as error:
            raise refusal(f"PySlurm: {error}", SlurmCommandError, about=f"job {job_id}") from None
