"""Read the cluster with Slurm's commands: completely as JSON, and between two such reads as columns of text.

A read that cannot be understood completely fails.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import ClusterSnapshot, JobState, SlurmJob, SlurmNode
from pollux_slurm.slurm.commands.job_commands import error_of_result, is_unknown_job, job_number
from pollux_slurm.slurm.commands.runner import CommandResult, CommandRunner
from pollux_slurm.slurm.parsing.core_requests import in_cpus, most_threads_per_core
from pollux_slurm.slurm.parsing.job_columns import is_as_read, read_row, row_format, split_rows
from pollux_slurm.slurm.parsing.job_json import parse_job
from pollux_slurm.slurm.parsing.json_fields import load_json, objects_of, release
from pollux_slurm.slurm.parsing.node_constraints import CLOSED_PARTITION
from pollux_slurm.slurm.parsing.node_json import parse_node
from pollux_slurm.slurm.parsing.reservations import reserved_from
from pollux_slurm.slurm.parsing.shares_of_memory import takes_whole_memory, with_shares_of_memory

_JOBS_JSON = ("squeue", "--json", "--all", "--states=all")
_JOBS_TEXT = ("squeue", "--noheader", "--all", "--states=all")
# 26.05 shows NO for every job that may not share; up to 24.11 that is a job of whole nodes.
_EXCLUSIVE_UNTIL = (25, 0)


class ClusterReads:
    """The reads of one daemon: `refresh` goes on from what was read last.

    It keeps reservations, partitions and threads of cores of the last complete read. `settings` reads
    slurm.conf.
    """

    def __init__(
        self,
        runner: CommandRunner,
        *,
        wall_clock: Callable[[], datetime],
        settings: Callable[[], Mapping[str, str]],
    ) -> None:
        self._runner, self._wall_clock, self._settings = runner, wall_clock, settings
        self._last: ClusterSnapshot | None = None
        # squeue's row of each job, and what it was read to.
        self._rows: dict[str, tuple[str, SlurmJob]] = {}
        self._release = (0, 0)
        self._threads_per_core: int | None = None
        self._closed_partitions: frozenset[str] = frozenset()
        self._reserved_from: Mapping[str, datetime] = {}
        self._gives_out_memory: bool | None = None  # as slurm.conf says, once it matters

    def snapshot(self) -> ClusterSnapshot:
        """Read all jobs and all nodes, completely or not at all."""
        read_at = self._wall_clock()
        jobs, self._release = self._parse_jobs(self._runner.run(*_JOBS_JSON))
        answer = checked(self._runner.run("scontrol", "--all", "--oneliner", "show", "reservations"))
        self._reserved_from = reserved_from(answer.stdout.splitlines(), now=read_at)
        nodes = self._read_nodes()
        self._threads_per_core = most_threads_per_core(nodes)
        self._closed_partitions = self._read_closed_partitions(jobs)
        shown = tuple(self._in_context(job) for job in jobs)
        self._last = ClusterSnapshot(read_at=read_at, nodes=nodes, jobs=shown)
        return self._with_shares(self._last)

    def refresh(self, job_ids: Collection[str] | None = None) -> ClusterSnapshot:
        """Read the nodes and these jobs again, or all jobs: by columns of text."""
        last = self._last
        if last is None:
            return self.snapshot()
        read_at, known = self._wall_clock(), {job.job_id: job for job in last.jobs}
        wanted = None if job_ids is None else {job_number(job_id) for job_id in job_ids}
        rows: dict[str, tuple[str, SlurmJob]] = {}
        for job_id, row in self._read_rows(wanted):
            before, was = known.get(job_id), self._rows.get(job_id)
            if before is None or was is None or was[0] != row or not is_as_read(before, was[1]):
                job, is_certain = read_row(row, before, tells_exclusive=self._release < _EXCLUSIVE_UNTIL)
                if not is_certain and wanted is not None:
                    return self.snapshot()
                # What is guessed is read again the next time.
                row, before = row if is_certain else "", self._in_context(job)
            rows[job_id] = (row, before)
        rest = () if wanted is None else [job for job in last.jobs if job.job_id not in wanted]
        self._rows = rows if wanted is None else {**self._rows, **rows}
        jobs = (*rest, *(job for _, job in rows.values()))
        self._last = ClusterSnapshot(read_at=read_at, nodes=self._read_nodes(), jobs=jobs)
        return self._with_shares(self._last)

    def read_job(self, job_id: str) -> SlurmJob | None:
        """Read one job; None when slurmctld does not know it (any more)."""
        # 22.05 ignores --jobs and prints all; later releases print the one, or an error if there is none.
        answer = self._runner.run(*_JOBS_JSON, f"--jobs={job_number(job_id)}")
        if answer.exit_code != 0 and is_unknown_job(answer):
            return None
        jobs, self._release = self._parse_jobs(answer)
        job = next((job for job in jobs if job.job_id == job_id), None)
        if job is None or not job.one_thread_per_core:
            return job
        if self._threads_per_core is None:
            self._threads_per_core = most_threads_per_core(self._read_nodes())
        return in_cpus(job, self._threads_per_core)

    def _parse_jobs(self, answer: CommandResult) -> tuple[list[SlurmJob], tuple[int, int]]:
        content = load_json(whole(answer).stdout, "squeue")
        return [parse_job(job) for job in objects_of(content, "jobs", "squeue")], release(content)

    def _read_nodes(self) -> tuple[SlurmNode, ...]:
        # `sinfo --json` lists nodes in 22.05, and since 23.11 groups of nodes; scontrol has JSON since 23.02.
        newer = ("scontrol", "--all", "show", "nodes", "--json")
        command = newer if self._release >= (23, 2) else ("sinfo", "--all", "--json")
        content = load_json(whole(self._runner.run(*command)).stdout, command[0])
        nodes = tuple(parse_node(node) for node in objects_of(content, "nodes", command[0]))
        if not nodes:
            raise SlurmReadError(f"{command[0]}: the answer contains no node")
        reserved = self._reserved_from
        return tuple(
            dataclasses.replace(node, reserved_from=reserved[node.name]) if node.name in reserved else node
            for node in nodes
        )

    def _read_rows(self, job_ids: Collection[str] | None) -> list[tuple[str, str]]:
        """Return (job id, squeue's row) of these jobs, or of all; those that Slurm has forgotten lack."""
        if job_ids is not None and not job_ids:
            return []
        word = secrets.token_urlsafe(6)
        chosen = () if job_ids is None else (f"--jobs={','.join(sorted(job_ids))}",)
        answer = self._runner.run(*_JOBS_TEXT, *chosen, f"--Format={row_format(word)}")
        if answer.exit_code != 0:
            if job_ids is not None and is_unknown_job(answer):
                return []
            raise error_of_result(answer, SlurmReadError)
        # The number of an array is also that of its last task: `--jobs` shows all tasks.
        return [
            (own, row) for own, row in split_rows(answer.stdout, word) if job_ids is None or own in job_ids
        ]

    def _in_context(self, job: SlurmJob) -> SlurmJob:
        """Return a job as nodes and partitions make it: its request in CPUs, and only where it may start."""
        job = in_cpus(job, self._threads_per_core or 1)
        closed = self._closed_partitions
        if job.state is not JobState.PENDING or closed.isdisjoint(job.partitions):
            return job
        open_ones = [name for name in job.partitions if name not in closed]
        if not open_ones:
            return job
        # Slurm shows the reason of the partition that it tried last.
        reason = "None" if job.reason in CLOSED_PARTITION else job.reason
        return dataclasses.replace(job, partition=",".join(open_ones), reason=reason)

    def _read_closed_partitions(self, jobs: Sequence[SlurmJob]) -> frozenset[str]:
        """Return the partitions in which no job starts; none, unread, where no job waits in several."""
        if not any(len(job.partitions) > 1 for job in jobs if job.state is JobState.PENDING):
            return frozenset()
        lines = checked(self._runner.run("sinfo", "--noheader", "--all", "--format=%R %a")).stdout.split("\n")
        states = (line.split() for line in lines if line.strip())
        # Jobs that wait in a partition that is drained still start.
        return frozenset(name for name, *state in states if state not in (["up"], ["drain"]))

    def _with_shares(self, snapshot: ClusterSnapshot) -> ClusterSnapshot:
        if not any(takes_whole_memory(job) for job in snapshot.jobs):
            return snapshot
        if self._gives_out_memory is None:
            self._gives_out_memory = "memory" in self._settings().get("SelectTypeParameters", "").lower()
        return with_shares_of_memory(snapshot) if self._gives_out_memory else snapshot


def checked(answer: CommandResult) -> CommandResult:
    """Return the answer of a read. Raises the `SlurmError` that its failure means."""
    if answer.exit_code != 0:
        raise error_of_result(answer, SlurmReadError)
    return answer


def whole(answer: CommandResult) -> CommandResult:
    """Return the answer of a read that always prints something. Raises `SlurmError`."""
    if not checked(answer).stdout.strip():
        raise error_of_result(answer, SlurmReadError)
    return answer
