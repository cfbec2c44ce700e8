"""A policy in a process of its own: it reads rounds and writes allocations, one line of JSON each.

The process lives for one simulation. A line to it is a `pollux-round`: the problem as `pollux replay` reads
it, the simulated time, and what the jobs' users requested. A line from it is
`{"allocations": {JOB: {NODE: GPUS}}}`; jobs that it leaves out have no GPUs. Its stderr is the user's. It
ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollux_slurm.errors import SimulationError
from pollux_slurm.json_texts import parse_json
from pollux_slurm.model import BatchChoice, Objective, Problem
from pollux_slurm.policy.problem.json_format import document_to_json
from pollux_slurm.simulator.engine.cluster import Cluster
from pollux_slurm.simulator.engine.job import GpusByNode, SimulatedJob
from pollux_slurm.simulator.inputs.batch_splits import user_batch
from pollux_slurm.simulator.policies.adaptive.pollux import PolluxPolicy

# A longer answer is none: it would fill the memory.
_MOST_BYTES = 64 * 2**20
_ENDS_IN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a job's user requested, who tuned it by hand."""

    job_id: str
    application: str
    num_gpus: int
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRound:
    """What the process is asked: the problem at `now_s`, and a request for each of its jobs."""

    now_s: float
    requests: tuple[Request, ...]
    problem: Problem


class ExternalPolicy(PolluxPolicy):
    """Asks the process of `command`, an argument list, which has `time_limit_s` for each answer.

    Jobs tune their batch as under Pollux; with `user_batch`, they keep the one that their user requested.
    """

    def __init__(self, command: Sequence[str], *, time_limit_s: float, user_batch: bool = False) -> None:
        super().__init__(Objective())
        self._command, self._limit_s, self._user_batch = tuple(command), time_limit_s, user_batch
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def choose_batch(self, job: SimulatedJob) -> BatchChoice:
        if self._user_batch:
            return user_batch(job.job, job.application, job.num_gpus)
        return super().choose_batch(job)

    def allocate(
        self, now_s: float, jobs: Sequence[SimulatedJob], cluster: Cluster
    ) -> Mapping[str, GpusByNode]:
        """Return what the process answers. Raises `SimulationError` for none, and for a wrong one."""
        problem = self.problem(now_s, jobs, cluster)
        requests = tuple(
            Request(
                job_id=job.job.name,
                application=job.job.application,
                num_gpus=job.job.num_replicas,
                batch_size=job.job.batch_size,
            )
            for job in jobs
        )
        asked = document_to_json("round", AskedRound(now_s=now_s, requests=requests, problem=problem))
        try:
            return _checked(self._ask(asked.encode() + b"\n"), problem)
        except SimulationError as error:
            self.close()
            raise SimulationError(f"policy external, at {now_s:g} s: {error}") from None

    def close(self) -> None:
        """End the process: its input first, itself after some seconds."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_ENDS_IN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _ask(self, line: bytes) -> bytes:
        """Return the line that answers `line`."""
        if self._process is None:
            self._process = _start(self._command)
        process, until_s = self._process, time.monotonic() + self._limit_s
        assert process.stdin is not None
        assert process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            ready.register(process.stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._rest:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise SimulationError(f"no answer within {self._limit_s:g} s (time_limit_s)")
                for key, _ in ready.select(left_s):
                    if key.fileobj is process.stdin:
                        line = line[_written(process.stdin.fileno(), line) :]
                        if not line:
                            ready.unregister(process.stdin)
                        continue
                    part = os.read(process.stdout.fileno(), 2**16)
                    if not part:
                        code = process.wait(_ENDS_IN_S)
                        raise SimulationError(f"{self._command[0]} ended with exit code {code} unasked")
                    self._rest += part
                    if len(self._rest) > _MOST_BYTES:
                        raise SimulationError(f"an answer of more than {_MOST_BYTES // 2**20} MB")
        answer, _, self._rest = self._rest.partition(b"\n")
        return answer


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    except OSError as error:
        raise SimulationError(f"cannot start {command[0]}: {error.strerror}") from None
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    return process


def _written(file: int, line: bytes) -> int:
    try:
        return os.write(file, line)
    except BlockingIOError:
        return 0
    except BrokenPipeError:  # its end is found when its output is read
        return len(line)


def _checked(answer: bytes, problem: Problem) -> dict[str, GpusByNode]:
    """Return the allocations of an answer that are possible in `problem`. Raises `SimulationError`.

    A job has GPUs of one type, within its limits; the engine checks that no node is given away twice.
    """
    try:
        document = parse_json(answer)
    except ValueError as error:
        raise SimulationError(f"the answer is not JSON: {error}") from None
    given = document.get("allocations") if isinstance(document, dict) and len(document) == 1 else None
    if not isinstance(given, dict):
        raise SimulationError('the answer is not {"allocations": {JOB: {NODE: GPUS}}}')
    jobs = {job.job_id: job for job in problem.jobs}
    numbers = {node.name: number for number, node in enumerate(problem.nodes)}
    found: dict[str, GpusByNode] = {}
    for job_id, nodes in given.items():
        job = jobs.get(job_id)
        if job is None:
            raise SimulationError(f"job {job_id!r} has ended, or never was")
        allocation = _allocation(job_id, nodes, numbers)
        num_gpus = sum(gpus for _, gpus in allocation)
        if num_gpus and not job.min_gpus <= num_gpus <= (job.max_gpus or num_gpus):
            raise SimulationError(f"job {job_id}: {num_gpus} GPUs, not {job.min_gpus} to {job.max_gpus}")
        if len({problem.nodes[node].gpu_type for node, _ in allocation}) > 1:
            raise SimulationError(f"job {job_id}: GPUs of several types")
        if job.pinned and dict(job.current.gpus_by_node) != nodes:
            raise SimulationError(f"job {job_id} is being moved: its allocation cannot change (pinned)")
        if allocation:
            found[job_id] = allocation
    return found


def _allocation(job_id: str, nodes: Any, numbers: Mapping[str, int]) -> GpusByNode:
    if not isinstance(nodes, dict):
        raise SimulationError(f"job {job_id}: expected GPUs by node, not {nodes!r:.60}")
    for node, gpus in nodes.items():
        if node not in numbers or type(gpus) is not int or gpus < 1:
            raise SimulationError(f"job {job_id}: no node has the name {node!r} and {gpus!r:.60} GPUs")
    return tuple(sorted((numbers[node], gpus) for node, gpus in nodes.items()))
