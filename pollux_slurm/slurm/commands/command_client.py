"""The Slurm client that runs Slurm's own commands. Its contract is in `pollux_slurm.slurm.client`.

Bulk reads are JSON. Reads and simple commands of one job go through a `JobCommands`; with the one of
`pyslurm/job_commands.py` this class is the PySlurm client. Another client may act between a check and its
command. Two commands therefore carry a condition of their own:

- `scontrol hold` of a running job succeeds, and would hold the job at its next requeue (22.05). `hold`
  therefore sets priority 0 together with a field that Slurm refuses to change on a running job; measured on
  22.05.8 and 24.11.5, Slurm then refuses both.
- `ReqNodeList` shrinks a running job at once, even in an update that Slurm then refuses for another of its
  fields (22.05.8). `reshape` therefore updates twice. The first update sets all but the nodes, with a begin
  time a minute ahead; Slurm refuses it as a whole on a running job. The second names the nodes.
"""

from __future__ import annotations

import math
import os
import pwd
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone

from pollux_slurm.errors import (
    JobStateError,
    SlurmCommandError,
    SlurmReadError,
    UsageError,
)
from pollux_slurm.model import ClusterSnapshot, JobShape, JobState, SlurmJob
from pollux_slurm.slurm.commands.cluster_reads import ClusterReads, checked
from pollux_slurm.slurm.commands.job_commands import (
    JobCommands,
    JobStatus,
    SlurmJobCommands,
    error_of_result,
    run_job_command,
)
from pollux_slurm.slurm.commands.runner import CommandRunner
from pollux_slurm.slurm.commands.sbatch_answer import submitted_job_id
from pollux_slurm.slurm.commands.shape_update import shape_fields

# Slurm revokes a job that starts within the second of its own kill (22.05). Its clock has whole seconds: a
# begin time two seconds later leaves one whole second between.
START_DELAY_S = 2
# A job's state that was read longer ago than this counts as stale.
_STALE_S = 2.0
# Between the two updates of `reshape` the job must not start. If we die there, it may start after this time.
_BETWEEN_UPDATES_S = 60
_MAX_PRIORITY = 2**32 - 16  # Slurm means other things by the numbers above


