"""Parse one job of `squeue --json` (22.05 to 26.05) to a `SlurmJob`: request, allocation, state, and its end.

If a field that Slurm writes (state, allocation, times, numbers) cannot be parsed, the whole read fails: a
guess could move the wrong job. If a field that the owner wrote (the requested GPUs, CPUs per GPU) cannot be
parsed, only this job is unschedulable: no user can stop a round with a malformed request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pollux_slurm.errors import SlurmReadError
from pollux_slurm.model import Allocation, JobState, SlurmJob
from pollux_slurm.slurm.parsing.gres import Gres, count_gpus, parse_gres
from pollux_slurm.slurm.parsing.json_fields import Fields
from pollux_slurm.slurm.parsing.node_constraints import NodeConstraints, blocked_because
from pollux_slurm.slurm.parsing.wing_comment import parse_wing_comment

_MEMORY = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,6}))?([KMGTP]?)")
_MB_OF = {"K": 2**-10, "": 1, "M": 1, "G": 2**10, "T": 2**20, "P": 2**30}

# Slurm's states and flags. 22.05 prints only the most important one, later releases a list.
_BASE = {
    "PENDING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.SUSPENDED,
    "COMPLETED": JobState.COMPLETED,
    "CANCELLED": JobState.CANCELLED,
    "FAILED": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "NODE_FAIL": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PREEMPTED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
}
_FLAGS = {
    "COMPLETING": JobState.COMPLETING,
    "STAGE_OUT": JobState.COMPLETING,
    "STOPPED": JobState.SUSPENDED,  # SIGSTOP; it keeps its resources
    "CONFIGURING": JobState.RUNNING,  # it owns its nodes, which still boot or run the prolog
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "POWER_UP_NODE": JobState.RUNNING,
    "LAUNCH_FAILED": JobState.PENDING,
    "RECONFIG_FAIL": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
    "UPDATE_DB": None,
}
_HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin", "job requeued in held state"})
# A state_description or state_reason of jobs that Slurm itself holds.
_HELD_BY_SLURM = frozenset({"launch failed requeued held", "JobHoldMaxRequeue"})
_REQUEUED_HELD = "job requeued in held state"
# The descriptions of held jobs. squeue's text has a description in the place of its reason.
HELD_DESCRIPTIONS = frozenset({"launch failed requeued held", _REQUEUED_HELD})
# slurmctld starts a job without a time limit with one of a year.
_UNLIMITED_MINUTES = 365 * 24 * 60
MAY_NOT_BE_REQUEUED = "it may not be requeued; submit with --requeue"
"""The reason of a job with --no-requeue, or of any job that does not ask for it where the site says so."""

_WITHOUT_GPUS = "Slurm has started it without the GPUs that it asked for"


def parse_job(content: Mapping[str, Any]) -> SlurmJob:
    """Return the job. Raises `SlurmReadError` that names job and field for what cannot be parsed."""
    fields = Fields(content, f"job {content.get('job_id', '(unnumbered)')}")
    job_id = str(fields.count("job_id"))
    state = _state(fields)
    request, constraints = _Request.read(fields), NodeConstraints.read(fields)
    allocation, cpus, memory_mb = _owned_resources(fields, state, request.num_gpus)
    array_id, task_id = fields.number("array_job_id") or 0, fields.number("array_task_id")
    num_cpus = fields.number("cpus") or 0
    num_nodes = max(fields.number("node_count") or 1, 1)
    requested_gpus = max(request.num_gpus, allocation.num_gpus)
    held = state is JobState.PENDING and _is_held(fields)
    problem = (
        _unschedulable_reason(fields, request, array_id=array_id, task_id=task_id) or constraints.problem
    )
    has_ended = state.is_over or state is JobState.COMPLETING
    if problem is None and cpus and requested_gpus and not fields.words("gres_detail"):
        problem = _WITHOUT_GPUS
    suspended_or_resumed_at, resized_at = fields.time("suspend_time"), fields.time("resize_time")
    return SlurmJob(
        job_id=job_id,
        name=fields.text("name", ""),
        user_name=fields.text("user_name", "") or str(fields.count("user_id")),
        user_id=fields.count("user_id"),
        account=fields.text("account", ""),
        qos=fields.text("qos", ""),
        num_nodes=num_nodes,
        max_nodes=fields.number("max_nodes") or (num_nodes if request.is_by_node else None),
        exclusive=_is_exclusive(fields),
        partition=fields.text("partition", ""),
        state=state,
        held=held,
        held_by_slurm=held and _is_held_by_slurm(fields),
        reason=fields.text("state_reason", ""),
        comment=fields.text("comment", ""),
        allocation=allocation,
        requested_gpus=requested_gpus,
        num_cpus=num_cpus,
        cpus_per_gpu=request.cpus_per_gpu,
        memory_per_gpu_mb=_memory_per_gpu(fields, request, num_cpus, num_nodes, requested_gpus),
        cpus_by_node=cpus,
        memory_mb_by_node=memory_mb,
        restart_count=fields.count("restart_cnt"),
        submitted_at=fields.time("submit_time"),
        # For a pending job Slurm writes the expected start here.
        started_at=None if state is JobState.PENDING else fields.time("start_time"),
        array_id=str(array_id) if array_id else None,
        deadline_at=fields.owners_time("deadline"),
        # Not before its begin time.
        expected_start_at=fields.owners_time("start_time") if state is JobState.PENDING else None,
        ended_at=fields.time("end_time") if has_ended else None,
        time_limit_s=_time_limit_s(fields),
        exit_code=_exit_code(fields) if state.is_over else None,
        unschedulable_reason=problem,
        requested_gpu_type=request.gpu_type,
        priority=fields.number("priority"),
        begins_at=fields.owners_time("eligible_time") if state is JobState.PENDING else None,
        # 24.11 also sets memory_per_node for a running job with --mem-per-gpu.
        memory_by_node=request.memory_per_gpu_mb is None and bool(fields.number("memory_per_node")),
        least_memory_mb=_least_memory_mb(fields) if state is JobState.PENDING else 0,
        memory_in_all_mb=_memory_in_all_mb(fields) if state is JobState.PENDING else 0,
        one_thread_per_core=fields.number("threads_per_core") == 1,
        feature_sets=constraints.feature_sets,
        excluded_nodes=constraints.excluded,
        required_nodes=constraints.required,
        one_node=constraints.one_node,
        blocked_because=blocked_because(fields) if state is JobState.PENDING else None,
        held_since_requeue=held and _is_held_since_requeue(fields),
        last_allocation=_last_allocation(fields, request) if has_ended else Allocation(),
        suspended_at=suspended_or_resumed_at if "SUSPENDED" in fields.words("job_state") else None,
        resumed_at=None if "SUSPENDED" in fields.words("job_state") else suspended_or_resumed_at,
        counted_s=0.0 if suspended_or_resumed_at is None else float(fields.number("pre_sus_time") or 0),
        changes=((resized_at, allocation),) if resized_at is not None and allocation else (),
    )


def request_problem(content: Mapping[str, Any]) -> str | None:
    """Return what of an owner's request cannot be kept in another shape; None where all can.

    `content` has the fields of the request as Slurm shows them.
    """
    fields = Fields(content, "a request")
    return _Request.read(fields).problem or NodeConstraints.read(fields).problem


def state_of(words: Sequence[str], label: str) -> JobState:
    """Return the state that Slurm's state and flags mean. Raises `SlurmReadError` that names `label`."""
    return _state(Fields({"job_state": list(words)}, label))