class CommandClient:
    """A `SlurmClient` over squeue, sinfo, scontrol, scancel and sbatch.

    `wall_clock` returns an aware UTC time; snapshots and begin times are computed from it.
    """

    def __init__(
        self,
        runner: CommandRunner,
        *,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        monotonic: Callable[[], float] = time.monotonic,
        guard: Callable[[], None] = lambda: None,
        job_commands: JobCommands | None = None,
        reads: ClusterReads | None = None,
    ) -> None:
        self._runner = runner
        self._job_commands = SlurmJobCommands(runner) if job_commands is None else job_commands
        self._wall_clock = wall_clock
        self._monotonic = monotonic
        self._guard = guard
        self._reads = reads or ClusterReads(runner, wall_clock=wall_clock, settings=self.settings)

    def guarded(self, guard: Callable[[], None]) -> CommandClient:
        """Return a client that calls `guard` right before each command that changes a job."""
        return CommandClient(
            self._runner,
            wall_clock=self._wall_clock,
            monotonic=self._monotonic,
            guard=guard,
            job_commands=self._job_commands,
            reads=self._reads,
        )

    # ------------------------------------------------------------------------------------------- reading

    def version(self) -> str:
        """Return Slurm's release, such as `22.05.8`."""
        answer = checked(self._runner.run("scontrol", "--version"))
        match = re.search(r"(?<![0-9])[0-9]{1,9}\.[0-9]+(\.[0-9]+)?\S*", answer.stdout)
        if match is None:
            raise SlurmReadError(f"scontrol --version printed no release: {answer.error_text[:120]}")
        return match[0]

    def settings(self) -> Mapping[str, str]:
        """Return slurmctld's settings by name."""
        text = checked(self._runner.run("scontrol", "show", "config")).stdout
        return {
            match[1]: match[2].strip() for match in re.finditer(r"^(\w+)\s*=[ \t]*(.*)$", text, re.MULTILINE)
        }

    def configuration(self) -> str:
        """Return slurmctld's settings and partitions as text to compare."""
        settings = [f"{key}={text}" for key, text in self.settings().items() if key != "NEXT_JOB_ID"]
        partitions = checked(self._runner.run("scontrol", "--all", "--oneliner", "show", "partition")).stdout
        return "\n".join((*settings, partitions))

    def controller_time(self) -> datetime:
        """Return slurmctld's clock, in whole seconds."""
        text = checked(self._runner.run("scontrol", "show", "config")).stdout
        as_of = re.search(r"^Configuration data as of (\S+)", text, re.MULTILINE)
        try:
            # The runner sets TZ=UTC.
            return datetime.fromisoformat(as_of[1] if as_of else "").replace(tzinfo=timezone.utc)
        except ValueError:
            raise SlurmReadError("scontrol show config did not print slurmctld's time") from None

    def snapshot(self) -> ClusterSnapshot:
        """Read all jobs and all nodes, completely or not at all."""
        return self._reads.snapshot()

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        """Read the nodes and these jobs again, or all jobs: by columns of text."""
        return self._reads.refresh(job_ids)

    def read_job(self, job_id: str) -> SlurmJob | None:
        """Read one job; None when slurmctld does not know it (any more)."""
        return self._reads.read_job(job_id)

    # ------------------------------------------------------------------------------------------ changing

    def requeue_hold(self, job_id: str, *, restart_count: int | None = None) -> None:
        """Kill the running job and put it back into the queue, held."""
        status = self._expect(job_id, JobState.RUNNING, to="requeue it")
        if restart_count is not None:
            _expect_run(job_id, status, restart_count)
        self._act(job_id, lambda: self._job_commands.requeue_hold(job_id, status.address))

    def requeue(self, job_id: str, *, restart_count: int) -> None:
        """Kill the job that is RUNNING in that run and requeue it in its present shape."""
        status = self._expect(job_id, JobState.RUNNING, to="requeue it")
        _expect_run(job_id, status, restart_count)
        self._change(job_id, "scontrol", "requeue", status.address)

    def requeue_failed(self, job_id: str, *, restart_count: int) -> None:
        """Requeue, held, a job that FAILED in the run numbered `restart_count`."""
        status = self._expect(job_id, JobState.FAILED, to="put it back into the queue")
        _expect_run(job_id, status, restart_count)
        self._act(job_id, lambda: self._job_commands.requeue_hold(job_id, status.address))

    def set_begin_time(self, job_id: str, *, ahead_s: float, time_limit_s: float | None = None) -> None:
        """Let a PENDING job begin no sooner than `ahead_s` seconds from now."""
        if not 0 < ahead_s < 1e9:
            raise UsageError(f"job {job_id}: cannot be given a begin time in {ahead_s:g} s")
        status = self._expect(job_id, JobState.PENDING, to="set its begin time")
        # On a running job Slurm refuses a StartTime, and the whole update with it.
        start = self._wall_clock().timestamp() + ahead_s
        fields = {"StartTime": _slurm_time(start), **_time_limit(time_limit_s)}
        self._update_pending(job_id, status.address, fields)

    def hold(self, job_id: str) -> None:
        """Keep a PENDING job from starting. Refused, without effect, if it started meanwhile."""
        status = self._expect(job_id, JobState.PENDING, to="hold it")
        if status.held:
            return
        # Slurm refuses MinCPUsNode for a running job, and the whole update with it (22.05 to 26.05).
        self._change(
            job_id,
            "scontrol",
            "update",
            f"JobId={status.address}",
            f"MinCPUsNode={status.min_cpus_per_node}",
            "Priority=0",
        )
        if status.user_id != os.geteuid():
            # Turn the admin's hold, which only an admin can release, into a user's hold.
            self._change(job_id, "scontrol", "uhold", status.address)

    def reshape(self, job_id: str, shape: JobShape, *, known: SlurmJob | None = None) -> None:
        """Give a PENDING job a new shape, and a start no sooner than two seconds after its kill."""
        if shape.num_gpus < max(shape.num_nodes, 1) or shape.cpus_per_gpu < 1:
            raise UsageError(f"job {job_id}: no job can have the shape {shape}")
        job = known if known is not None else self.read_job(job_id)
        status = self._expect(job_id, JobState.PENDING, to="reshape it")
        if job is None:
            raise JobStateError(f"job {job_id} is unknown to Slurm: cannot reshape it")
        _expect_run(job_id, status, job.restart_count)
        if job.unschedulable_reason is not None:
            raise SlurmCommandError(f"job {job_id} cannot be reshaped: {job.unschedulable_reason}")
        asked = job.requested_gpu_type
        if shape.gpu_type not in (None, asked) and not (shape.nodes and asked is None):
            raise SlurmCommandError(
                f"job {job_id} cannot be given GPUs of type {shape.gpu_type}: "
                f"it asked for {asked or 'any type'}, and Slurm keeps that"
            )
        start = self._start_time(job)
        size = {**shape_fields(shape, job), **_time_limit(shape.time_limit_s)}
        if not shape.nodes:
            self._update_pending(job_id, status.address, {**size, "StartTime": _slurm_time(start)})
            return
        late_begin = max(start, self._wall_clock().timestamp() + _BETWEEN_UPDATES_S)
        self._update_pending(job_id, status.address, {**size, "StartTime": _slurm_time(late_begin)})
        begin = {"StartTime": _slurm_time(start)}
        self._expect(job_id, JobState.PENDING, to="name its nodes")
        try:
            self._update(job_id, status.address, {"ReqNodeList": ",".join(shape.nodes), **begin})
        except SlurmCommandError:
            self._update(job_id, status.address, begin)
            raise

    def release(self, job_id: str) -> None:
        """Release a held job. A pending job that is not held, and a running one, stay as they are."""
        status = self._job_commands.read_status(job_id)
        if status is not None and status.state in (JobState.RUNNING, JobState.SUSPENDED):
            return
        status = self._expect(job_id, JobState.PENDING, to="release it")
        if status.held:
            self._act(job_id, lambda: self._job_commands.release(job_id, status.address))

    def set_priority(self, job_id: str, priority: int) -> None:
        """Give a PENDING job this priority. Refused for a held job, which Slurm would release by it."""
        if priority < 1:
            raise UsageError(f"job {job_id}: {priority} is not a priority")
        status = self._expect(job_id, JobState.PENDING, to="set its priority")
        if status.held:
            raise JobStateError(f"job {job_id} is held: cannot set its priority; nothing was changed")
        self._update_pending(job_id, status.address, {"Priority": str(min(priority, _MAX_PRIORITY))})

    def restore_priority(self, job_id: str) -> None:
        """Give a PENDING or RUNNING job the priority that Slurm computes for it. A held job stays held."""
        status = self._job_commands.read_status(job_id)
        if status is None or status.state not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED):
            raise JobStateError(f"job {job_id} neither waits nor runs: its priority stays as it is")
        # A release is what sets it, also of a running job (22.05).
        if not status.held:
            self._change(job_id, "scontrol", "release", status.address)

    def create_reservation(self, name: str, nodes: Sequence[str], *, minutes: int) -> None:
        """Let no job start on these nodes for so long."""
        user = pwd.getpwuid(os.geteuid()).pw_name
        self._reservation(
            "create",
            f"ReservationName={name}",
            f"Nodes={','.join(nodes)}",
            "StartTime=now",
            f"Duration={minutes}",
            f"Users={user}",
            "Flags=IGNORE_JOBS,OVERLAP",  # several jobs of a node may move
        )

    def delete_reservation(self, name: str) -> None:
        """End a reservation."""
        self._reservation("delete", f"ReservationName={name}")

    def _reservation(self, command: str, *fields: str) -> None:
        self._guard()
        what = ("reservation",) if command == "create" else ()
        answer = self._runner.run("scontrol", command, *what, *fields)
        if answer.exit_code != 0:
            raise error_of_result(answer, SlurmCommandError)

    def set_comment(self, job_id: str, comment: str) -> None:
        """Replace the job's Comment. Owner or operator only."""
        status = self._job_commands.read_status(job_id)
        if status is None or status.state.is_over:
            raise JobStateError(f"job {job_id} is over or unknown to Slurm: its Comment cannot be set")
        self._update(job_id, status.address, {"Comment": comment})

    def cancel(self, job_id: str) -> None:
        """Cancel the job. Does nothing when it is over already, or unknown."""
        status = self._job_commands.read_status(job_id)
        if status is None or status.state.is_over:
            return
        try:
            self._act(job_id, lambda: self._job_commands.cancel(job_id, status.address))
        except JobStateError:  # it ended meanwhile
            return

    def submit(
        self, script: str, options: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]
    ) -> str:
        """Submit a batch script given as text; return the job id.

        sbatch runs with exactly `env`, and the job inherits it. Without `--job-name` the job is named as
        sbatch names a script from standard input.
        """
        if not script.strip():
            raise UsageError("the batch script is empty")
        # sbatch takes arguments only after a file name, and `-` is none to it (22.05).
        source = ("/dev/stdin", *arguments) if arguments else ()
        answer = self._runner.run("sbatch", "--parsable", *options, *source, stdin=script, environ=env)
        if answer.exit_code != 0:
            raise error_of_result(answer, SlurmCommandError)
        number = submitted_job_id(answer.stdout)
        if number is None:
            raise SlurmReadError(f"sbatch printed no job id: {answer.stdout[:120]!r}")
        return number

    # -------------------------------------------------------------------------------------------- inside

    def _start_time(self, job: SlurmJob) -> float:
        """Return when a reshaped job may start, in seconds since 1970.

        The submit time of a requeued job is the time at which slurmctld killed it. A job that never ran keeps
        its owner's --begin, unless it waits for just this shape. The begin time of a requeued job is ignored:
        Slurm's requeue sets it two minutes ahead (22.05).
        """
        now = self._wall_clock()
        if job.restart_count == 0:
            begins_at = None if job.waits_for_placing else job.begins_at
            return max(now, begins_at or now).timestamp()
        return max(now, (job.submitted_at or now) + timedelta(seconds=START_DELAY_S)).timestamp()

    def _expect(self, job_id: str, state: JobState, *, to: str) -> JobStatus:
        status = self._job_commands.read_status(job_id)
        if status is None:
            raise JobStateError(f"job {job_id} is unknown to Slurm: cannot {to}")
        if status.state is not state:
            raise JobStateError(
                f"job {job_id} is {status.state.value}, not {state.value}: cannot {to}; nothing was changed"
            )
        return status

    def _update_pending(self, job_id: str, address: str, fields: Mapping[str, str]) -> None:
        """Update a job; `JobStateError` if it was refused because the job is not PENDING any more."""
        try:
            self._update(job_id, address, fields)
        except SlurmCommandError:
            self._expect(job_id, JobState.PENDING, to="change it")  # a clearer message than Slurm's
            raise

    def _update(self, job_id: str, address: str, fields: Mapping[str, str]) -> None:
        pairs = [f"{key}={value}" for key, value in fields.items()]
        self._change(job_id, "scontrol", "update", f"JobId={address}", *pairs)

    def _change(self, job_id: str, command: str, *arguments: str) -> None:
        self._act(job_id, lambda: run_job_command(self._runner, job_id, command, *arguments))

    def _act(self, job_id: str, command: Callable[[], None]) -> None:
        """Call the guard, then give the command unless the job's state is stale by then."""
        guarded_from = self._monotonic()
        self._guard()
        if self._monotonic() - guarded_from > _STALE_S:
            raise JobStateError(f"job {job_id}: its state was read too long ago; nothing was changed")
        command()


def _expect_run(job_id: str, status: JobStatus, restart_count: int) -> None:
    """Refuse unless the job is in its run of that number."""
    if status.restart_count != restart_count:
        raise JobStateError(
            f"job {job_id} has been requeued {status.restart_count} times, not {restart_count}: "
            "nothing was changed"
        )


def _time_limit(time_limit_s: float | None) -> dict[str, str]:
    """Return the field of a time limit in whole minutes, Slurm's unit; no field for None."""
    return {} if time_limit_s is None else {"TimeLimit": str(max(math.ceil(time_limit_s / 60), 1))}


def _slurm_time(seconds: float) -> str:
    """Format a time for scontrol, which runs with UTC as its time zone, in whole seconds."""
    moment = datetime.fromtimestamp(int(seconds), timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")