def _state(fields: Fields) -> JobState:
    words = fields.words("job_state")
    if not words or not set(words) <= _BASE.keys() | _FLAGS.keys():
        raise fields.bad("job_state")
    base = next((_BASE[word] for word in words if word in _BASE), None)
    flags = [_FLAGS[word] for word in words if word in _FLAGS]
    # A job that is being killed cannot be changed, whatever its state will be.
    if JobState.COMPLETING in flags:
        return JobState.COMPLETING
    if base is JobState.RUNNING and JobState.SUSPENDED in flags:
        return JobState.SUSPENDED
    state = base or next((flag for flag in flags if flag is not None), None)
    if state is None:
        raise fields.bad("job_state")
    return state


def _is_held(fields: Fields) -> bool:
    return fields.number("priority") == 0 or fields.text("state_reason", "") in _HELD_REASONS


def _is_held_by_slurm(fields: Fields) -> bool:
    """Whether Slurm itself holds the job. A user's hold on top of that leaves no trace (22.05)."""
    texts = {fields.text("state_description", ""), fields.text("state_reason", "")}
    return bool(texts & _HELD_BY_SLURM)


def _is_held_since_requeue(fields: Fields) -> bool:
    """Whether the hold comes from a requeuehold. A hold by an administrator changes the reason (22.05)."""
    reason, description = fields.text("state_reason", ""), fields.text("state_description", "")
    return reason == _REQUEUED_HELD or (reason == "JobHeldUser" and description == _REQUEUED_HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """The owner's request. `problem` is what of it cannot be parsed, or not kept in another shape."""

    num_gpus: int
    gpu_type: str | None
    cpus_per_gpu: int | None
    memory_per_gpu_mb: int | None
    is_by_node: bool
    problem: str | None

    @classmethod
    def read(cls, fields: Fields) -> _Request:
        nodes = max(fields.number("node_count") or 1, 1)
        tasks = max(fields.number("tasks") or 1, 1)
        shares = {"tres_per_job": 1, "tres_per_node": nodes, "tres_per_task": tasks, "tres_per_socket": 1}
        types, others, problem = set[str](), set[str](), None
        counts: dict[str, int] = {}
        per_gpu: dict[str, int | None] = {}
        for key, share in shares.items():
            try:
                asked = count_gpus(_resources(fields.text(key, "")))
            except ValueError:
                problem = f"its request {key}={fields.text(key, '')[:60]!r} cannot be understood"
                continue
            counts[key] = asked.count * share
            types |= asked.types
            others |= asked.others
        for key in ("cpus_per_tres", "memory_per_tres"):
            try:
                per_gpu[key] = count_gpus(_resources(fields.text(key, ""))).count or None
            except ValueError:
                per_gpu[key] = None
                problem = f"its request {key}={fields.text(key, '')[:60]!r} cannot be understood"
        if len(types) > 1:
            problem = f"it asks for GPUs of several types ({', '.join(sorted(types))})"
        elif others:
            problem = f"it asks for other generic resources, too ({', '.join(sorted(others))})"
        elif fields.text("tres_per_socket", ""):
            problem = "it asks for GPUs by socket; use --gpus"
        return cls(
            # A total counts as it is: a job that waits shows the nodes of its last run (22.05).
            num_gpus=counts.get("tres_per_job", 0) or max(counts.values(), default=0),
            gpu_type=next(iter(types)) if len(types) == 1 else None,
            cpus_per_gpu=per_gpu["cpus_per_tres"],
            memory_per_gpu_mb=per_gpu["memory_per_tres"],
            is_by_node=bool(counts.get("tres_per_node")) and not counts.get("tres_per_job"),
            problem=problem,
        )


def _resources(text: str) -> tuple[Gres, ...]:
    """Return the generic resources of a request, without CPUs and memory, which newer releases add."""
    return tuple(item for item in parse_gres(text) if item.name not in ("cpu", "mem", "node", "billing"))


def _least_memory_mb(fields: Fields) -> int:
    """Return MB of a node or CPU, as squeue's column has it, which does not say of which."""
    found = (fields.number(key) for key in ("min_memory", "memory_per_node", "memory_per_cpu"))
    return next((number for number in found if number), 0)


def _memory_in_all_mb(fields: Fields) -> int:
    """Return MB of the whole request, as Slurm counts it."""
    return memory_mb(fields.text("tres_req_str", "").rpartition("mem=")[2].partition(",")[0])


def memory_mb(text: str) -> int:
    """Return an amount of memory in MB: `682M`, `8G`; 0 for one that is not set."""
    match = _MEMORY.fullmatch(text)
    if match is None:
        return 0
    whole, decimals, unit = match.groups()
    return round(float(f"{whole}.{decimals or 0}") * _MB_OF[unit])


def _memory_per_gpu(
    fields: Fields, request: _Request, num_cpus: int, num_nodes: int, num_gpus: int
) -> int | None:
    """Return MB per GPU: as requested, or computed from a request per node or CPU; None without one."""
    if request.memory_per_gpu_mb is not None:
        return request.memory_per_gpu_mb
    if not num_gpus:
        return None
    per_node, per_cpu = fields.number("memory_per_node"), fields.number("memory_per_cpu")
    if per_node:
        return max(per_node * num_nodes // num_gpus, 1)
    if per_cpu:
        cpus_per_gpu = request.cpus_per_gpu or max(-(-num_cpus // num_gpus), 1)
        return per_cpu * cpus_per_gpu
    return None


def _owned_resources(
    fields: Fields, state: JobState, requested_gpus: int
) -> tuple[Allocation, tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Return GPUs, CPUs and MB by node.

    A COMPLETING job owns nothing, though its processes may not have ended yet: neither the nodes' counts nor
    gres_detail show it (22.05), and Slurm may give its GPUs to others.
    """
    if state not in (JobState.RUNNING, JobState.SUSPENDED):
        return Allocation(), (), ()
    nodes = _allocated_nodes(fields)
    details = fields.words("gres_detail")
    # A slurmctld of 22.05 that has just started may start a job without its GPUs: no field shows any then.
    is_hidden = requested_gpus and not details and "gres/gpu" in fields.text("tres_alloc_str", "")
    if len(details) not in (0, len(nodes)) or is_hidden:
        raise fields.bad("gres_detail")
    try:
        gpus = [count_gpus(parse_gres(detail)).count for detail in details]
    except ValueError:
        raise fields.bad("gres_detail") from None
    names = [name for name, _, _ in nodes]
    if len(set(names)) != len(names):
        raise fields.bad("job_resources")
    cores = sum(count for _, count, _ in nodes)
    threads = max(-(-(fields.number("cpus") or 0) // cores), 1) if cores else 1
    return (
        Allocation.of(dict(zip(names, gpus, strict=False))),
        tuple(sorted((name, count * threads) for name, count, _ in nodes)),
        tuple(sorted((name, memory_mb) for name, _, memory_mb in nodes)),
    )


def _last_allocation(fields: Fields, request: _Request) -> Allocation:
    """Return the allocation of a run that is over; empty where it never ran or Slurm has forgotten it.

    Slurm does not show the GPUs of each node then; they are spread in proportion to its CPUs.
    """
    try:
        tres = count_gpus(parse_gres(_gpus_only(fields.text("tres_alloc_str", ""))))
        nodes = _allocated_nodes(fields)
    except (ValueError, SlurmReadError):
        return Allocation()
    num_gpus = tres.count or request.num_gpus
    if not nodes or num_gpus < len(nodes):
        return Allocation()
    return Allocation.of(_spread(num_gpus, {name: cores for name, cores, _ in nodes}))


def _gpus_only(tres: str) -> str:
    return ",".join(entry for entry in tres.split(",") if entry.startswith("gres/gpu"))


def _spread(num_gpus: int, cores: Mapping[str, int]) -> dict[str, int]:
    """Spread GPUs over nodes in proportion to their CPUs, at least one each."""
    total = max(sum(cores.values()), 1)
    shares = {name: max(num_gpus * count / total, 1.0) for name, count in cores.items()}
    gpus = {name: int(share) for name, share in shares.items()}
    # The GPU that is missing most, or too many, until the number is right.
    while (missing := num_gpus - sum(gpus.values())) != 0:
        step = 1 if missing > 0 else -1
        name = max(
            (name for name in sorted(gpus) if gpus[name] + step >= 1),
            key=lambda name: step * (shares[name] - gpus[name]),
        )
        gpus[name] += step
    return gpus


def _allocated_nodes(fields: Fields) -> list[tuple[str, int, int]]:
    """Return (name, cores or CPUs, MB) of each node, in Slurm's order, which gres_detail shares."""
    resources = fields.object("job_resources")
    if isinstance(resources.content.get("nodes"), dict):  # since 24.05
        return [
            (
                node.text("name"),
                node.object("cpus").count("count"),
                node.object("memory").number("allocated") or 0,
            )
            for node in resources.object("nodes").objects("allocation")
        ]
    nodes = []
    for node in resources.objects("allocated_nodes"):
        cores = 0
        for socket in node.object("sockets").content.values():
            if not isinstance(socket, dict) or not isinstance(socket.get("cores"), dict):
                raise fields.bad("job_resources")
            cores += sum(str(use).startswith("allocated") for use in socket["cores"].values())
        nodes.append((node.text("nodename"), cores, node.number("memory_allocated") or 0))
    return nodes


def _time_limit_s(fields: Fields) -> float | None:
    minutes = fields.number("time_limit")
    return None if minutes is None or minutes >= _UNLIMITED_MINUTES else 60.0 * minutes


def _exit_code(fields: Fields) -> int | None:
    """Return the exit status as a shell shows it: 128 + n for signal n."""
    value = fields.content.get("exit_code")
    if isinstance(value, dict) and "return_code" in value:  # since 23.11
        parts = fields.object("exit_code")
        signal = parts.object("signal").number("id") if isinstance(value.get("signal"), dict) else None
        return 128 + signal if signal else parts.number("return_code")
    status = fields.number("exit_code")
    if status is None:
        return None
    return 128 + (status & 127) if status & 127 else status >> 8 & 255


def _unschedulable_reason(
    fields: Fields, request: _Request, *, array_id: int, task_id: int | None
) -> str | None:
    if fields.number("het_job_id"):
        return "it is part of a heterogeneous job"
    if array_id and task_id is None:
        return "it is a job array whose tasks have not been started yet"
    # 22.05 shows a batch job without the flag once slurmctld requeued it by itself. Others never restart.
    if not fields.flag("batch_flag") and not fields.count("restart_cnt"):
        return "it is not a batch job"
    # A wing never is: it is cancelled, and its anchor submits another.
    if not fields.flag("requeue") and parse_wing_comment(fields.text("comment", "")) is None:
        return MAY_NOT_BE_REQUEUED
    if _is_exclusive(fields):
        return "it asks for whole nodes (--exclusive)"
    return request.problem


def _is_exclusive(fields: Fields) -> bool:
    return not {"none", "exclusive"}.isdisjoint(word.lower() for word in fields.words("shared"))
